"""HTTP/1.1 over gevent's sockets, as little of it as one exchange takes: kept connections, one answer at a time.

Whoever sends thousands of requests per second from one Python process pays for every layer above the socket, and what
it pays is lateness (docs/log.md has the figures). Bodies have a length or come in chunks; there are no redirects, no
cookies and no decompression here.
"""

from __future__ import annotations

import re
import ssl
from select import POLLIN
from socket import IPPROTO_TCP, MSG_DONTWAIT, MSG_PEEK, TCP_NODELAY
from typing import Any, Protocol
from urllib.parse import SplitResult

import gevent
from gevent import monkey, socket
from gevent.select import select

BLOCK = 1 << 18
TOGETHER = 1 << 16
"""Up to this size head and body go out in one call; beyond it a copy would cost more than a second one."""
END = b"\r\n\r\n"
MOST_HEAD = 1 << 16
MOST_BODY = 256 << 20
"""What would fill the memory is no answer."""

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)
_SIZE = re.compile(rb"0*[0-9a-fA-F]{1,8}")
_CLOSE = re.compile(rb"\r\nconnection:[^\r]*\bclose\b", re.IGNORECASE)
_poll = monkey.get_original("select", "poll")


class BadAnswerError(OSError):
    """What came back is no HTTP, or ended in the middle."""


class Connection(Protocol):
    """What an answer is read from."""

    def recv(self, size: int, /) -> bytes: ...


class Incoming:
    """An answer as far as it has come: what was there when a deadline or a broken connection ended it stays known."""

    def __init__(self) -> None:
        self.status = 0
        self.head = b""
        self.pieces: list[bytes] = []
        """Of the body."""

    def begin(self, connection: Any) -> None:
        """Its request is about to be sent there."""

    def in_chunks(self) -> None:
        """Its body comes in chunks, so what ends it is known by sight."""


class Pool:
    """As many connections as there are exchanges at once; the one that was used last is used first."""

    def __init__(
        self,
        url: SplitResult,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        line: str = "",
        most_body: int = MOST_BODY,
    ) -> None:
        """`line`: a header field that each request has, with its end."""
        self._address = (url.hostname or "", url.port or (443 if tls else 80))
        self._tls = tls
        self._timeout_s = timeout_s
        self._most_body = most_body
        self._idle: list[Any] = []
        self.fields = f"Host: {url.netloc}\r\n{line}".encode("latin-1")
        """What each request's header begins with."""

    def exchange(self, method: str, path: str, headers: dict[str, str], body: bytes, answer: Incoming) -> None:
        """Fills in the answer; an `OSError` where it is not whole."""
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        length = f"Content-Length: {len(body)}\r\n" if body or method != "GET" else ""
        head = f"{method} {path} HTTP/1.1\r\n".encode("latin-1")
        head += self.fields + f"{fields}{length}\r\n".encode("latin-1")
        connection = self._take()
        try:
            if len(body) <= TOGETHER:
                head, body = head + body, b""
            answer.begin(connection)
            unsent = self._send(connection, head, body)
            keep = _read_answer(connection, unsent, self._most_body, answer)
        except BaseException:  # also a deadline: what comes on this connection later is nobody's
            connection.close()
            raise
        if keep:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if self._alive(connection):
                return connection
            connection.close()
        return self._connect()

    def _connect(self) -> Any:
        fresh = connected(self._address, self._timeout_s)
        fresh.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        if self._tls is None:
            return fresh
        from gevent.ssl import SSLSocket

        return SSLSocket(fresh, server_hostname=self._address[0], _context=self._tls)

    def _alive(self, connection: Any) -> bool:
        return is_alive(connection)

    def _send(self, connection: Any, head: bytes, body: bytes) -> OSError | None:
        return _send(connection, head, body, self._tls is not None)


def connected(address: tuple[str, int], timeout_s: float) -> socket.socket:
    """A number is not looked up as a name is: by threads, for which a hundred connections at once waited 30 ms."""
    for kind in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(kind, address[0])
        except (OSError, ValueError):
            continue
        fresh = socket.socket(kind, socket.SOCK_STREAM)
        fresh.settimeout(timeout_s)
        try:
            fresh.connect(address)
        except BaseException:
            fresh.close()
            raise
        return fresh
    return socket.create_connection(address, timeout_s)


def is_alive(connection: socket.socket) -> bool:
    """Whether the other side has neither closed it nor sent what nobody asked for, such as TLS's word that it closes.

    The socket below TLS is looked at. One that is closed in the moment in which it is used is not seen, and its request
    fails: none is ever sent again, since nobody could tell whether the endpoint had done the first.
    """
    news = _poll()
    news.register(connection._sock, POLLIN)  # type: ignore[attr-defined]  # gevent's own would wait
    return not news.poll(0)


