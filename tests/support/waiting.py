"""Waits for what must come, as long as a busy machine may take for it; how long it takes is no test's matter."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")
PATIENCE_S = 600
"""How long something is waited for that comes at once: of a machine that is very busy, too, where four starts of Ray at
a time have taken three minutes each."""


def until(look: Callable[[], Found], seconds: float = PATIENCE_S, every_s: float = 0.1) -> Found:
    """What `look` finds, once that is true of anything."""
    give_up_s = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < give_up_s, f"waited {seconds:g} s in vain"
        time.sleep(every_s)
    return found


def clock_step_ns() -> int:
    """How far this machine's clock moves at once: a hundred nanoseconds, or 4 ms where the kernel has no finer one."""
    began_ns = now_ns = time.time_ns()
    while now_ns == began_ns:
        now_ns = time.time_ns()
    return now_ns - began_ns
