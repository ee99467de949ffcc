"""gRPC's unary calls over HTTP/2, with a client's ways: failures of `send` are results, never exceptions.

grpcio beside gevent takes several times the processor time (docs/log.md has the figures), so this is written on the
same sockets as `http`.
A body is a message with gRPC's five bytes before it, both ways.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote

import gevent

from tailrate.loadtest.engine.endpoint.answer import MOST_ERROR, OK, EndpointAnswer
from tailrate.loadtest.engine.endpoint.client import Client, breaking_off
from tailrate.loadtest.engine.endpoint.credentials import ANYBODY, Access, address
from tailrate.loadtest.engine.endpoint.http2.hpack import literal
from tailrate.loadtest.engine.endpoint.http2.pool import Pool
from tailrate.loadtest.engine.endpoint.http2.stream import Stream

STATUSES = {
    0: OK, 3: "400", 4: "timeout", 5: "404", 7: "403", 8: "429", 12: "501", 14: "503", 16: "401",
}  # fmt: skip
"""What a row says of gRPC's; 500 of all others."""
NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
STREAMS = 100
"""At once on a connection: what gRPC's own clients hold to, unless a server allows fewer."""
BEGUN = b":status: 200"
REMEMBERED = 256


class GrpcClient(Client):
    """Any number of calls at once on few connections, each with one deadline that the server is told, too."""

    def __init__(self, host: str, timeout_s: float, access: Access = ANYBODY, streams: int = STREAMS) -> None:
        super().__init__(host, timeout_s, access)
        parts = address(host)
        secure = parts.scheme == "https"
        self._http2 = self._streams_of()(
            parts.hostname or "", parts.port or (443 if secure else 80), timeout_s, access.tls() if secure else None,
            streams,
        )  # fmt: skip
        token = {access.header.lower(): f"{'Bearer ' * (access.header == 'Authorization')}{access.token}"}
        begin = {":method": "POST", ":scheme": parts.scheme, ":authority": parts.netloc}
        always = {
            "te": "trailers",
            "content-type": "application/grpc",
            "user-agent": "tailrate",
            "grpc-timeout": f"{max(1, min(99_999_999, int(timeout_s * 1e3)))}m",
            **(token if access.token else {}),
        }
        self._begin, self._always = (b"".join(literal(*field) for field in some.items()) for some in (begin, always))
        self._blocks: dict[str, bytes] = {}
        """By path: what each header begins with."""

    def _exchange(self, method: str, path: str, body: bytes, headers: dict[str, str], answer: EndpointAnswer) -> None:
        """`body` is a message with its prefix; the method is gRPC's own, always."""
        if (block := self._blocks.get(path)) is None:
            block = self._blocks[path] = self._begin + literal(":path", path) + self._always
        if headers:
            block += b"".join([literal(*field) for field in headers.items()])
        self._call(block, Stream(body), answer)

    def _call(self, block: bytes, stream: Stream, answer: EndpointAnswer) -> None:
        self._http2.exchange(block, stream)
        self._fill_in(answer, stream)

    def _fill_in(self, answer: EndpointAnswer, stream: Stream) -> None:
        status, error = _outcome(stream.head, stream.trailers)
        if error is not None:
            error = self.access.masked(error.encode()).decode()
        answer.status, answer.error = status, error
        answer.fields, answer.body = stream.head + stream.trailers, b"".join(stream.pieces)

    @staticmethod
    def _streams_of() -> type[Pool]:
        return Pool

    def speaks(self, timeout_s: float) -> bool:
        """Whether there is HTTP/2, as far as its greeting tells."""
        try:
            with gevent.Timeout(timeout_s, TimeoutError()):
                self._http2.greet()
        except OSError:
            return False
        return True

    def close(self) -> None:
        super().close()
        self._http2.close()


class GrpcStreamClient(GrpcClient):
    """One whose answers come in several messages, each with its instant."""

    @staticmethod
    def _streams_of() -> type[Pool]:
        from tailrate.loadtest.engine.endpoint.http2.stream_pool import StreamPool  # numba, which no other client needs

        return StreamPool

    def _call(self, block: bytes, stream: Stream, answer: EndpointAnswer) -> None:
        def fill() -> None:
            self._fill_in(answer, stream)
            answer.arrivals = stream.arrivals
            if not answer.done_ns and stream.head.startswith(BEGUN):  # so far nothing was wrong
                answer.status, answer.error = OK, None

        with breaking_off(answer, fill):
            self._http2.exchange(block, stream)
            answer.done_ns = stream.at_ns


@lru_cache(REMEMBERED)
def _outcome(head: bytes, trailers: bytes) -> tuple[str, str | None]:
    """(a row's status, what is wrong)"""
    first, _, lines = head.decode("latin-1").partition("\r\n")
    http = first.removeprefix(":status: ")
    said = {
        name: value
        for name, _, value in (line.partition(": ") for line in (lines + trailers.decode("latin-1")).split("\r\n"))
        if name.startswith("grpc-")
    }
    text = said.get("grpc-status", "")
    if not text.isdigit() or not text.isascii() or len(text) > 4:
        if http == OK:
            return "500", "the answer has no grpc-status"
        return (http if http.isdigit() and len(http) == 3 else "500"), f"the answer is not gRPC, but HTTP's {http[:32]}"
    code = int(text)
    if not code:
        return OK, None
    name = NAMES[code] if code < len(NAMES) else text
    message = unquote(said.get("grpc-message", ""), errors="replace")
    return STATUSES.get(code, "500"), f"{name}: {message}"[:MOST_ERROR] if message else name
