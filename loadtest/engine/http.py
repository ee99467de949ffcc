"""HTTP/1.1 over gevent's sockets, as little of it as one exchange takes: kept connections, one answer at a time.

Whoever sends thousands of requests per second from one Python process pays for every layer above the socket, and what
it pays is lateness (docs/log.md has the figures). Bodies have a length or come in chunks; there are no redirects, no
cookies and no decompression here.
"""

from __future__ import annotations

import re
from socket import IPPROTO_TCP, MSG_DONTWAIT, MSG_PEEK, TCP_NODELAY
from urllib.parse import SplitResult

from gevent import socket

from loadtest.engine.access import ANYBODY, Access

BLOCK = 1 << 18
TOGETHER = 1 << 16
"""Up to this size head and body go out in one call; beyond it a copy would cost more than a second one."""
END = b"\r\n\r\n"
MOST_HEAD = 1 << 16

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)


class BadAnswerError(OSError):
    """What came back is no HTTP, or ended in the middle."""


class Pool:
    """As many connections as there are exchanges at once; the one that was used last is used first."""

    def __init__(self, url: SplitResult, timeout_s: float, access: Access = ANYBODY) -> None:
        secure = url.scheme == "https"
        self._address = (url.hostname or "", url.port or (443 if secure else 80))
        self._tls = access.tls() if secure else None
        self._timeout_s = timeout_s
        self._idle: list[socket.socket] = []
        self.fields = f"Host: {url.netloc}\r\n{access.line}".encode("latin-1")
        """What each request's header begins with."""

    def exchange(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes, bytes]:
        """(status, header fields, body); an `OSError` where there is no whole answer."""
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        length = f"Content-Length: {len(body)}\r\n" if body or method != "GET" else ""
        head = f"{method} {path} HTTP/1.1\r\n".encode("latin-1")
        head += self.fields + f"{fields}{length}\r\n".encode("latin-1")
        connection = self._take()
        try:
            if len(body) <= TOGETHER:
                connection.sendall(head + body)
            else:
                connection.sendall(head)
                connection.sendall(body)
            status, found, whole, keep = _answer(connection)
        except BaseException:  # also a deadline: what comes on this connection later is nobody's
            connection.close()
            raise
        if keep:
            self._idle.append(connection)
        else:
            connection.close()
        return status, found, whole

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> socket.socket:
        while self._idle:
            connection = self._idle.pop()
            if _alive(connection):
                return connection
            connection.close()
        fresh = socket.create_connection(self._address, self._timeout_s)
        fresh.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        if self._tls is None:
            return fresh
        from gevent.ssl import SSLSocket

        return SSLSocket(fresh, server_hostname=self._address[0], _context=self._tls)


def _alive(connection: socket.socket) -> bool:
    """Whether the other side has neither closed it nor sent what nobody asked for, such as TLS's word that it closes.

    The socket below TLS is looked at. One that is closed in the moment in which it is used is not seen, and its request
    fails: none is ever sent again, since nobody could tell whether the endpoint had done the first.
    """
    try:
        connection._sock.recv(1, MSG_PEEK | MSG_DONTWAIT)  # type: ignore[attr-defined]  # gevent's own would wait
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _answer(connection: socket.socket) -> tuple[int, bytes, bytes, bool]:
    """(status, header fields, body, whether the connection can be used again)"""
    data = b""
    while True:
        while (end := data.find(END)) < 0:
            if len(data) > MOST_HEAD:
                raise BadAnswerError("the answer's header does not end")
            data += _more(connection)
        head, data = data[: end + 2], data[end + 4 :]
        if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
            raise BadAnswerError("the answer is not HTTP/1.1")
        status = int(head[9:12])
        if status >= 200:
            break  # else it only says that it goes on
    keep = head.startswith(b"HTTP/1.1") and _CLOSE.search(head) is None
    if status in (204, 304):
        return status, head, b"", keep
    if length := _LENGTH.search(head):
        missing = int(length[1]) - len(data)
        if missing > 0:
            pieces = [data]
            while missing > 0:
                pieces.append(_more(connection))
                missing -= len(pieces[-1])
            data = b"".join(pieces)
        return status, head, data, keep and not missing
    if _CHUNKED.search(head):
        return status, head, _chunks(connection, data), keep
    while piece := connection.recv(BLOCK):  # to its end
        data += piece
    return status, head, data, False


def _chunks(connection: socket.socket, data: bytes) -> bytes:
    pieces: list[bytes] = []
    while True:
        while (end := data.find(b"\r\n")) < 0:
            data += _more(connection)
        try:
            size = int(data[:end].partition(b";")[0], 16)
        except ValueError:
            raise BadAnswerError("a chunk of the answer has no size") from None
        whole = end + 2 + size + 2
        while len(data) < whole:
            data += _more(connection)
        if not size:
            return b"".join(pieces)  # trailers, which nobody sends, would end the connection at its next use
        pieces.append(data[end + 2 : whole - 2])
        data = data[whole:]


def _more(connection: socket.socket) -> bytes:
    piece: bytes = connection.recv(BLOCK)
    if not piece:
        raise BadAnswerError("the connection was closed before the answer was whole")
    return piece
