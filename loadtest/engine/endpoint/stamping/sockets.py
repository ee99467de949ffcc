"""Sockets whose answers come in pieces: each piece with the instant at which it could be read.

On Linux a thread of compiled code reads them (`reading_loop`). Elsewhere, and under TLS, whose records have to be put
together first, gevent does, and a stamp waits until it is that greenlet's turn.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections import deque
from contextlib import suppress
from socket import SHUT_RDWR
from typing import TYPE_CHECKING, Any

import numpy as np
from gevent import monkey
from gevent.event import Event
from gevent.hub import get_hub

from tailrate.loadtest.engine.endpoint.stamping import reading_loop as loop

if TYPE_CHECKING:
    from gevent import socket

READ = 1
ONE = (1).to_bytes(8, sys.byteorder)
WORDS = 1 << 16
SOCKETS = 1 << 16
"""File numbers are lower."""
_start_thread, _native_id = (monkey.get_original("_thread", name) for name in ("start_new_thread", "get_native_id"))
_sleep = monkey.get_original("time", "sleep")


class Stamped:
    """A connection as the HTTP reader knows one, whose `at_ns` is the instant of the piece that it gave last."""

    def __init__(self, inner: socket.socket) -> None:
        self.inner = inner
        self.at_ns = 0

    def begin(self) -> None:
        """Another exchange, whose end is not known by sight."""

    def sendall(self, data: bytes | memoryview) -> None:
        self.inner.sendall(data)

    def recv(self, size: int) -> bytes:
        piece: bytes = self.inner.recv(size)
        self.at_ns = time.monotonic_ns()
        return piece

    def in_chunks(self) -> None:
        """Its end is known by sight: that of chunks."""

    def close(self) -> None:
        self.inner.close()


class Watched(Stamped):
    """One that the thread reads."""

    def __init__(self, inner: socket.socket, stamper: Stamper) -> None:
        super().__init__(inner)
        self._stamper, self._file = stamper, inner.fileno()
        self._news = Event()
        self._lane, self._ring, self._stamps = stamper.watch(self._file, self._news)
        self._reads = 0
        self._over: BaseException | None = None
        """What ended the waiting, such as a deadline."""

    def recv(self, size: int) -> bytes:
        """One read's bytes, whatever the size. A deadline ends the waiting: what has come by then is still given."""
        lane = self._lane
        while lane[loop.READS] == self._reads:
            self._news.clear()
            if lane[loop.PAUSED]:
                lane[loop.PAUSED] = 0
                self._stamper.resume(self._file)
            elif lane[loop.READS] == self._reads:
                if self._over is not None:
                    raise self._over
                if lane[loop.ENDED] and lane[loop.READS] == self._reads:
                    return b""
                try:
                    self._news.wait()
                except BaseException as problem:
                    self._over = problem
        at = 2 * (self._reads & (loop.RING_READS - 1))
        self.at_ns, end = self._stamps[at], self._stamps[at + 1]
        first = lane[loop.TAKEN] & (loop.RING_BYTES - 1)
        piece = bytes(self._ring[first : end & (loop.RING_BYTES - 1) or loop.RING_BYTES])
        lane[loop.TAKEN] = end
        self._reads += 1
        lane[loop.READS_TAKEN] = self._reads
        return piece

    def in_chunks(self) -> None:
        self._lane[loop.EACH] = 0

    @property
    def quiet(self) -> bool:
        """Whether the other side has neither hung up nor sent what nobody asked for."""
        return not self._lane[loop.ENDED] and self._lane[loop.READS] == self._reads

    def begin(self) -> None:
        self._lane[loop.EACH] = 1

    def close(self) -> None:
        self._stamper.leave(self.inner)


