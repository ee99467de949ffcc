"""A server that is stopped answers what is under way, within a bound, and takes nothing new."""

import asyncio
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import starts
from serving import started_with
from test_endpoint import INFER, Bench, in_json, run
from test_refusals import held, until
from waiting import PATIENCE_S

from tailrate.serve import wire
from tailrate.serve.body.request import encode_infer
from tailrate.serve.deploy.app import EndpointReplica
from tailrate.serve.deploy.haproxy import free_port
from tailrate.serve.edge.replica_board import ReplicaBoard

X = {"x": np.zeros((1, 3), np.uint8)}
STOPPING = {"error": "the server is stopping"}


def test_what_is_under_way_is_answered_and_nothing_new_is_taken() -> None:
    async def work(bench: Bench) -> None:
        with held(bench) as gate:
            running, waiting = (asyncio.create_task(bench.call("POST", INFER, in_json(X))) for _ in range(2))
            await until(lambda: bench.endpoint.engine.waiting == 1)
            bench.endpoint.stop(3600)
            status, headers, said = await bench.call("POST", INFER, in_json(X))
            assert (status, headers["retry-after"], said) == (503, "1", STOPPING)
            gate.set()
            assert [(await running)[0], (await waiting)[0]] == [200, 200]
        assert (await bench.call("GET", wire.model_path("null", "eager")))[0] == 200  # what it is can be asked still
        counts = bench.endpoint.report()["counts"]
        assert {why: n for why, n in counts["refused"].items() if n} == {"stopping": 1}
        assert counts["inference_stats"]["success"]["count"] == 2

    run(work, max_batch=1)


def test_what_is_not_answered_within_the_bound_is_told_so_wherever_it_is() -> None:
    """On the device, in the queue, or while it is decoded."""

    async def work(bench: Bench) -> None:
        decoding = threading.Event()
        whole = bench.endpoint._spec.prepare

        def prepare(inputs: Any) -> Any:
            if inputs["x"].shape[1] == 5:
                assert decoding.wait(PATIENCE_S)
            return whole(inputs)

        object.__setattr__(bench.endpoint._spec, "prepare", prepare)
        object.__setattr__(bench.endpoint._spec, "slow_prepare", True)
        with held(bench):
            bodies = [in_json(X), in_json(X), in_json({"x": np.zeros((1, 5), np.uint8)})]
            tasks = []
            for body in bodies:
                tasks.append(asyncio.create_task(bench.call("POST", INFER, body)))
                await asyncio.sleep(0)
            await until(lambda: bench.endpoint.engine.waiting == 1 and bench.endpoint._preparing == 1)
            bench.endpoint.stop(0.01)
            bench.endpoint.stop(3600)  # the first bound counts
            for task in tasks:
                status, headers, said = await task
                assert (status, headers["retry-after"], said) == (503, "1", STOPPING)
            assert bench.endpoint.engine.waiting == 0
            decoding.set()
        counts = bench.endpoint.report()["counts"]
        assert {why: n for why, n in counts["refused"].items() if n} == {"stopping": 3}

    run(work, max_batch=1)


def test_a_client_that_leaves_while_it_stops_has_left() -> None:
    async def work(bench: Bench) -> None:
        with held(bench):
            task = asyncio.create_task(bench.call("POST", INFER, in_json(X)))
            await until(lambda: bench.endpoint.engine.stuck_s > 0)
            bench.endpoint.stop(3600)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert bench.endpoint.report()["counts"]["refused"]["cancelled"] == 1

    run(work)


def test_a_replica_that_has_not_heard_of_it_counts_as_under_way() -> None:
    board = ReplicaBoard([("null", "eager")], replicas=2)
    own: dict[str, Any] = {"model": "null", "variant": "eager", "state": "READY", "reason": ""}
    own |= {"number": 0, "ended": False}
    board.put(own | {"replica": "a", "stopping": True, "under_way": 0}, 0)
    board.put(own | {"replica": "b", "stopping": False, "under_way": 0}, 0)
    assert board.under_way(0) == 1
    board.put(own | {"replica": "b", "stopping": True, "under_way": 3, "number": 1}, 1)
    assert board.under_way(1) == 3
    board.put(own | {"replica": "b", "stopping": True, "under_way": 0, "number": 2}, 2)
    assert board.under_way(2) == 0


def test_a_replica_that_ends_says_what_it_counted_since_its_last_report() -> None:
    async def work(bench: Bench) -> None:
        async def told(report: dict[str, Any]) -> None:
            bench.gateway.board.put(report, time.monotonic())

        bench.stop_reporting()
        reporting = asyncio.create_task(asyncio.sleep(3600))
        gateway = SimpleNamespace(report=SimpleNamespace(remote=told))
        replica: Any = SimpleNamespace(_report=bench.endpoint.fresh_report, _reporting=reporting, _gateway=gateway)
        await bench.call("POST", INFER, in_json(X))
        await EndpointReplica.__del__(replica)
        assert reporting.cancelling()
        assert not bench.gateway.board.reports(("null", "eager"), time.monotonic())
        (found,) = bench.gateway.board.statistics([("null", "eager")], time.monotonic())
        assert found["inference_stats"]["success"]["count"] == 1
        replica._gateway = None  # there is none any more
        await EndpointReplica.__del__(replica)

    run(work)


