"""Every end of a request is counted once, with its reason: held against what a client saw from outside."""

import asyncio
import gzip
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from test_endpoint import INFER, LIMIT, Bench, call, in_json, run
from waiting import PATIENCE_S

from tailrate.serve import asgi, wire
from tailrate.serve.body.request import MOST_MEMBERS, encode_infer, inflate
from tailrate.serve.models import load
from tailrate.serve.telemetry.statistics import REFUSED
from tailrate.serve.wire import WireError

X = {"x": np.zeros((2, 3), np.uint8)}
BODY = in_json(X)
NOT_OF_INFERENCE = {"not_allowed", "conflict"}
"""Of faults and profiles."""


class Outside:
    """What a client sees: how often each status came, and 0 where it left."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.seen: Counter[int] = Counter()
        self.meant: Counter[str] = Counter()

    async def send(
        self, reason: str, body: bytes = BODY, path: str = INFER, method: str = "POST", **headers: str
    ) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        status, found, answer = await self.bench.call(method, path, body, named)
        self.seen[status] += 1
        self.meant[reason] += 1
        return status, found, answer

    async def leaves(self, *pieces: bytes) -> None:
        assert (await call(self.bench.app, "POST", INFER, list(pieces), leaves=True))[0] == 0
        self.seen[0] += 1
        self.meant["cancelled"] += 1

    async def counted(self) -> tuple[dict[str, int], int]:
        """(refused by reason, successes) as `/v2/models/stats` has them, those of nobody included."""
        found = (await self.bench.call("GET", "/v2/models/stats"))[2]
        (stats,) = found["model_stats"]
        both = {why: stats["refused"][why] + found["refused"][why] for why in REFUSED}
        fails = stats["inference_stats"]["fail"]["count"]
        assert fails == sum(stats["refused"].values())
        return {why: n for why, n in both.items() if n}, stats["inference_stats"]["success"]["count"]


@contextmanager
def broken(bench: Bench, problem: Exception, lost: str | None = None) -> Iterator[None]:
    """Every batch fails with it."""
    runner: Any = bench.endpoint.engine.runner

    def begin(*_: Any) -> None:
        raise problem

    runner.begin, runner.lost = begin, lambda: lost
    try:
        yield
    finally:
        del runner.begin, runner.lost


class Gate(threading.Event):
    reached = False


@contextmanager
def held(bench: Bench) -> Iterator[Gate]:
    """Each batch waits at a gate."""
    runner: Any = bench.endpoint.engine.runner
    gate, whole = Gate(), runner.begin

    def begin(*how: Any) -> Any:
        gate.reached = True
        assert gate.wait(PATIENCE_S)
        return whole(*how)

    runner.begin = begin
    try:
        yield gate
    finally:
        gate.set()
        del runner.begin


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.001)


async def stalled(bench: Bench) -> None:
    """A body of which the second half never comes."""
    scope = {"type": "http", "method": "POST", "path": INFER, "query_string": b"", "headers": []}
    pieces = [{"type": "http.request", "body": BODY[:9], "more_body": True}]

    async def receive() -> Any:
        if not pieces:
            await asyncio.sleep(3600)
        return pieces.pop()

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await bench.app(scope, receive, send)
    assert sent[0]["status"] == 408


def test_every_reason_that_there_is_equals_what_a_client_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "PATIENCE_S", 0.02)

    async def work(bench: Bench) -> None:
        client = Outside(bench)
        for _ in range(3):
            assert (await client.send(""))[0] == 200
        await client.send("bad_input", b"{")
        await client.send("bad_input", content_encoding="gzip")
        await client.send("bad_input", x_request_timeout_seconds="soon")
        await client.send("not_found", path="/v2/models/nosuch/infer")
        await client.send("not_found", path="/v2/models/null/versions/nosuch/infer")
        await client.send("not_found", path="/v2/modelsX/null/infer")
        assert (await client.send("wrong_method", method="GET"))[1]["allow"] == "POST"
        await client.send("wrong_method", method="DELETE", path="/v2/models/null/infer")
        await client.send("too_large", b"", content_length="10001")
        await client.send("too_large", b" " * (LIMIT + 1))
        await client.send("too_large", gzip.compress(b" " * (LIMIT + 1)), content_encoding="gzip")
        await client.send("too_large", b"", path="/v2/models/nosuch/infer", content_length="99999")
        await client.send("bad_encoding", content_encoding="br")
        await client.leaves(BODY[:5])
        await stalled(bench)
        client.seen[408] += 1
        client.meant["slow_body"] += 1
        with broken(bench, MemoryError()):
            await client.send("no_memory", in_json({"x": np.zeros((1, 3), np.uint8)}))
        with broken(bench, ArithmeticError("no")):
            await client.send("failed")
        with monkeypatch.context() as patch:
            patch.setattr(asgi.Share, "check", lambda share: _raise(WireError(503, "no room", "no_room")))
            await client.send("no_room")
        with held(bench) as gate:
            running = asyncio.create_task(client.send(""))
            await until(lambda: gate.reached)
            _, _, said = await client.send("deadline", x_request_timeout_seconds="0.05")
            assert said["error"] == "the deadline of the request passed while it was queued"
            late = asyncio.create_task(bench.call("POST", INFER, BODY))
            gone = asyncio.create_task(bench.call("POST", INFER, BODY))
            await until(lambda: bench.endpoint.engine.waiting == 2)
            assert (await client.send("queue_full"))[1]["retry-after"] == "1"
            for task in (late, gone):
                task.cancel()
                client.seen[0] += 1
                client.meant["cancelled"] += 1
            await until(lambda: bench.endpoint.engine.waiting == 0)
            gate.set()
            await running
        with broken(bench, ArithmeticError("no"), lost="the device was lost: no"):
            await client.send("lost")
        await client.send("lost")  # and so it stays
        bench.stop_reporting()
        for name in bench.gateway.board.endpoints:
            bench.gateway.board._reports[name].clear()
        await client.send("not_ready", path="/v2/models/null/infer")
        bench.report()
        counted, good = await client.counted()
        asked = Counter({why: n for why, n in client.meant.items() if why})
        assert counted == asked
        assert set(asked) == set(REFUSED) - NOT_OF_INFERENCE - {"stopping"}
        assert good == client.seen[200] == client.meant[""] == 4
        assert sum(counted.values()) + good == client.seen.total()

    run(work, max_queue=2)


def _raise(problem: Exception) -> None:
    raise problem


def test_what_comes_when_it_shuts_down_is_told_so() -> None:
    async def work(bench: Bench) -> None:
        client = Outside(bench)
        await asyncio.to_thread(bench.endpoint.engine.close)
        await client.send("stopping")
        bench.report()
        assert (await client.counted())[0] == {"stopping": 1}

    run(work)


def test_a_model_whose_preparation_breaks_has_failed_and_was_not_left() -> None:
    async def work(bench: Bench) -> None:
        client = Outside(bench)

        def breaks(inputs: Any) -> Any:
            raise KeyError("of the model's")

        object.__setattr__(bench.endpoint._spec, "prepare", breaks)
        assert (await client.send("failed"))[0] == 500
        bench.report()
        assert (await client.counted())[0] == {"failed": 1}

    run(work)


def slow_to_decode(bench: Bench, gate: threading.Event) -> list[int]:
    """What was decoded, at the gate's time."""
    decoded: list[int] = []
    whole = load("null", {}).prepare

    def prepare(inputs: Any) -> Any:
        gate.wait(PATIENCE_S)
        decoded.append(1)
        return whole(inputs)

    object.__setattr__(bench.endpoint._spec, "prepare", prepare)
    object.__setattr__(bench.endpoint._spec, "slow_prepare", True)
    return decoded


