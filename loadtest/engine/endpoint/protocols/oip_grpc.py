"""The Open Inference Protocol over gRPC: `inference.GRPCInferenceService`, as Triton, KServe and MLServer speak it.

Tensors go as bytes behind the message, or as values in it where a server refuses those. Not all have an index of
models, and a version is optional in all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from tailrate.loadtest.engine.endpoint.answer import OK, SHUT, EndpointAnswer
from tailrate.loadtest.engine.endpoint.credentials import Access
from tailrate.loadtest.engine.endpoint.http2.grpc_message import PREFIX, framed, message_flaw
from tailrate.loadtest.engine.endpoint.http2.replay import as_frames
from tailrate.loadtest.engine.endpoint.protocol import Protocol
from tailrate.loadtest.engine.endpoint.target import Endpoint, Target, called
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve.body import infer_grpc as messages
from tailrate.serve.wire import Array, WireError

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.client import Client

GREETING_S = 2.0
UNIMPLEMENTED = "501"
SHORT = 4096
"""Bytes of an answer up to which a look at it is remembered: the same request mostly gets the same answer."""
REMEMBERED = 256


@dataclass(frozen=True)
class OipGrpc(Protocol):
    name = "oip-grpc"
    what = "Open Inference Protocol over gRPC (Triton, KServe, MLServer)"
    raw: bool = True
    """Tensors go as bytes, not as values."""
    method: ClassVar[str] = "POST"
    call: ClassVar[str] = "ModelInfer"
    """Of the service, which a request is."""

    @classmethod
    def connect(cls, url: str, timeout_s: float, access: Access) -> Client:
        from tailrate.loadtest.engine.endpoint.grpc import GrpcClient  # gevent, which no help page needs

        return GrpcClient(url, timeout_s, access)

    @classmethod
    def spoken(cls, client: Client) -> str:
        from tailrate.loadtest.engine.endpoint.grpc import GrpcClient

        assert isinstance(client, GrpcClient)
        if not client.speaks(GREETING_S):
            return ""
        answer = _call(client, "ServerMetadata")
        if answer.status != OK:
            return "a gRPC server of the Open Inference Protocol" if _call(client, "ServerLive").status == OK else ""
        return _named(answer)

    def find(self, client: Client, target: Target) -> list[Endpoint]:
        return [self._endpoint(client, target, each) for each in target.versions(client.url, _hosted(client, target))]

    def _endpoint(self, client: Client, target: Target, version: str) -> Endpoint:
        about = messages.encode_name(target.model, version)
        name = called(target.model, version)
        ready = _call(client, "ModelReady", about)
        if ready.status != UNIMPLEMENTED and not _read(client, ready, f"ModelReady of {name}", messages.flag):
            raise ScenarioError(f"{name} at {client.url} is not ready")
        said = _call(client, "ModelMetadata", about)
        if ready.status != OK:  # neither way says that it is there
            _message(client, said, f"ModelMetadata of {name}")
        found = self.endpoint(client, target, messages.SERVICE + self.call, version, _parameters(said))
        return replace(found, url=client.url)  # gRPC has no path of its own before its service's

    def others(self) -> Iterator[OipGrpc]:
        if self.raw:
            yield replace(self, raw=False)

    def write(
        self, endpoint: Endpoint, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> tuple[bytes, dict[str, str]]:
        return framed(messages.encode_infer(endpoint.model, endpoint.version, inputs, outputs, self.raw)), {}

    def flaw(self, answer: EndpointAnswer, header: Mapping[str, str]) -> str | None:
        return _short_flaw(answer.body) if len(answer.body) <= SHORT else _flaw(answer.body)

    def outputs(self, answer: EndpointAnswer) -> dict[str, Array]:
        return messages.decode_result(memoryview(answer.body)[PREFIX:])

    def server(self, client: Client) -> dict[str, Any]:
        answer = _call(client, "ServerMetadata")
        return {} if answer.status == UNIMPLEMENTED else _read(client, answer, "ServerMetadata", messages.decode_server)

    def parameters(self, client: Client, endpoint: Endpoint) -> dict[str, Any]:
        return _parameters(_call(client, "ModelMetadata", messages.encode_name(endpoint.model, endpoint.version)))

    def replayed(self, answer: EndpointAnswer) -> bytes:
        return b"".join(as_frames(answer.fields, [answer.body]))


def _flaw(body: bytes) -> str | None:
    return message_flaw(body) or messages.result_flaw(memoryview(body)[PREFIX:])


_short_flaw = lru_cache(REMEMBERED)(_flaw)


def _call(client: Client, method: str, message: bytes = b"") -> EndpointAnswer:
    return client.send("POST", messages.SERVICE + method, framed(message))


def _message(client: Client, answer: EndpointAnswer, what: str) -> bytes:
    """What a call brought; `ScenarioError` where it brought nothing."""
    if answer.status in ("timeout", "connect"):
        raise ScenarioError(client.unreached(answer, "nothing that speaks gRPC"))
    if answer.status in SHUT:
        raise ScenarioError(client.shut(replace(answer, body=(answer.error or "").encode())) or "")
    if answer.status != OK or (problem := message_flaw(answer.body)):
        why = answer.error if answer.status != OK else problem
        raise ScenarioError(f"{client.url}: {what}: {why}")
    return answer.body[PREFIX:]


def _read(client: Client, answer: EndpointAnswer, what: str, decode: Any) -> Any:
    try:
        return decode(_message(client, answer, what))
    except WireError as problem:
        raise ScenarioError(f"{client.url}: {what} cannot be read: {problem.sentence}") from None


def _named(answer: EndpointAnswer) -> str:
    try:
        said = messages.decode_server(answer.body[PREFIX:])
    except WireError:
        return ""
    return f"{said['name']} {said['version']}".strip() or "a gRPC server of the Open Inference Protocol"


def _parameters(answer: EndpointAnswer) -> dict[str, Any]:
    try:
        found = messages.decode_model(answer.body[PREFIX:]) if answer.status == OK else {}
    except WireError:
        return {}
    return {name: _value(text) for name, text in (found.get("parameters") or {}).items()}


def _value(text: str) -> Any:
    """As it would be in JSON: a message has texts alone, and "0" and "false" pass for something."""
    try:
        value = json.loads(text, parse_constant=str)
        return value if json.dumps(value) == text else text  # of a version 2.10 nothing is lost
    except (ValueError, RecursionError):
        return text


def _hosted(client: Client, target: Target) -> list[str]:
    """Versions of the model by the index, or by its metadata where the server has no index; a model may have none."""
    answer = _call(client, "RepositoryIndex")
    models = _read(client, answer, "RepositoryIndex", messages.decode_index) if answer.status == OK else []
    if named := target.indexed(client.url, models):
        return named
    answer = _call(client, "ModelMetadata", messages.encode_name(target.model))
    if answer.status == UNIMPLEMENTED:
        return []
    found = _read(client, answer, f"ModelMetadata of {target.model}", messages.decode_model)
    return [name for name in found["versions"] if name]
