"""Triton's `generate_stream`: a JSON object of inputs and parameters in, one of outputs in each event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tailrate.loadtest.engine.endpoint.protocols import _template as template
from tailrate.loadtest.engine.endpoint.protocols._event_stream import STREAM, EventStream
from tailrate.loadtest.engine.endpoint.protocols._token_stream import TokenStream
from tailrate.loadtest.engine.endpoint.protocols.oip import Oip
from tailrate.loadtest.engine.endpoint.target import Endpoint, Target
from tailrate.loadtest.engine.scenario.options import Option
from tailrate.serve.wire import Array

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.client import Client

BODY = '{"text_input": "$prompt.0", "max_tokens": "$max_tokens.0", "stream": true}'
OUTPUT = "text_output"


@dataclass(frozen=True)
class TritonGenerate(EventStream):
    name = "triton-generate"
    what = "Triton's generate_stream, an object of outputs in each event"
    options: ClassVar[tuple[Option, ...]] = (
        Option("triton-generate-body", BODY, "the body over the scenario's inputs", at_start=True),
        Option(
            "triton-generate-output",
            OUTPUT,
            "the output that holds an event's text [default: text_output]",
            at_start=True,
        ),
    )

    body: str = BODY
    output: str = OUTPUT

    def find(self, client: Client, target: Target) -> list[Endpoint]:
        return [self.beside(found, "/generate_stream") for found in Oip().find(client, target)]

    def write(
        self, endpoint: Endpoint, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> tuple[bytes, dict[str, str]]:
        body = template.as_json(self.body, inputs)
        return body, {"content-type": "application/json", "accept": STREAM}

    def take(self, found: TokenStream, said: Mapping[str, Any], at_ns: int) -> None:
        held = said.get(self.output)
        found.outputs(held if isinstance(held, list) else [] if held is None else [held], at_ns)
