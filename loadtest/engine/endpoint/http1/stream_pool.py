"""Connections whose answers may come in pieces, each with its instant: what came stays known if the rest does not."""

from __future__ import annotations

from typing import Any

from tailrate.loadtest.engine.endpoint.http1.pool import Incoming, Pool, is_alive
from tailrate.loadtest.engine.endpoint.stamping.sockets import Stamped, Watched, ready_to_stamp, stamped

MOST_STREAM = 32 << 20
"""A hundred thousand tokens; of answers that last, many are in memory at once."""


class _Pieces(list[bytes]):
    """Of a body: each is stamped as it is put behind the others."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: Stamped | None = None
        self.arrivals: list[tuple[int, int]] = []
        self._size = 0

    def append(self, piece: bytes) -> None:
        if piece:
            assert self.connection is not None
            super().append(piece)
            self._size += len(piece)
            self.arrivals.append((self.connection.at_ns, self._size))


class Stream(Incoming):
    pieces: _Pieces

    def __init__(self) -> None:
        super().__init__()
        self.pieces = _Pieces()

    def begin(self, connection: Stamped) -> None:
        self.pieces.connection = connection
        connection.begin()

    def in_chunks(self) -> None:
        assert self.pieces.connection is not None
        self.pieces.connection.in_chunks()

    @property
    def at_ns(self) -> int:
        """When the last of it came."""
        assert self.pieces.connection is not None
        return self.pieces.connection.at_ns


class StreamPool(Pool):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._most_body = min(self._most_body, MOST_STREAM)
        ready_to_stamp(self._tls is not None)

    def _connect(self) -> Stamped:
        return stamped(super()._connect(), self._tls is not None)

    def _alive(self, connection: Stamped) -> bool:
        return connection.quiet if isinstance(connection, Watched) else is_alive(connection.inner)

    def _send(self, connection: Stamped, head: bytes, body: bytes) -> OSError | None:
        try:
            connection.sendall(head + body)
        except OSError as problem:
            return problem
        return None
