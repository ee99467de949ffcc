"""Whether the process that began to write something is still at it, though its number may be another's by now."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def began(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None where that is not known."""
    try:
        # the name of the program, in brackets, may hold anything
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def alive(pid: int, since: int | None = None) -> bool:
    """Whether a process of this number runs, the one that began then where that is known."""
    if pid < 1:  # these stand for groups of processes
        return False
    try:
        with suppress(PermissionError):  # somebody else's
            os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    return since is None or began(pid) in (None, since)