class Stamper:
    """The thread, a lane for each socket, and what wakes who waits for news of one."""

    def __init__(self) -> None:
        self._lanes = np.zeros((SOCKETS, loop.FIELDS), np.int64)
        self._words = np.zeros(WORDS, np.int64)
        self._counts = np.zeros(4, np.int64)
        self._heard = 0
        self._rings: dict[int, tuple[Any, Any]] = {}
        """By file number, and kept: what the thread may still write to stays where it is."""
        self._news: dict[int, Event] = {}
        self._leaving: deque[tuple[int, socket.socket]] = deque()
        self._epoll = select.epoll()
        self._wake, self._nudge = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
        self._epoll.register(self._nudge, select.EPOLLIN | select.EPOLLET)
        events = np.zeros(loop.EVENTS * loop.EVENT_BYTES, np.uint8)
        clock, one = np.zeros(2, np.int64), np.ones(1, np.int64)
        at = np.array([each.ctypes.data for each in (events, clock, one)], np.int64)
        self._held = self._epoll.fileno(), self._wake, self._lanes, self._words, self._counts, events, clock, at, one
        self._counts[loop.STOP] = 1
        os.write(self._nudge, ONE)
        loop.read_always(*self._held[:-1])  # compiled, or read from where that is kept, before anything depends on it
        self._counts[loop.STOP] = 0
        self._in_line: tuple[int, int] | None = None
        self._thread = 0
        _start_thread(self._read, ())
        while not self._thread:
            _sleep(1e-4)
        self._watcher = get_hub().loop.io(self._wake, READ)
        self._watcher.start(self._hear)

    def _read(self) -> None:
        self._thread = _native_id()
        loop.read_always(*self._held[:-1])

    def _stand_in_line(self) -> None:
        """For a core as its owner does: behind a real-time thread an ordinary one would stamp when that is done."""
        mine = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
        if mine != self._in_line:
            self._in_line = mine
            with suppress(OSError):
                os.sched_setscheduler(self._thread, mine[0], os.sched_getparam(0))
                os.setpriority(os.PRIO_PROCESS, self._thread, mine[1])

    @property
    def thread(self) -> int:
        """As the system knows it."""
        return self._thread

    def watch(self, file: int, news: Event) -> tuple[Any, Any, Any]:
        """(lane, ring of bytes, ring of stamps) of a new connection."""
        self._stand_in_line()
        self._bury()
        if file >= SOCKETS:
            raise OSError(f"more than {SOCKETS} files are open")
        if file not in self._rings:
            self._rings[file] = np.zeros(loop.RING_BYTES, np.uint8), np.zeros(2 * loop.RING_READS, np.int64)
        ring, stamps = self._rings[file]
        self._lanes[file] = 0
        self._lanes[file, [loop.EACH, loop.BYTES_AT, loop.STAMPS_AT]] = 1, ring.ctypes.data, stamps.ctypes.data
        self._news[file] = news
        self._epoll.register(file, _edge())
        return memoryview(self._lanes[file]), memoryview(ring), memoryview(stamps)

    def resume(self, file: int) -> None:
        self._epoll.modify(file, _edge())

    def leave(self, inner: socket.socket) -> None:
        """Closes a connection, as soon as the thread cannot be reading it any more."""
        if (file := inner.fileno()) not in self._news:
            return
        self._epoll.unregister(file)
        del self._news[file]
        with suppress(OSError):
            inner.shutdown(SHUT_RDWR)
        self._counts[loop.LEFT] += 1
        self._leaving.append((int(self._counts[loop.LEFT]), inner))
        os.write(self._nudge, ONE)
        self._bury()

    def _bury(self) -> None:
        while self._leaving and self._leaving[0][0] <= self._counts[loop.PASSED]:
            self._leaving.popleft()[1].close()

    def _hear(self) -> None:
        os.read(self._wake, 8)
        until = int(self._counts[loop.WORDS])
        some = until - self._heard <= WORDS  # else the oldest are overwritten, and everybody has to look
        words = self._words[np.arange(self._heard, until) & (WORDS - 1)].tolist() if some else list(self._news)
        self._heard = until
        for file in words:
            if (news := self._news.get(file)) is not None:
                news.set()
        self._bury()


def _edge() -> int:
    """What the thread is woken by, once for each; not every system has the words."""
    return select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET


def can_watch(secure: bool) -> bool:
    return not secure and hasattr(select, "epoll")


def ready_to_stamp(secure: bool) -> None:
    """Compiling the thread's loop takes seconds, the first time."""
    if can_watch(secure):
        stamper()


def stamped(opened: socket.socket, secure: bool) -> Stamped:
    return Watched(opened, stamper()) if can_watch(secure) else Stamped(opened)


_stampers: dict[int, Stamper] = {}


def stamper() -> Stamper:
    """This process's own: one that was forked has none of its parent's threads."""
    if (found := _stampers.get(os.getpid())) is None:
        found = _stampers[os.getpid()] = Stamper()
    return found
