"""Endpoint, gateway and the ASGI edge together, without Ray and without sockets."""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from tailrate.serve import wire
from tailrate.serve.asgi import App, HttpAnswer, Request, as_app, settled
from tailrate.serve.body.request import encode_infer
from tailrate.serve.body.result import decode_result
from tailrate.serve.edge.endpoint import Endpoint
from tailrate.serve.edge.gateway import Gateway
from tailrate.serve.edge.replica_board import Name
from tailrate.serve.options import ServeOptions

LIMIT = 10_000
INFER = wire.infer_path("null", "eager")
X = {"x": np.zeros((2, 3), np.uint8)}


class Bench:
    """A `null` endpoint and a gateway before it, called as Ray's ingress would call them."""

    def __init__(self, **options: Any) -> None:
        how = ServeOptions(**({"models": ("null",), "variants": ("eager",)} | options))
        self.endpoint = Endpoint(how, "null", "eager", "r1")
        self.gateway = Gateway(how, self._forward, lambda: {"way": "plain"})
        self.app = as_app(self._route, LIMIT, self._refused)

    async def _forward(self, name: Name, request: Request, tail: str) -> HttpAnswer:
        return await settled(self.endpoint.answer(request, tail), "forwarded")

    async def _route(self, request: Request) -> HttpAnswer:
        prefix = wire.model_path("null", "eager")
        if request.path.startswith(prefix):
            return await self.endpoint.answer(request, request.path.removeprefix(prefix).strip("/"))
        return await self.gateway.answer(request)

    def _refused(self, path: str, reason: str, ns: int) -> None:
        prefix = wire.model_path("null", "eager")
        if path.startswith(prefix):
            self.endpoint.refused(path.removeprefix(prefix).strip("/"), reason, ns)
        else:
            self.gateway.refused(path, reason, ns)

    def report(self) -> None:
        self.gateway.board.put(self.endpoint.report() | {"under_way": 0}, asyncio.get_running_loop().time())

    async def ready(self) -> None:
        while self.endpoint.engine.state == "LOADING":
            await asyncio.sleep(0.01)
        self._reporting = asyncio.create_task(self._report_always())

    def stop_reporting(self) -> None:
        self._reporting.cancel()

    async def _report_always(self) -> None:
        while True:
            self.report()
            await asyncio.sleep(0.01)

    async def call(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        status, found, raw = await call(self.app, method, path, [body], headers)
        return status, found, json.loads(raw) if found["content-type"] == "application/json" else raw


async def call(
    app: App, method: str, target: str, pieces: list[bytes], headers: dict[str, str] | None = None, leaves: bool = False
) -> tuple[int, dict[str, str], bytes]:
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
    }
    incoming = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    incoming.append({"type": "http.disconnect"} if leaves else {"type": "http.request", "more_body": False})
    sent: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    if not sent:
        return 0, {}, b""
    start, body = sent
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    assert found["content-length"] == str(len(body["body"])) or method == "HEAD"
    return start["status"], found, body["body"]


