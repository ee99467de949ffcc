"""First in line for a core when an arrival is due.

On a machine that the endpoint shares, Linux lets whoever runs finish its slice of 3 ms or so, and arrivals become
that late. A thread that asks for short slices (`sched_setattr`, Linux 6.12 and newer, any user) is let in at
once, the more so with a raised nice value (where the user may). Whatever is refused is left as it was.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

SLICE_NS = 100_000
NICE = -10
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


def take_precedence() -> str:
    """Asks for short slices and a raised nice value for the calling thread; says what was granted."""
    number = SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return "as started"
    for nice in (min(NICE, os.nice(0)), os.nice(0)):
        wanted = _Attributes(size=ctypes.sizeof(_Attributes), nice=nice, runtime=SLICE_NS)
        if ctypes.CDLL(None).syscall(number, 0, ctypes.byref(wanted), 0) == 0:
            return f"nice {nice}, slices of {SLICE_NS / 1e6:g} ms"
    return "as started"
