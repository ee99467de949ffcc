"""First in line for a core when an arrival is due.

On a machine that the endpoint shares, Linux lets whoever runs finish its slice of some milliseconds, and arrivals
become that late. A real-time thread is let in at once (where the user may: root, or an `rtprio` limit; the kernel
keeps 5 % of each core from it). Else short slices (`sched_setattr`, Linux 6.12 and newer, any user) with a raised
nice value come near to that. Whatever is refused is left as it was; what was granted is in the run's record.

What the kernel keeps is taken at one go, and then nothing is sent for up to 50 ms. So a thread that is busy most of the
time, and leaves the kernel's own threads nothing else, is real-time no longer until it has less to do.
"""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent

from tailrate.loadtest.engine.workers.on_time import timer

SLICE_NS = 100_000
NICE = -10
REAL_TIME = "real-time"
LOOK_S = 0.1
BUSY, CALM = 0.6, 0.4
"""Shares of a core: from the first on a thread is real-time no longer, and below the second it is again."""
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


class _Attributes(ctypes.Structure):
    """struct sched_attr, as of its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def possible() -> bool:
    """Whether this system lets a process ask for it at all; Linux does."""
    return hasattr(os, "sched_setscheduler")


def lacks() -> list[str]:
    """What this system does not have of what keeps arrivals on time, a sentence each; on Linux there is none."""
    found = []
    if not timer.exact():
        found.append("no timerfd, so arrivals wait for a timer that is some tenths of a millisecond late")
    if not possible():
        found.append("no precedence for load processes, so arrivals wait for a core as any program does")
    return found


def promptness(granted: str) -> dict[str, Any]:
    """What is recorded of this machine's ways to send on time."""
    lacking = lacks()
    return {"priority": granted} | ({"lacks": lacking} if lacking else {})


@contextmanager
def precedence() -> Iterator[str]:
    """For the calling thread, as long as the block lasts; yields what was granted, in words."""
    if not possible():
        yield "as started"
        return
    before = os.sched_getscheduler(0), os.sched_getparam(0), os.nice(0)
    granted = _real_time() or _short_slices() or "as started"
    giving_way = gevent.spawn(_give_way) if granted == REAL_TIME else None
    try:
        yield granted
    finally:
        if giving_way is not None:
            giving_way.kill()
        os.sched_setscheduler(0, *before[:2])
        if os.nice(0) != before[2]:
            os.nice(before[2] - os.nice(0))


def _real_time() -> str | None:
    try:  # children, such as compilers and shells, start as ordinary processes
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return None
    return REAL_TIME


def _give_way() -> None:
    real_time, spent_s, at_s = True, time.thread_time(), time.monotonic()
    while True:
        gevent.sleep(LOOK_S)
        before_s, since_s = spent_s, at_s
        spent_s, at_s = time.thread_time(), time.monotonic()
        share = (spent_s - before_s) / (at_s - since_s)
        if real_time and share >= BUSY:
            real_time = False
            if not _short_slices():
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        elif not real_time and share < CALM:
            real_time = _real_time() is not None


def _short_slices() -> str | None:
    number = SCHED_SETATTR.get(platform.machine())
    for nice in (min(NICE, os.nice(0)), os.nice(0)) if number else ():
        wanted = _Attributes(size=ctypes.sizeof(_Attributes), nice=nice, runtime=SLICE_NS)
        if ctypes.CDLL(None).syscall(number, 0, ctypes.byref(wanted), 0) == 0:
            return f"nice {nice}, slices of {SLICE_NS / 1e6:g} ms"
    return None
