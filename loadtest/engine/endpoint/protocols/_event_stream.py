"""What all protocols have in common whose answers come piece by piece, as server-sent events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
from tailrate.loadtest.engine.endpoint.credentials import Access
from tailrate.loadtest.engine.endpoint.protocol import Protocol
from tailrate.loadtest.engine.endpoint.protocols._token_stream import TokenStream, token_stream
from tailrate.loadtest.engine.endpoint.row_fields import row_fields
from tailrate.loadtest.engine.endpoint.target import Endpoint
from tailrate.serve.wire import Array

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.client import Client

INFER = "/infer"
STREAM, PLAIN = "text/event-stream", "identity"


@dataclass(frozen=True)
class EventStream(Protocol):
    """A subclass says with `take` what an event holds."""

    streams = True

    @classmethod
    def connect(cls, url: str, timeout_s: float, access: Access) -> Client:
        from tailrate.loadtest.engine.endpoint.client import StreamClient  # gevent, which no help page needs

        return StreamClient(url, timeout_s, access)

    def take(self, found: TokenStream, said: Mapping[str, Any], at_ns: int) -> None:
        raise NotImplementedError

    def beside(self, found: Endpoint, path: str) -> Endpoint:
        """A model of the Open Inference Protocol at another path than that of `infer`."""
        there = found.path.removesuffix(INFER) + path
        return replace(found, protocol=self.name, path=there, settings=self.settings())

    def continued(self, said: Sequence[str], prompt: str) -> str:
        return "\n".join((*said, prompt))

    def flaw(self, answer: EndpointAnswer, header: Mapping[str, str]) -> str | None:
        if not header.get("content-type", STREAM).startswith(STREAM):
            return f"the answer is no stream of events, but {header['content-type']}"
        if (coding := header.get("content-encoding", PLAIN)) != PLAIN:
            return f"the stream is {coding}, which nobody asked for"
        stream = self._read(answer)
        return stream.flaw or (None if stream.content_ns else "the stream ended without any content")

    def read(self, answer: EndpointAnswer, header: Mapping[str, str], bad: Counter[str]) -> dict[str, Any]:
        return row_fields(header, bad) | self._read(answer).columns()

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
        return {"text": np.array(["".join(self._read(answer).text)], object)}

    def _read(self, answer: EndpointAnswer) -> TokenStream:
        if answer.read is None:
            answer.read = token_stream(answer.body, answer.arrivals, self.take)
        found: TokenStream = answer.read
        return found


def text_of(prompt: Array) -> str:
    value = np.asarray(prompt).reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else str(value)
