"""Pages of metrics that no server should give: in threads of this process, one kind to a port."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"


def whole(body: bytes, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body


def hangs(connection: socket.socket) -> None:
    """Takes the request and says nothing."""
    connection.recv(1)


def drips(connection: socket.socket) -> None:
    """A byte of its header now and then, each well within a socket's own limit."""
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def drips_body(connection: socket.socket) -> None:
    """Of a body without a length, so that hanging up would end a whole answer."""
    connection.sendall(HEAD)
    while True:
        connection.sendall(b"up_to 1\n")
        time.sleep(0.05)


def never_ends(connection: socket.socket) -> None:
    connection.sendall(HEAD)
    while True:
        connection.sendall(b'nv_inference_count{model="a"} 1\n' * 4096)


def large(connection: socket.socket) -> None:
    """Ten thousand series that a preset knows."""
    lines = (f'nv_inference_count{{model="m{n}",version="1"}} {n}\n'.encode() for n in range(10_000))
    connection.sendall(whole(b"".join(lines)))


def says(answer: bytes):
    return lambda connection: connection.sendall(answer)


@contextmanager
def serving(answer, asked: list[bytes] | None = None) -> Iterator[str]:
    """The URL of a page that answers so, and notes what it is asked; whatever is under way is cut off at the end."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_: list[socket.socket] = []

    def one(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(65536)
            if asked is not None:
                asked.append(request)
            answer(connection)

    def forever() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                open_.append(connection)
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    threading.Thread(target=forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for each in (listener, *open_):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
