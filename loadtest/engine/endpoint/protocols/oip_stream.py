"""The Open Inference Protocol as MLServer streams it: the request of `infer`, and a response in each event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrate.loadtest.engine.endpoint.protocols._event_stream import STREAM, EventStream
from tailrate.loadtest.engine.endpoint.protocols._token_stream import TokenStream, list_of
from tailrate.loadtest.engine.endpoint.protocols.oip import Oip
from tailrate.loadtest.engine.endpoint.target import Endpoint, Target
from tailrate.serve.body.request import encode_infer
from tailrate.serve.wire import Array

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.client import Client


@dataclass(frozen=True)
class OipStream(EventStream):
    name = "oip-stream"
    what = "Open Inference Protocol, a response in each event (MLServer's infer_stream)"

    def find(self, client: Client, target: Target) -> list[Endpoint]:
        return [self.beside(found, "/infer_stream") for found in Oip().find(client, target)]

    def write(
        self, endpoint: Endpoint, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> tuple[bytes, dict[str, str]]:
        body, header = encode_infer(inputs, outputs=outputs, binary=False)
        return body, {**header, "accept": STREAM}

    def take(self, found: TokenStream, said: Mapping[str, Any], at_ns: int) -> None:
        outputs = [output for output in list_of(said, "outputs") if isinstance(output, dict)]
        found.outputs([value for output in outputs for value in list_of(output, "data")], at_ns)
