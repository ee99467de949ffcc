"""One exchange over HTTP/2, and the ways in which it can end early."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gevent.hub import Waiter


class BrokenError(OSError):
    """The exchange, or the whole connection, ended before the answer was whole."""


class UnprocessedError(BrokenError):
    """The peer has said that it did nothing of this request, so it may be sent again."""


@dataclass(slots=True, eq=False)
class Stream:
    """An exchange: what is to go out, and what has come of it, whatever ends it."""

    body: bytes
    window: int = 0
    left: memoryview = field(default_factory=lambda: memoryview(b""))
    """Of the body, what the windows have not admitted yet."""
    waiter: Any = field(default_factory=Waiter)
    head: bytes = b""
    """Lines of the answer's header, `:status` first."""
    trailers: bytes = b""
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    """Where reads are stamped: the instant of each piece, and bytes that had come by then."""
    at_ns: int = 0
    """When the last of it came, header and trailers among it."""

    def begin(self, window: int) -> None:
        self.window, self.left, self.waiter = window, memoryview(self.body), Waiter()