def _send(connection: socket.socket, head: bytes, body: bytes, secure: bool) -> OSError | None:
    """Until all is sent or the other side has answered, which it may do before it has read a large body.

    It may hang up then, too. What it said can still be read, so what went wrong is handed back.
    """
    below = connection._sock  # type: ignore[attr-defined]  # gevent's own would wait until all is sent
    try:
        for part in (head, body):
            left = memoryview(part)
            while left and not secure:
                try:
                    left = left[below.send(left, MSG_DONTWAIT) :]
                except BlockingIOError:
                    if select([connection], [connection], [])[0]:
                        if below.recv(10, MSG_PEEK | MSG_DONTWAIT)[9:] != b"1":  # else it only says that it goes on
                            return BadAnswerError("the other side stopped reading before all was sent")
                        break
            if left:
                connection.sendall(left)
        if not secure:
            socket.wait(connection._read_event)  # type: ignore[attr-defined]  # else a read finds nothing yet
    except OSError as problem:
        return problem
    return None


def _read_answer(connection: Connection, unsent: OSError | None, most: int, answer: Incoming) -> bool:
    """Fills in the answer; whether the connection can be used again.

    `unsent`: why not all of the request went out; without an answer it is why there is none.
    """
    data = b""
    while True:
        while (end := data.find(END)) < 0:
            if len(data) > MOST_HEAD:
                raise BadAnswerError("the answer's header does not end")
            try:
                data += _more(connection)
            except OSError as problem:
                raise unsent or problem from None
        head, data = data[: end + 2], data[end + 4 :]
        if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit() or head[9:10] == b"0":
            raise BadAnswerError("the answer is not HTTP/1.1")
        status = int(head[9:12])
        if status >= 200:
            break  # else it only says that it goes on
    answer.status, answer.head, pieces = status, head, answer.pieces
    keep = head.startswith(b"HTTP/1.1") and _CLOSE.search(head) is None and unsent is None
    if status in (204, 304):
        return keep and not data
    said = _LENGTH.search(head)
    if _CHUNKED.search(head):  # wins over a length, beside which it is somebody's mischief
        answer.in_chunks()
        return not _chunks(connection, data, pieces, most) and keep and said is None
    if said:
        length = int(said[1]) if len(said[1]) < 16 else most + 1
        _bounded(length, most)
        return not _take(connection, data, length, pieces) and keep
    pieces.append(data)
    total = len(data)
    while piece := _read(connection):  # to its end
        pieces.append(piece)
        total += len(piece)
        _bounded(total, most)
    return False


def _bounded(size: int, most: int) -> None:
    if size > most:
        raise BadAnswerError(f"the answer is larger than {most >> 20} MiB")


def _chunks(connection: Connection, data: bytes, pieces: list[bytes], most: int) -> bytes:
    """What comes behind them."""
    total = 0
    while True:
        line, data = _line(connection, data)
        said = line.partition(b";")[0].strip()
        if not _SIZE.fullmatch(said):
            raise BadAnswerError("a chunk of the answer has no size")
        size = int(said, 16)
        total += size
        _bounded(total, most)
        if not size:
            while line:  # trailers
                line, data = _line(connection, data)
            return data
        end, data = _line(connection, _take(connection, data, size, pieces))
        if end:
            raise BadAnswerError("a chunk of the answer is longer than its size")


def _line(connection: Connection, data: bytes) -> tuple[bytes, bytes]:
    """(line, what comes behind it)"""
    while (end := data.find(b"\r\n")) < 0:
        if len(data) > MOST_HEAD:
            raise BadAnswerError("a line of the answer does not end")
        data += _more(connection)
    return data[:end], data[end + 2 :]


def _take(connection: Connection, data: bytes, size: int, pieces: list[bytes]) -> bytes:
    """So many bytes into the pieces; what comes behind them."""
    while len(data) < size:
        pieces.append(data)
        size -= len(data)
        data = _more(connection)
    pieces.append(data[:size])
    return data[size:]


def _more(connection: Connection) -> bytes:
    if not (piece := _read(connection)):
        raise BadAnswerError("the connection was closed before the answer was whole")
    return piece


def _read(connection: Connection) -> bytes:
    piece: bytes = connection.recv(BLOCK)
    if len(piece) == BLOCK:  # more is there already, and nobody else would have a turn until it is read
        gevent.sleep(0)
    return piece
