"""What chat and completions of OpenAI's API have in common: an answer comes token by token, as server-sent events."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
from tailrate.loadtest.engine.endpoint.credentials import Access
from tailrate.loadtest.engine.endpoint.protocol import Protocol
from tailrate.loadtest.engine.endpoint.protocols._openai_models import known, model_of
from tailrate.loadtest.engine.endpoint.protocols._token_stream import TokenStream, token_stream
from tailrate.loadtest.engine.endpoint.row_fields import row_fields
from tailrate.loadtest.engine.endpoint.target import Endpoint, Target
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve.wire import Array

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.client import Client

YES, NO = "yes", "no"
STREAM, PLAIN = "text/event-stream", "identity"


@dataclass(frozen=True)
class TextStream(Protocol):
    """Its inputs are `prompt`, a text or a list of messages as JSON, and `max_tokens`."""

    streams = True
    path: ClassVar[str] = ""
    limits: ClassVar[tuple[str, ...]] = ("max_tokens",)
    """What the field for the most tokens is called, the usual one first."""

    limit: str = "max_tokens"
    force: str = YES
    """Whether every answer is to be as long as asked for, by vLLM's `ignore_eos` and `min_tokens`."""
    extra: str = ""
    """Fields of the body beside ours, as JSON."""

    @classmethod
    def connect(cls, url: str, timeout_s: float, access: Access) -> Client:
        from tailrate.loadtest.engine.endpoint.client import StreamClient  # gevent, which no help page needs

        return StreamClient(url, timeout_s, access)

    def find(self, client: Client, target: Target) -> list[Endpoint]:
        return [self.endpoint(client, known(client, target), client.prefix + self.path)]

    def others(self) -> Iterator[Self]:
        """Servers differ in what they call the limit, and not all know vLLM's fields."""
        tried = [(limit, force) for force in (self.force, NO) for limit in self.limits]
        for limit, force in dict.fromkeys(tried):
            if (limit, force) != (self.limit, self.force):
                yield replace(self, limit=limit, force=force)

    # ---- a request and its answer

    def asks(self, prompt: str) -> dict[str, Any]:
        """The body's fields that hold what is asked."""
        raise NotImplementedError

    def write(
        self, endpoint: Endpoint, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> tuple[bytes, dict[str, str]]:
        if "prompt" not in inputs:
            raise ScenarioError(f"{self.name} takes an input 'prompt', and this scenario has {', '.join(inputs)}")
        body: dict[str, Any] = {"model": model_of(endpoint)} | self.asks(_text(inputs["prompt"]))
        body |= {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
        if "max_tokens" in inputs:
            body[self.limit] = most = int(np.asarray(inputs["max_tokens"]).reshape(-1)[0])
            if self.force == YES:
                body |= {"ignore_eos": True, "min_tokens": most}
        body |= json.loads(self.extra or "{}")
        fields = {"content-type": "application/json", "accept": STREAM}
        return json.dumps(body, separators=(",", ":")).encode(), fields

    def flaw(self, answer: EndpointAnswer, header: Mapping[str, str]) -> str | None:
        if not header.get("content-type", STREAM).startswith(STREAM):
            return f"the answer is no stream of events, but {header['content-type']}"
        if (coding := header.get("content-encoding", PLAIN)) != PLAIN:
            return f"the stream is {coding}, which nobody asked for"
        stream = _read(answer)
        return stream.flaw or (None if stream.content_ns else "the stream ended without any content")

    def read(self, answer: EndpointAnswer, header: Mapping[str, str], bad: Counter[str]) -> dict[str, Any]:
        return row_fields(header, bad) | _read(answer).columns()

    def replayed(self, answer: EndpointAnswer) -> bytes:
        return b"".join(self._pieces(answer))

    def pace(self, answer: EndpointAnswer) -> tuple[tuple[int, float], ...]:
        """As the server gave it, so that the load side is tried with as many streams at once, and as long ones."""
        if not answer.arrivals:
            return ()
        ends = accumulate(map(len, self._pieces(answer)))
        at_ms = [(at_ns - answer.sent_ns) / 1e6 for at_ns, _ in answer.arrivals]
        return tuple(zip(ends, [*at_ms[:1], *at_ms, *at_ms[-1:]], strict=True))

    def _pieces(self, answer: EndpointAnswer) -> list[bytes]:
        """Its head, a chunk for each piece, and their end."""
        bounds = pairwise([0, *(end for _, end in answer.arrivals)])
        chunks = [b"%x\r\n%s\r\n" % (end - begin, answer.body[begin:end]) for begin, end in bounds]
        return [self._head(answer, "transfer-encoding: chunked"), *chunks, b"0\r\n\r\n"]

    def outputs(self, answer: EndpointAnswer) -> dict[str, Array]:
        return {"text": np.array(["".join(_read(answer).text)], object)}


def _read(answer: EndpointAnswer) -> TokenStream:
    if answer.read is None:
        answer.read = token_stream(answer.body, answer.arrivals)
    found: TokenStream = answer.read
    return found


def _text(prompt: Array) -> str:
    value = np.asarray(prompt).reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else str(value)