def run(work: Callable[[Bench], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def live() -> None:
        bench = Bench(**options)
        try:
            await bench.ready()
            await work(bench)
        finally:
            bench.endpoint.engine.close()
            bench.gateway.close()

    asyncio.run(live(), debug=True)  # which minds who calls the loop from another thread


def test_inference_in_json_and_in_bytes() -> None:
    async def work(bench: Bench) -> None:
        for binary in (True, False):
            body, headers = encode_infer(X, binary=binary, request_id="7")
            status, found, answer = await bench.call("POST", INFER, body, headers)
            assert status == 200
            raw = answer if binary else json.dumps(answer).encode()
            outputs = decode_result(raw, int(found[wire.HEADER_LENGTH]) if binary else None)
            assert outputs["y"].tolist() == [list(range(16))] * 2
            timing = wire.parse_timing(found[wire.TIMING])
            assert list(timing) == [*wire.STAGES, "total"]
            assert sum(timing[stage] for stage in wire.STAGES) == pytest.approx(timing["total"], rel=0.05, abs=0.001)
            received, sent = wire.parse_clock(found[wire.CLOCK_HEADER]) or (0, 0)
            assert 0 < received <= sent
            assert (found[wire.BATCH], found[wire.REPLICA], found[wire.DEVICE]) == ("2", "r1", "cpu")

    run(work)


def test_more_rows_than_a_batch_holds_run_in_several() -> None:
    async def work(bench: Bench) -> None:
        body, headers = encode_infer({"x": np.zeros((130, 3), np.uint8)})
        status, found, answer = await bench.call("POST", INFER, body, headers)
        assert status == 200
        outputs = decode_result(answer, int(found[wire.HEADER_LENGTH]))
        assert outputs["y"].tolist() == [list(range(16))] * 130
        timing = wire.parse_timing(found[wire.TIMING])
        assert sum(timing[stage] for stage in wire.STAGES) == pytest.approx(timing["total"], rel=0.05, abs=0.001)
        assert found[wire.BATCH] == "64"

    run(work)


def test_more_rows_than_the_queue_holds_in_batches() -> None:
    async def work(bench: Bench) -> None:
        body, headers = encode_infer({"x": np.zeros((129, 3), np.uint8)})
        status, _, answer = await bench.call("POST", INFER, body, headers)
        assert (status, answer["error"]) == (413, "the request has 129 rows, but the queue holds at most 128")

    run(work, max_queue=2)


def in_json(tensors: dict[str, wire.Array], **how: Any) -> bytes:
    return encode_infer(tensors, binary=False, **how)[0]


@pytest.mark.parametrize(
    ("status", "sentence", "method", "path", "body", "headers"),
    [
        (400, "not valid JSON", "POST", INFER, b"{", {}),
        (400, "no inputs", "POST", INFER, b'{"inputs":[]}', {}),
        (400, "must be a number of bytes", "POST", INFER, b"{}", {wire.HEADER_LENGTH: "-3"}),
        (400, "unknown output 'z'; the model has y", "POST", INFER, in_json(X, outputs=["z"]), {}),
        (400, "takes UINT8", "POST", INFER, in_json({"x": np.zeros((1, 1))}), {}),
        (400, "must be a number of seconds", "POST", INFER, in_json(X), {"x-request-timeout-seconds": "soon"}),
        (400, "not valid gzip", "POST", INFER, b"{}", {"content-encoding": "gzip"}),
        (415, "gzip and deflate are", "POST", INFER, b"{}", {"content-encoding": "br"}),
        (413, "grows past", "POST", INFER, gzip.compress(b" " * (LIMIT + 1), mtime=0), {"content-encoding": "gzip"}),
        (413, "at most 10000 are taken", "POST", INFER, b"", {"content-length": "10001"}),
        (413, "no more are taken", "POST", INFER, b" " * (LIMIT + 1), {}),
        (400, "not valid gzip", "POST", INFER, gzip.compress(b"{}", mtime=0) + b"{}", {"content-encoding": "gzip"}),
        (405, "use POST", "GET", INFER, b"", {}),
        (405, "use GET", "POST", wire.model_path("null", "eager"), b"", {}),
        (405, "use POST", "GET", wire.INDEX, b"", {}),
        (405, "use GET", "DELETE", "/v2", b"", {}),
        (404, "infer, ready, stats and config", "GET", wire.model_path("null", "eager") + "/nothing", b"", {}),
        (404, "unknown model 'bert'; this server has null", "GET", "/v2/models/bert", b"", {}),
        (404, "unknown model ''", "GET", "/v2/models", b"", {}),
        (404, "unknown version 'fast' of null; this server has eager", "GET", wire.model_path("null", "fast"), b"", {}),
        (404, "unknown path /v3", "GET", "/v3", b"", {}),
        (404, "unknown path /v2/modelsX", "POST", "/v2/modelsX/null/infer", in_json(X), {}),
        (400, "cursor 'x' is malformed", "GET", wire.DEVICES + "?after=x", b"", {}),
    ],
)  # fmt: skip
def test_errors_are_one_sentence_with_their_status(
    status: int, sentence: str, method: str, path: str, body: bytes, headers: dict[str, str]
) -> None:
    async def work(bench: Bench) -> None:
        found = await bench.call(method, path, body, headers)
        assert found[0] == status
        assert sentence in found[2]["error"]
        assert found[1]["content-type"] == "application/json"

    run(work)


def test_an_unexpected_exception_is_a_500_that_keeps_its_details_to_itself(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(request: Request) -> HttpAnswer:
        raise KeyError("a secret")

    status, _, body = asyncio.run(call(as_app(answer, LIMIT), "GET", "/v2", []))
    assert status == 500
    assert b"secret" not in body
    assert "a secret" in caplog.text


def test_a_client_that_leaves_in_the_middle_of_its_body_is_not_answered() -> None:
    async def answer(request: Request) -> HttpAnswer:
        raise AssertionError("it must not come to this")

    assert asyncio.run(call(as_app(answer, LIMIT), "POST", "/v2", [b"{"], leaves=True))[0] == 0


def test_a_body_in_pieces_is_put_together() -> None:
    async def answer(request: Request) -> HttpAnswer:
        return HttpAnswer(200, bytes(request.body))

    assert asyncio.run(call(as_app(answer, LIMIT), "POST", "/v2", [b"a", b"", b"bc"]))[2] == b"abc"


def test_lifespan() -> None:
    async def live() -> list[Any]:
        incoming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
        sent: list[Any] = []

        async def receive() -> Any:
            return incoming.pop(0)

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await as_app(lambda request: asyncio.sleep(0, HttpAnswer(200, b"")), LIMIT)({"type": "lifespan"}, receive, send)
        return sent

    assert asyncio.run(live()) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_full_queue_deadline_and_a_client_that_has_gone() -> None:
    async def work(bench: Bench) -> None:
        body, headers = encode_infer({"x": np.zeros((64, 1), np.uint8)})

        def send(**more: str) -> asyncio.Task[Any]:
            return asyncio.create_task(bench.call("POST", INFER, body, headers | more))

        async def waiting(count: int) -> None:
            while bench.endpoint.engine.waiting != count:
                await asyncio.sleep(0.001)

        running = send()
        await asyncio.sleep(0.05)  # the device is busy with it for a second and a half
        late = send(**{"x-request-timeout-seconds": "0.2"})
        gone = send()
        await waiting(2)
        status, found, answer = await send()
        assert (status, found["retry-after"]) == (503, "1")
        assert "queue is full" in answer["error"]
        status, found, answer = await late
        assert not running.done()  # answered at its deadline, not when the device got to it
        assert status == 504
        assert "deadline" in answer["error"]
        gone.cancel()
        assert (await running)[0] == 200
        assert (await send())[0] == 200
        stats = (await bench.call("GET", wire.model_path("null", "eager") + "/stats"))[2]["model_stats"][0]
        assert stats["execution_count"] == 2
        assert stats["inference_stats"]["success"]["count"] == 2
        assert stats["inference_stats"]["fail"]["count"] == 3

    run(work, max_queue=2, settings={"delay_ms": "1500"})


def test_a_timeout_of_zero_means_none() -> None:
    async def work(bench: Bench) -> None:
        body, headers = encode_infer(X)
        assert (await bench.call("POST", INFER, body, headers | {"x-request-timeout-seconds": "0"}))[0] == 200

    run(work)


def test_metadata_configuration_and_readiness_with_and_without_a_version() -> None:
    async def work(bench: Bench) -> None:
        for path in (wire.model_path("null", "eager"), wire.model_path("null")):
            metadata = (await bench.call("GET", path))[2]
            assert metadata["versions"] == ["eager"]
            assert metadata["inputs"] == [{"name": "x", "datatype": "UINT8", "shape": [-1, -1]}]
            assert metadata["parameters"]["state"] == "READY"
            assert metadata["parameters"]["max_batch"] == 64
            config = (await bench.call("GET", path + "/config"))[2]
            assert config["max_batch_size"] == 64
            assert config["input"] == [{"name": "x", "data_type": "TYPE_UINT8", "dims": [-1]}]
            assert (await bench.call("GET", path + "/ready"))[0] == 200
            body, headers = encode_infer(X)
            assert (await bench.call("POST", path + "/infer", body, headers))[0] == 200
        bench.report()
        for path in (wire.model_path("null", "eager"), wire.model_path("null"), "/v2/models"):
            (stats,) = (await bench.call("GET", path + "/stats"))[2]["model_stats"]
            assert (stats["name"], stats["version"]) == ("null", "eager")
            assert stats["inference_count"] == 4
            assert stats["inference_stats"]["success"]["count"] == 2
            assert stats["batch_stats"][0]["batch_size"] == 2

    run(work)


def test_the_server_as_a_whole() -> None:
    async def work(bench: Bench) -> None:
        server = (await bench.call("GET", "/v2"))[2]
        assert server["name"] == "tailrate"
        assert server["endpoints"] == ["null/eager"]
        assert (await bench.call("GET", wire.LIVE))[0] == 200
        while (await bench.call("GET", wire.READY))[0] != 200:
            await asyncio.sleep(0.01)
        assert (await bench.call("POST", wire.INDEX))[2] == [
            {"name": "null", "version": "eager", "state": "READY", "reason": "", "replicas": ["r1"]}
        ]
        clock = (await bench.call("GET", wire.CLOCK))[2]
        assert 0 < clock["recv_ns"] <= clock["send_ns"]
        while not (devices := (await bench.call("GET", wire.DEVICES))[2])["rows"]:  # the sampler is a thread of its own
            await asyncio.sleep(0.01)
        assert (await bench.call("GET", f"{wire.DEVICES}?after={devices['cursor']}"))[0] == 200
        bench.report()
        text = (await bench.call("GET", wire.METRICS))[2].decode()
        assert 'tailrate_ready{model="null",variant="eager",replica="r1"} 1\n' in text
        assert 'tailrate_requests_total{model="null",variant="eager",replica="r1",outcome="success"} 0\n' in text
        assert f'tailrate_device_util_pct{{host="{devices["host"]}",device="cpu",index="0"}} ' in text
        assert (await bench.call("GET", wire.RAY_METRICS))[0] == 404

    run(work)


def test_nothing_is_ready_before_it_has_reported() -> None:
    async def work(bench: Bench) -> None:
        bench.stop_reporting()
        bench.gateway.board = type(bench.gateway.board)([("null", "eager")], replicas=1)
        status, found, answer = await bench.call("GET", wire.READY)
        assert status == 503
        assert answer["error"] == "null/eager is loading: starting (0 of 1 there)"
        assert found["retry-after"] == "1"
        assert (await bench.call("GET", wire.model_path("null")))[0] == 503  # rather than wait for a replica
        assert (await bench.call("POST", wire.INDEX))[2][0]["state"] == "LOADING"

    run(work)


def test_answers_can_be_sent_between_processes() -> None:
    import pickle

    async def work(bench: Bench) -> None:
        kept: list[Request] = []

        async def keep(request: Request) -> HttpAnswer:
            kept.append(request)
            return await bench.gateway.answer(request)

        app: Callable[..., Awaitable[None]] = as_app(keep, LIMIT)
        await call(app, "GET", "/v2", [])
        assert pickle.loads(pickle.dumps(kept[0])) == kept[0]

    run(work)
