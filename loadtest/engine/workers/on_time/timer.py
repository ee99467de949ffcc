"""Waking at an instant of the monotonic clock, finer than gevent's timers.

gevent's timers end in `epoll_wait`, which counts whole milliseconds and rounds up. On Linux a timerfd is a file that
becomes readable at an absolute instant of CLOCK_MONOTONIC, the clock of `time.monotonic_ns`, so epoll wakes for
it at once. Elsewhere gevent's timer is set a little early and a thread sleeps for the rest, which is a few tenths of a
millisecond coarser (docs/log.md); the run's record says so.
"""

from __future__ import annotations

import ctypes
import os
import time

import gevent
from gevent import monkey
from gevent.event import Event
from gevent.hub import get_hub

CLOCK_MONOTONIC = 1
ABSOLUTE = 1
NONBLOCKING_CLOSE_ON_EXEC = 0o4000 | 0o2000000
READ = 1
EARLY_NS = 2_000_000
"""More than a timer of whole milliseconds is late; a ring waits no longer than this for the thread."""
LIBC = ctypes.CDLL(None, use_errno=True)

_sleep = monkey.get_original("time", "sleep")


def exact() -> bool:
    """Whether this system has a timerfd."""
    return hasattr(LIBC, "timerfd_create")


class _Spec(ctypes.Structure):
    """struct itimerspec: interval, then value."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns"))


class Alarm:
    """`sleep_until` yields to other greenlets even when the instant has passed; `ring` ends it early."""

    def __init__(self) -> None:
        self._rung = Event()
        self._file = LIBC.timerfd_create(CLOCK_MONOTONIC, NONBLOCKING_CLOSE_ON_EXEC) if exact() else -1
        if self._file >= 0:
            self._watcher = get_hub().loop.io(self._file, READ)

    def sleep_until(self, due_ns: int) -> None:
        if due_ns <= time.monotonic_ns():
            gevent.sleep(0)
        elif self._file < 0:
            self._rung.clear()
            self._rung.wait(max(0, due_ns - EARLY_NS - time.monotonic_ns()) / 1e9)
            while not self._rung.is_set() and (left_ns := due_ns - time.monotonic_ns()) > 0:
                get_hub().threadpool.apply(_sleep, (min(left_ns, EARLY_NS) / 1e9,))
        else:
            self._set(due_ns)
            get_hub().wait(self._watcher)
            os.read(self._file, 8)

    def ring(self) -> None:
        self._rung.set()
        if self._file >= 0:
            self._set(1)

    def close(self) -> None:
        if self._file >= 0:
            self._watcher.close()
            os.close(self._file)
            self._file = -1

    def _set(self, due_ns: int) -> None:
        spec = _Spec(0, 0, due_ns // 1_000_000_000, due_ns % 1_000_000_000)
        if LIBC.timerfd_settime(self._file, ABSOLUTE, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")
