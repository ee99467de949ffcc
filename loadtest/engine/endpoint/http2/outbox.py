"""What goes out on a connection that many write to, none of whom waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from socket import MSG_DONTWAIT

import gevent
from gevent import socket


class Outbox:
    def __init__(self, opened: socket.socket, secure: bool, on_empty: Callable[[], None]) -> None:
        """`on_empty` is called when all is out that the socket did not take at once, and may write more."""
        self._socket = opened
        self._below = None if secure else opened._sock  # type: ignore[attr-defined]  # gevent's own would wait
        self._on_empty = on_empty
        self._left: deque[bytes] = deque()
        self._draining = False

    @property
    def empty(self) -> bool:
        return not self._left

    def write(self, data: bytes) -> None:
        if self._below is not None and not self._draining:
            try:
                data = data[self._below.send(data, MSG_DONTWAIT) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # the reader finds it, too, after what the peer has said before
        if data:
            self._left.append(data)
            if not self._draining:
                self._draining = True
                gevent.spawn(self._drain)

    def _drain(self) -> None:
        try:
            while self._left:
                data = self._left[0]
                self._socket.sendall(data)
                self._left.popleft()
                if not self._left:
                    self._on_empty()
            self._draining = False
        except OSError:  # nothing more goes out: it stays as if draining
            self._left.clear()
