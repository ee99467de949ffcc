"""The Open Inference Protocol over HTTP, as Triton, KServe, MLServer and tailrate's own server speak it.

Versions are optional in it, and so are the index of models, shapes in metadata, and tensors as bytes behind the JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tailrate.loadtest.engine.endpoint.answer import OK, EndpointAnswer, error_sentence
from tailrate.loadtest.engine.endpoint.protocol import Protocol
from tailrate.loadtest.engine.endpoint.protocols import _stated
from tailrate.loadtest.engine.endpoint.target import Endpoint, Target, called
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve import wire
from tailrate.serve.body.request import encode_infer
from tailrate.serve.body.result import decode_result, result_flaw
from tailrate.serve.wire import Array

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.client import Client

NO_SUCH_PATH = ("404", "405", "501")
"""What a server answers where it lacks a part of the protocol that not all have."""


@dataclass(frozen=True)
class Oip(Protocol):
    name = "oip"
    what = "Open Inference Protocol over HTTP (Triton, KServe, MLServer, tailrate serve)"
    binary: bool = True
    """Tensors go as bytes, not as JSON."""

    @classmethod
    def spoken(cls, client: Client) -> str:
        try:
            found = client.get_json(wire.SERVER)
        except ScenarioError:
            return ""
        return _named(found) if isinstance(found, dict) and "name" in found else ""

    def find(self, client: Client, target: Target) -> list[Endpoint]:
        model, version, hosted = target.model, target.version, _hosted(client, target)
        try:
            return [self._endpoint(client, target, each) for each in target.versions(client.url, hosted)]
        except ScenarioError as problem:
            if hosted or not version:
                raise
            raise ScenarioError(f"{problem}; it names no version of '{model}': leave {version} out") from None

    def _endpoint(self, client: Client, target: Target, version: str) -> Endpoint:
        path = wire.model_path(target.model, version or None)
        ready = client.send("GET", f"{client.prefix}{path}/ready")
        name = called(target.model, version)
        if ready.status != OK and ready.status not in NO_SUCH_PATH:
            raise ScenarioError(f"{name} at {client.url} is not ready: {error_sentence(ready.body)}")
        try:
            said = client.get_json(path)
        except ScenarioError:
            if ready.status != OK:  # neither way says that it is there
                raise
            said = {}
        parameters = said.get("parameters") if isinstance(said, dict) else None
        path = client.prefix + wire.infer_path(target.model, version or None)
        return self.endpoint(client, target, path, version, dict(parameters) if isinstance(parameters, dict) else {})

    def others(self) -> Iterator[Oip]:
        if self.binary:
            yield replace(self, binary=False)

    def write(
        self, endpoint: Endpoint, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> tuple[bytes, dict[str, str]]:
        return encode_infer(inputs, outputs=outputs, binary=self.binary)

    def flaw(self, answer: EndpointAnswer, header: Mapping[str, str]) -> str | None:
        return result_flaw(answer.body, header.get("content-type", ""), header.get(wire.HEADER_LENGTH))

    def outputs(self, answer: EndpointAnswer) -> dict[str, Array]:
        return decode_result(answer.body, wire.parse_count(answer.headers().get(wire.HEADER_LENGTH, "")))

    def server(self, client: Client) -> dict[str, Any]:
        return _stated.server(client)

    def parameters(self, client: Client, endpoint: Endpoint) -> dict[str, Any]:
        return _stated.parameters(client, endpoint.model, endpoint.version)

    def events(self, client: Client, endpoint: Endpoint) -> dict[str, int] | None:
        return _stated.events(client, endpoint)


def _named(server: Mapping[str, Any]) -> str:
    return f"{server['name']} {server.get('version') or ''}".strip()


def _hosted(client: Client, target: Target) -> list[str]:
    """Versions of the model by the index, or by its metadata where the server has no index; a model may have none."""
    try:
        index = client.get_json(wire.INDEX, "POST", b"{}")  # MLServer wants a body
    except ScenarioError:
        index = None
    models = [item for item in index if isinstance(item, dict) and "name" in item] if isinstance(index, list) else []
    if named := target.indexed(client.url, models):
        return named
    try:
        found = client.get_json(wire.model_path(target.model))
    except ScenarioError:  # whether it is there at all is asked for next
        return []
    versions = found.get("versions") if isinstance(found, dict) else None
    return [str(name) for name in versions if name] if isinstance(versions, list) else []
