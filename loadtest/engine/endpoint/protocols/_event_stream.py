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
class Streamed(Protocol):
    """An answer that comes piece by piece, however it is carried."""

    streams = True

    def parsed(self, answer: EndpointAnswer) -> TokenStream:
        raise NotImplementedError

    def pieces(self, answer: EndpointAnswer) -> list[bytes]:
        """As a null server plays them back: its beginning, what came at each instant, and its end."""
        raise NotImplementedError

    def continued(self, said: Sequence[str], prompt: str) -> str:
        return "\n".join((*said, prompt))

    def flaw(self, answer: EndpointAnswer, header: Mapping[str, str]) -> str | None:
        stream = self._read(answer)
        return stream.flaw or (None if stream.content_ns else "the stream ended without any content")

    def read(self, answer: EndpointAnswer, header: Mapping[str, str], bad: Counter[str]) -> dict[str, Any]:
        return row_fields(header, bad) | self._read(answer).columns()

    def texts(self, answer: EndpointAnswer) -> Sequence[str]:
        return self._read(answer).text

    def outputs(self, answer: EndpointAnswer) -> dict[str, Array]:
        return {"text": np.array(["".join(self.texts(answer))], object)}

    def replayed(self, answer: EndpointAnswer) -> bytes:
        return b"".join(self.pieces(answer))

    def pace(self, answer: EndpointAnswer) -> tuple[tuple[int, float], ...]:
        """As the server gave it, so that the load side is tried with as many streams at once, and as long ones."""
        if not answer.arrivals:
            return ()
        ends = accumulate(map(len, self.pieces(answer)))
        at_ms = [(at_ns - answer.sent_ns) / 1e6 for at_ns, _ in answer.arrivals]
        return tuple(zip(ends, [*at_ms[:1], *at_ms, *at_ms[-1:]], strict=True))

    def _read(self, answer: EndpointAnswer) -> TokenStream:
        if answer.read is None:
            answer.read = self.parsed(answer)
        found: TokenStream = answer.read
        return found


@dataclass(frozen=True)
class EventStream(Streamed):
    """A subclass says with `take` what an event holds."""

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

    def flaw(self, answer: EndpointAnswer, header: Mapping[str, str]) -> str | None:
        if not header.get("content-type", STREAM).lower().startswith(STREAM):
            return f"the answer is no stream of events, but {header['content-type']}"
        if (coding := header.get("content-encoding", PLAIN)) != PLAIN:
            return f"the stream is {coding}, which nobody asked for"
        return super().flaw(answer, header)

    def parsed(self, answer: EndpointAnswer) -> TokenStream:
        return token_stream(answer.body, answer.arrivals, self.take)

    def pieces(self, answer: EndpointAnswer) -> list[bytes]:
        chunks = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in split(answer)]
        return [self._head(answer, "transfer-encoding: chunked"), *chunks, b"0\r\n\r\n"]


def split(answer: EndpointAnswer) -> list[bytes]:
    """Its body as it came."""
    return [answer.body[begin:end] for begin, end in pairwise([0, *(end for _, end in answer.arrivals)])]


def text_of(prompt: Array) -> str:
    value = np.asarray(prompt).reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else str(value)
