"""The Open Inference Protocol over gRPC as Triton streams it: one request, and a response for each piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
from tailrate.loadtest.engine.endpoint.credentials import Access
from tailrate.loadtest.engine.endpoint.http2.grpc_message import messages
from tailrate.loadtest.engine.endpoint.http2.replay import as_frames
from tailrate.loadtest.engine.endpoint.protocols import _template as template
from tailrate.loadtest.engine.endpoint.protocols._event_stream import Streamed, split
from tailrate.loadtest.engine.endpoint.protocols._token_stream import TokenStream, stamps
from tailrate.loadtest.engine.endpoint.protocols.oip_grpc import OipGrpc
from tailrate.loadtest.engine.endpoint.target import Endpoint
from tailrate.loadtest.engine.scenario.options import Option
from tailrate.serve.body.infer_grpc import decode_piece
from tailrate.serve.wire import Array, WireError

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.client import Client

INPUTS = (
    # of Triton's vLLM backend, of its TensorRT-LLM backend, and of models that take a text alone
    '{"text_input": ["$prompt.0"], "stream": [true], "sampling_parameters": ["{\\"max_tokens\\": ${max_tokens.0}}"]}',
    '{"text_input": [["$prompt.0"]], "stream": [[true]], "max_tokens": [["$max_tokens.0"]]}',
    '{"text_input": ["$prompt.0"]}',
    '{"text_input": [["$prompt.0"]]}',
)


@dataclass(frozen=True)
class OipGrpcStream(Streamed, OipGrpc):
    name = "oip-grpc-stream"
    what = "Open Inference Protocol over gRPC, a response for each piece (Triton's ModelStreamInfer)"
    call = "ModelStreamInfer"
    options: ClassVar[tuple[Option, ...]] = (
        Option("oip-grpc-stream-inputs", "", "the model's inputs over the scenario's, as JSON", at_start=True),
    )

    inputs: str = ""
    """Without it the usual ones are tried."""

    @classmethod
    def connect(cls, url: str, timeout_s: float, access: Access) -> Client:
        from tailrate.loadtest.engine.endpoint.grpc import GrpcStreamClient  # gevent, which no help page needs

        return GrpcStreamClient(url, timeout_s, access)

    @classmethod
    def spoken(cls, client: Client) -> str:
        return ""  # whoever has it speaks `oip-grpc`, and that is what is meant unless it is named

    def others(self) -> Iterator[OipGrpcStream]:
        return iter(()) if self.inputs else (replace(self, inputs=each) for each in INPUTS)

    def write(
        self, endpoint: Endpoint, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> tuple[bytes, dict[str, str]]:
        return super().write(endpoint, template.as_tensors(self.inputs, inputs) if self.inputs else inputs, outputs)

    def parsed(self, answer: EndpointAnswer) -> TokenStream:
        found, at_ns = TokenStream(), stamps(answer.arrivals)
        try:
            for message, end in messages(answer.body):
                error, outputs = decode_piece(message)
                if error:
                    found.flaw, found.finish = f"the stream holds an error: {error[:200]}", "error"
                else:
                    found.outputs(
                        [value for each in outputs.values() for value in each.reshape(-1).tolist()], at_ns(end)
                    )
        except WireError as problem:
            found.flaw = f"a message of the stream cannot be read: {problem.sentence}"
        except ValueError as problem:
            found.flaw = str(problem)
        return found

    def pieces(self, answer: EndpointAnswer) -> list[bytes]:
        return as_frames(answer.fields, split(answer))
