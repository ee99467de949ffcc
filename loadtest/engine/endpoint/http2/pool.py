"""Connections to one server, each with many streams; one more is opened where all are full."""

from __future__ import annotations

import ssl
from socket import IPPROTO_TCP, TCP_NODELAY
from typing import TYPE_CHECKING

import gevent
from gevent import socket
from gevent.lock import Semaphore

from tailrate.loadtest.engine.endpoint.http2.connection import Connection
from tailrate.loadtest.engine.endpoint.http2.stream import BrokenError, Stream, UnprocessedError

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.stamping.sockets import Stamped

TRIES = 8
"""To send what a server said it did not look at: as it was about to close the connection, or since a stream whose end
we have seen was still one of the most that it takes."""
FIRST_WAIT_S = 1e-3
"""Before the second try; before each further one twice as long."""


class Pool:
    def __init__(self, host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None, streams: int) -> None:
        """`streams`: at most so many at once on a connection, where its peer allows as many."""
        self._address = (host, port)
        self._timeout_s = timeout_s
        self._tls = tls
        self._streams = streams
        self._connections: list[Connection] = []
        self._opening = Semaphore()
        if tls is not None:
            tls.set_alpn_protocols(["h2"])

    def exchange(self, block: bytes, stream: Stream) -> None:
        """An `OSError` where there is no whole answer."""
        for number in range(TRIES - 1):
            try:
                return self._free().exchange(block, stream)
            except UnprocessedError:
                gevent.sleep(FIRST_WAIT_S * 2**number)
        return self._free().exchange(block, stream)

    def _stamped(self, opened: socket.socket) -> Stamped | None:
        """What is read instead of it."""
        return None

    def greet(self) -> None:
        """Returns when there is a connection; an `OSError` where the other side does not greet as HTTP/2 does."""
        self._free()

    def close(self) -> None:
        while self._connections:
            self._connections.pop().close()

    def _free(self) -> Connection:
        if found := self._found():
            return found
        with self._opening:  # others wait for this one, rather than to open one each
            if found := self._found():
                return found
            found = self._connect()
            self._connections.append(found)
            return found

    def _found(self) -> Connection | None:
        for connection in self._connections:
            if connection.open:
                if connection.under_way < min(connection.most, self._streams):
                    return connection
            elif not connection.under_way:
                self._connections.remove(connection)
                connection.close()
                return self._found()
        return None

    def _connect(self) -> Connection:
        """One whose peer has said how many streams it takes: grpcio resets what comes before and is more."""
        fresh = socket.create_connection(self._address, self._timeout_s)
        fresh.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        if self._tls is not None:
            from gevent.ssl import SSLSocket

            fresh = SSLSocket(fresh, server_hostname=self._address[0], _context=self._tls)
            if fresh.selected_alpn_protocol() != "h2":
                fresh.close()
                raise BrokenError("the other side does not offer HTTP/2 (ALPN)")
        fresh.settimeout(None)  # each exchange has its own deadline
        found = Connection(fresh, self._tls is not None, self._stamped(fresh))
        try:
            found.greet()
        except BaseException:
            found.close()
            raise
        return found
