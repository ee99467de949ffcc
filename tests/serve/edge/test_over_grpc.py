"""The Open Inference Protocol over gRPC before the gateway, asked by grpcio with the protocol's own messages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_messages import message
from test_endpoint import INFER, LIMIT, Bench, run

from tailrate.serve import wire
from tailrate.serve.body.request import encode_infer
from tailrate.serve.body.result import decode_result
from tailrate.serve.edge.over_grpc import HEADROOM_BYTES, SAID, GrpcServer

X = np.arange(6, dtype=np.uint8).reshape(2, 3)
TOKEN = "a-token-of-sixteen"
Ask = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def asked(bench: Bench, tokens: tuple[str, ...] = ()) -> AsyncIterator[Ask]:
    server = GrpcServer(bench.gateway, LIMIT, tokens)
    port = await server.start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

            async def ask(method: str, sent: bytes = b"", answer: str = "", **more: Any) -> Any:
                call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(sent, timeout=30, **more)
                found = await call
                ask.said = dict([*await call.trailing_metadata()])  # type: ignore[attr-defined]
                return message(answer).FromString(found) if answer else found

            yield ask
    finally:
        await server.stop(0)


def infer(model: str = "null", version: str = "eager", x: np.ndarray[Any, Any] = X, **more: Any) -> bytes:
    request = message("ModelInferRequest")(model_name=model, model_version=version, **more)
    request.inputs.add(name="x", datatype="UINT8", shape=x.shape)
    request.raw_input_contents.append(x.tobytes())
    return bytes(request.SerializeToString())


async def refused(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as found:
        await call
    return found.value.code(), str(found.value.details())


def over(work: Callable[[Bench, Ask], Awaitable[None]], tokens: tuple[str, ...] = (), **options: Any) -> None:
    async def inner(bench: Bench) -> None:
        async with asked(bench, tokens) as ask:
            await work(bench, ask)

    run(inner, **options)


def test_a_result_is_that_of_http_with_what_it_says_of_the_request() -> None:
    async def work(bench: Bench, ask: Ask) -> None:
        body, headers = encode_infer({"x": X})
        status, said, raw = await bench.call("POST", INFER, body, headers)
        assert status == 200
        over_http = decode_result(raw, int(said[wire.HEADER_LENGTH]))
        found = await ask("ModelInfer", infer(id="seven"), "ModelInferResponse")
        assert (found.model_name, found.model_version, found.id) == ("null", "eager", "seven")
        assert [output.name for output in found.outputs] == list(over_http)
        for output, bytes_, tensor in zip(found.outputs, found.raw_output_contents, over_http.values(), strict=True):
            assert (output.datatype, tuple(output.shape)) == (wire.datatype_of(tensor), tensor.shape)
            assert bytes_ == tensor.tobytes()
        of_http, of_grpc = ({name for name in each if name in SAID} for each in (said, ask.said))  # type: ignore[attr-defined]
        assert of_http == of_grpc
        assert {wire.TIMING, wire.CLOCK_HEADER, wire.REPLICA} <= of_grpc
        counts = bench.endpoint.report()["counts"]
        assert counts["inference_stats"]["success"]["count"] == 2

    over(work)


def test_a_model_without_a_version_is_its_first_variant() -> None:
    async def work(bench: Bench, ask: Ask) -> None:
        found = await ask("ModelInfer", infer(version=""), "ModelInferResponse")
        assert (found.model_name, found.model_version, len(found.outputs)) == ("null", "eager", 1)

    over(work)


def test_what_it_says_of_itself_is_what_http_says() -> None:
    async def work(bench: Bench, ask: Ask) -> None:
        server = (await bench.call("GET", wire.SERVER))[2]
        found = await ask("ServerMetadata", b"", "ServerMetadataResponse")
        assert (found.name, found.version, list(found.extensions)) == (
            server["name"],
            server["version"],
            server["extensions"],
        )
        name = message("ModelInferRequest")(model_name="null", model_version="eager").SerializeToString()
        model = (await bench.call("GET", wire.model_path("null", "eager")))[2]
        found = await ask("ModelMetadata", name, "ModelMetadataResponse")
        assert (found.name, list(found.versions), found.platform) == (model["name"], model["versions"], "tailrate")
        for side in ("inputs", "outputs"):
            tensors = [(one.name, one.datatype, list(one.shape)) for one in getattr(found, side)]
            assert tensors == [(one["name"], one["datatype"], one["shape"]) for one in model[side]]
        (item,) = (await ask("RepositoryIndex", b"", "RepositoryIndexResponse")).models
        (listed,) = (await bench.call("POST", wire.INDEX))[2]
        assert {"name": item.name, "version": item.version, "state": item.state} == {
            key: listed[key] for key in ("name", "version", "state")
        }
        for method, sent in (("ServerLive", b""), ("ServerReady", b""), ("ModelReady", name)):
            assert await ask(method, sent) == b"\x08\x01"

    over(work)


def test_what_is_not_ready_is_so_and_is_no_error() -> None:
    async def work(bench: Bench, ask: Ask) -> None:
        bench.gateway.board.stop_at_s = 0.0
        assert await ask("ServerReady") == b""

    over(work)


def test_refusals_have_the_codes_of_their_statuses_and_the_servers_sentence() -> None:
    async def work(bench: Bench, ask: Ask) -> None:
        code, why = await refused(ask("ModelInfer", infer(model="other")))
        assert (code, "unknown model 'other'" in why) == (grpc.StatusCode.NOT_FOUND, True)
        code, why = await refused(ask("ModelInfer", infer(x=np.zeros((2, 9), np.uint8).reshape(2, 3, 3))))
        assert (code, "shape" in why) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        code, why = await refused(ask("ModelInfer", b"\xff\xff\xff"))
        assert (code, "message" in why) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        code, _ = await refused(ask("ModelInfer", bytes(LIMIT + HEADROOM_BYTES + 1)))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        code, _ = await refused(ask("ModelStreamInfer", b""))
        assert code == grpc.StatusCode.UNIMPLEMENTED
        counted = (await bench.call("GET", "/v2/models/stats"))[2]
        assert counted["refused"]["not_found"] == 1
        assert counted["refused"]["bad_input"] == 1  # the broken message, which names nobody
        assert bench.endpoint.report()["counts"]["refused"]["bad_input"] == 1
        assert bench.gateway.room.taken_bytes == bench.gateway.room.requests == 0

    over(work)


@pytest.mark.parametrize("where", ["inputs", "outputs"])
@pytest.mark.parametrize("asked", ["classification", "shared_memory_region"])
def test_what_is_not_done_with_a_tensor_is_refused_as_over_http(where: str, asked: str) -> None:
    async def work(bench: Bench, ask: Ask) -> None:
        request = message("ModelInferRequest").FromString(infer())
        request.outputs.add(name="y")
        over_http = {
            "inputs": [{"name": "x", "datatype": "UINT8", "shape": X.shape, "data": X.ravel().tolist()}],
            "outputs": [{"name": "y"}],
        }
        getattr(request, where)[0].parameters.add(key=asked, value=message("InferParameter")(string_param="3"))
        over_http[where][0]["parameters"] = {asked: "3"}
        status, _, said = await bench.call("POST", INFER, json.dumps(over_http).encode())
        code, why = await refused(ask("ModelInfer", request.SerializeToString()))
        assert (status, said["error"]) == (400, why)
        assert code == grpc.StatusCode.INVALID_ARGUMENT

    over(work)


def test_a_deadline_is_the_engines() -> None:
    async def work(bench: Bench, ask: Ask) -> None:
        seen: list[str | None] = []
        whole = bench.gateway._answered

        async def listened(request: Any) -> Any:
            seen.append(request.header(b"x-request-timeout-seconds"))
            return await whole(request)

        bench.gateway._answered = listened  # type: ignore[method-assign]
        await ask("ModelInfer", infer())
        assert 0 < float(seen[0] or 0) < 31  # gRPC rounds what it sends up to three digits

    over(work)


def test_whoever_shows_no_token_is_told_nothing() -> None:
    async def work(bench: Bench, ask: Ask) -> None:
        for metadata in ((), (("authorization", "Bearer another-one-of-sixteen"),)):
            for method in ("ServerLive", "ModelInfer", "RepositoryIndex"):
                code, why = await refused(ask(method, infer(), metadata=metadata))
                assert (code, "bearer token" in why) == (grpc.StatusCode.UNAUTHENTICATED, True)
        assert await ask("ServerLive", b"", metadata=(("authorization", f"Bearer {TOKEN}"),)) == b"\x08\x01"

    over(work, (TOKEN,))
