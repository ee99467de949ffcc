"""The Open Inference Protocol over gRPC: each call is asked of the gateway as over HTTP, and its answer written back.

For clients that speak nothing else. It takes a process and a translation more than HTTP, which goes straight to a
replica, so it isn't the way to measure a model by.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc

from tailrate.serve import wire
from tailrate.serve.asgi import HttpAnswer, Request, Share, reason, settled
from tailrate.serve.body import infer_grpc as messages
from tailrate.serve.body import request, result
from tailrate.serve.edge import auth
from tailrate.serve.edge.gateway import Gateway
from tailrate.serve.wire import WireError

log = logging.getLogger(__name__)

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT, 403: grpc.StatusCode.PERMISSION_DENIED, 404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED, 409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED, 503: grpc.StatusCode.UNAVAILABLE, 504: grpc.StatusCode.DEADLINE_EXCEEDED,
}  # fmt: skip
"""Of an HTTP status; any other is INTERNAL."""
SAID = (wire.TIMING, wire.CLOCK_HEADER, wire.BATCH, wire.COMPILE, wire.REPLICA, wire.DEVICE)
"""What an answer says of its request, in its header over HTTP, goes as metadata behind the answer."""
HEADROOM_BYTES = 1 << 16
"""Of a message beside its tensors."""

Call = Callable[[bytes, Any], Awaitable[bytes]]


class GrpcServer:
    """Listens beside the gateway, in its event loop."""

    def __init__(self, gateway: Gateway, max_body_bytes: int, good: Sequence[str]) -> None:
        """`good` are the tokens, one of which each call has to show; none: everybody may ask."""
        self._gateway = gateway
        self._known = [token.encode() for token in good]
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", max_body_bytes + HEADROOM_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            ]
        )
        calls: dict[str, Call] = {
            "ServerLive": self._flag(wire.LIVE),
            "ServerReady": self._flag(wire.READY),
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "RepositoryIndex": self._index,
            "ModelInfer": self._infer,
        }
        handlers = {name: grpc.unary_unary_rpc_method_handler(self._guarded(call)) for name, call in calls.items()}
        service = messages.SERVICE.strip("/")
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    async def start(self, host: str, port: int, certificate: bytes = b"", key: bytes = b"") -> int:
        """The port, where `port` is 0 one that was free."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if certificate:
            credentials = grpc.ssl_server_credentials([(key, certificate)])
            found: int = self._server.add_secure_port(address, credentials)
        else:
            found = self._server.add_insecure_port(address)
        await self._server.start()
        return found

    async def stop(self, within_s: float) -> None:
        await self._server.stop(within_s)

    def _guarded(self, call: Call) -> Call:
        async def guarded(message: bytes, context: Any) -> bytes:
            if self._known and not auth.shows(_metadata(context).get("authorization", "").encode(), self._known):
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, json.loads(auth.REFUSED)["error"])
            share = Share(self._gateway.room)
            try:
                share.take(len(message))
                share.check()
                return await call(message, context)
            except WireError as problem:
                await context.abort(CODES.get(problem.status, grpc.StatusCode.INTERNAL), problem.sentence)
            except grpc.aio.AbortError:
                raise
            except Exception:
                log.exception("a call over gRPC failed")
                await context.abort(grpc.StatusCode.INTERNAL, "the server failed on this request; its log says why")
            finally:
                share.give_back()
            raise AssertionError("an aborted call has raised")

        return guarded

    async def _ask(
        self, method: str, path: str, context: Any, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """What the gateway answers, who sees the call as one over HTTP; `WireError` for anything but a result."""
        sent = {name.encode(): value.encode() for name, value in (headers or {}).items()}
        if (left_s := context.time_remaining()) is not None:
            sent[b"x-request-timeout-seconds"] = f"{max(left_s, 1e-3):.6f}".encode()
        asked = Request(method, path, "", sent, body, time.perf_counter_ns(), time.time_ns())
        answer = await settled(self._gateway.answer(asked), path)
        if answer.status != 200:
            raise WireError(answer.status, json.loads(answer.body)["error"])
        return answer

    def _flag(self, path: str) -> Call:
        async def flag(message: bytes, context: Any) -> bytes:
            try:
                await self._ask("GET", path, context)
            except WireError as problem:
                if problem.status != 503:
                    raise
                return messages.encode_flag(False)
            return messages.encode_flag(True)

        return flag

    async def _server_metadata(self, message: bytes, context: Any) -> bytes:
        said = json.loads((await self._ask("GET", wire.SERVER, context)).body)
        return messages.encode_server(said["name"], said["version"], said["extensions"])

    async def _model_ready(self, message: bytes, context: Any) -> bytes:
        return await self._flag(_path(*messages.decode_name(message)) + "/ready")(message, context)

    async def _model_metadata(self, message: bytes, context: Any) -> bytes:
        answer = await self._ask("GET", _path(*messages.decode_name(message)), context)
        return messages.encode_model(json.loads(answer.body))

    async def _index(self, message: bytes, context: Any) -> bytes:
        return messages.encode_index(json.loads((await self._ask("POST", wire.INDEX, context)).body))

    async def _infer(self, message: bytes, context: Any) -> bytes:
        began_ns = time.perf_counter_ns()
        try:
            asked = messages.decode_infer(message)
            body, headers = request.encode_infer(asked.tensors, outputs=asked.wanted, request_id=asked.id)
        except WireError as problem:
            self._gateway.refused(wire.infer_path(""), reason(problem), time.perf_counter_ns() - began_ns)
            raise
        answer = await self._ask("POST", _path(asked.model, asked.version) + "/infer", context, body, headers)
        context.set_trailing_metadata([(name, text) for name, text in answer.headers.items() if name in SAID])
        said, outputs = result.read_result(answer.body, wire.parse_count(answer.headers.get(wire.HEADER_LENGTH, "")))
        return messages.encode_result(said["model_name"], said["model_version"], asked.id, outputs)


def _path(model: str, version: str) -> str:
    return wire.model_path(model, version or None)


def _metadata(context: Any) -> dict[str, str]:
    return {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