def test_a_deadline_holds_while_its_request_is_decoded() -> None:
    async def work(bench: Bench) -> None:
        client, gate = Outside(bench), threading.Event()
        decoded = slow_to_decode(bench, gate)
        try:
            status, _, said = await client.send("deadline", x_request_timeout_seconds="0.05")
            assert (status, decoded) == (504, [])  # while it is decoded still
            assert said["error"] == "the deadline of the request passed while it was decoded"
            assert bench.endpoint._preparing == 1  # its thread is taken, though nobody waits any more
        finally:
            gate.set()
        await until(lambda: not bench.endpoint._preparing)
        assert (await client.send("", x_request_timeout_seconds="30"))[0] == 200
        bench.report()
        assert await client.counted() == ({"deadline": 1}, 1)

    run(work)


def test_a_deadline_that_is_no_number_is_refused_before_anything_is_decoded() -> None:
    async def work(bench: Bench) -> None:
        client, gate = Outside(bench), threading.Event()
        decoded = slow_to_decode(bench, gate)
        gate.set()
        assert (await client.send("bad_input", b"not even JSON", x_request_timeout_seconds="soon"))[2]["error"] == (
            "the header x-request-timeout-seconds must be a number of seconds, not 'soon'"
        )
        assert not decoded

    run(work)