def test_whoever_shows_the_token_may_stop_a_server_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(bench: Bench) -> None:
        status, _, said = await bench.call("POST", wire.STOP)
        assert (status, "may stop this server, and it has none" in said["error"]) == (403, True)
        assert bench.gateway.board.stop_at_s is None
        monkeypatch.setenv("TAILRATE_TOKEN", "a-secret-that-is-long-enough")
        for bad in ("soon", "-1", "inf"):
            status, _, said = await bench.call("POST", f"{wire.STOP}?seconds={bad}")
            assert (status, said) == (400, {"error": "seconds must be a number of at least 0"})
        bench.gateway.room.requests = 1  # this one
        bench.report()
        assert (await bench.call("POST", f"{wire.STOP}?seconds=60"))[2]["under_way"] == 1  # its replica has not heard
        until_s = bench.gateway.board.stop_at_s
        bench.endpoint.stop(60)
        bench.report()
        assert (await bench.call("POST", f"{wire.STOP}?seconds=9"))[2]["under_way"] == 0
        assert bench.gateway.board.stop_at_s == until_s  # the first bound counts
        assert (await bench.call("GET", wire.READY))[0] == 503

    run(work)


class Client(threading.Thread):
    """One request, and what became of it."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self.found: tuple[int, str | None, bytes] | Exception | None = None

    def run(self) -> None:
        body, headers = encode_infer(X)
        way = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            way.request("POST", INFER, body, headers)
            answer = way.getresponse()
            self.found = answer.status, answer.getheader("retry-after"), answer.read()
        except (OSError, http.client.HTTPException) as problem:
            self.found = problem
        finally:
            way.close()


@contextmanager
def serving(home: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`tailrate serve null` in a process of its own."""
    starts.need("served")
    command = [sys.executable, "-m", "tailrate", "serve", "null", "--variants", "eager", "--cache-dir", str(home)]
    environment = os.environ | {"HOME": str(home), "TMPDIR": tempfile.mkdtemp(prefix="t", dir="/tmp")}
    with subprocess.Popen(
        [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as server:
        try:
            yield server
        finally:
            server.kill()
            assert not list(Path(environment["TMPDIR"]).glob("tr*"))
            shutil.rmtree(environment["TMPDIR"])


def heard(server: subprocess.Popen[str], *beginnings: str) -> str:
    assert server.stdout is not None
    return next(line for line in server.stdout if line.startswith(beginnings))


@pytest.mark.long
@pytest.mark.served
def test_one_that_is_told_to_stop_while_it_starts_does_and_leaves_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, "--port", str(free_port())) as server:
        assert heard(server, "null/eager: ", "ready", "Error").startswith("null/eager: ")
        server.send_signal(signal.SIGTERM)
        said, _ = server.communicate(timeout=PATIENCE_S)
        assert (server.returncode, said.splitlines()[-1:]) == (0, ["stopping"])
    assert not started_with("HOME", str(tmp_path))


@pytest.mark.served
def test_sigterm_under_load_drops_nobody(tmp_path: Path) -> None:
    """Ten requests of half a second each, one after the other, of which three seconds do not suffice for all."""
    port = free_port()
    words = ["--port", str(port), "--max-batch", "1", "--drain-s", "3", "--set", "delay_ms=500"]
    with serving(tmp_path, *words) as server:
        assert heard(server, "ready", "Error", "tailrate:").startswith("ready")
        clients = [Client(port) for _ in range(10)]
        for client in clients:
            client.start()
        while not any(client.found for client in clients):
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        late = []
        while server.poll() is None and len(late) < 1000:
            late.append(Client(port))
            late[-1].start()
            time.sleep(0.2)
        for client in (*clients, *late):
            client.join()
        said, _ = server.communicate(timeout=PATIENCE_S)
        assert (server.returncode, said.splitlines()[:1]) == (0, ["stopping"])
        assert "ERROR" not in said, said  # such as Ray's, of a loop that it was used in and that has ended
        found = [client.found for client in clients]
    kinds = [one[:2] if isinstance(one, tuple) else one for one in found]
    assert set(kinds) == {(200, None), (503, "1")}, kinds  # somebody of each, and nobody was dropped
    assert any(isinstance(one, tuple) and one[0] == 503 and b"is stopping" in one[2] for one in found)
    new = [client.found for client in late]
    assert any(isinstance(one, tuple) and one[0] == 503 and b"is stopping" in one[2] for one in new)
