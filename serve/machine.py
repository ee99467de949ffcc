"""The machine that this process is on: cores that it may use, the CPU's name, and the folder for what is kept there."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def cores() -> int:
    """Those that this process may use; where the system binds none to any (macOS), all that there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder() -> Path:
    """For what was made once, by servers as by the load side: `TAILRATE_CACHE`, or `~/.cache/tailrate`."""
    named = os.environ.get("TAILRATE_CACHE")
    return Path(named).expanduser().absolute() if named else Path.home() / ".cache" / "tailrate"


def cpu_model() -> str:
    return first_line_of(CPU_INFO, "model name") or platform.machine()


def first_line_of(path: Path, key: str) -> str | None:
    """What follows the key in a file of the kernel's."""
    with suppress(OSError), path.open() as lines:
        return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)
    return None