def test_a_request_in_chunks_is_one_request_with_its_own_stages() -> None:
    """1,280 rows in 20 batches: once in each stage, for as long as its own header says."""

    async def work(bench: Bench) -> None:
        body, headers = encode_infer({"x": np.zeros((1280, 3), np.uint8)})
        status, found, _ = await bench.call("POST", INFER, body, headers)
        assert status == 200
        timing = wire.parse_timing(found[wire.TIMING])
        counts = bench.endpoint.report()["counts"]
        assert counts["execution_count"] == 20
        assert {stage: span["count"] for stage, span in counts["stages"].items()} == dict.fromkeys(wire.STAGES, 1)
        assert counts["inference_stats"]["queue"]["count"] == 1
        for stage in wire.STAGES[:-1]:  # the last ends when the answer is handed over
            assert counts["stages"][stage]["ns"] / 1e6 == pytest.approx(timing[stage], abs=0.001)
        assert sum(size["compute_infer"]["count"] for size in counts["batch_stats"].values()) == 20

    run(work)


def test_head_brings_what_get_would_without_its_body() -> None:
    async def work(bench: Bench) -> None:
        for path in ("/v2", wire.LIVE, wire.model_path("null", "eager"), wire.model_path("null", "eager") + "/config"):
            got = await call(bench.app, "GET", path, [])
            headed = await call(bench.app, "HEAD", path, [])
            assert (headed[0], headed[2]) == (200, b"")
            assert headed[1] == got[1] | {"content-length": headed[1]["content-length"]}
            assert abs(int(headed[1]["content-length"]) - len(got[2])) < 20  # seconds in it may have moved on
        status, headers, _ = await call(bench.app, "PUT", "/v2", [])
        assert (status, headers["allow"]) == (405, "GET, HEAD")

    run(work)


def test_a_name_that_looks_encoded_is_taken_as_it_is() -> None:
    """The server's paths are decoded when they come: `%2565` is `%65`, and not `e`."""

    async def work(bench: Bench) -> None:
        status, _, said = await bench.call("GET", "/v2/models/null/versions/%65ager")
        assert (status, said["error"]) == (404, "unknown version '%65ager' of null; this server has eager")

    run(work)


# ---- gzip in several members


def test_gzip_of_several_members_is_their_sum() -> None:
    pieces = [b"a" * 70_000, b"", BODY, bytes(range(256)) * 400]
    body = b"".join(gzip.compress(piece) for piece in pieces)
    assert inflate(body, "gzip", 1 << 20) == b"".join(pieces)
    assert inflate(memoryview(body), "gzip", len(b"".join(pieces))) == b"".join(pieces)
    for limit in (0, 69_999, 70_000, len(b"".join(pieces)) - 1):
        with pytest.raises(WireError, match="grows past"):
            inflate(body, "gzip", limit)
    for broken in (body[:-1], body + b"x", body + gzip.compress(b"more")[:-9], b""):
        with pytest.raises(WireError) as found:
            inflate(broken, "gzip", 1 << 20)
        assert found.value.status == 400


def test_very_many_members_are_refused_before_they_take_long() -> None:
    many = gzip.compress(b"") * 500_000
    began_s = time.process_time()
    with pytest.raises(WireError, match="ends early or goes on"):
        inflate(many, "gzip", 1 << 24)
    small = gzip.compress(b"") * (MOST_MEMBERS + 1)
    whole_s = time.process_time() - began_s
    began_s = time.process_time()
    with pytest.raises(WireError, match="ends early or goes on"):
        inflate(small, "gzip", 1 << 24)
    assert whole_s < 100 * (time.process_time() - began_s + 0.01)  # not as the square of its length
    assert inflate(gzip.compress(b"a") * MOST_MEMBERS, "gzip", 1 << 24) == b"a" * MOST_MEMBERS
