"""What this process takes of its machine: memory, time on cores, open files. Linux and macOS."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PERIOD_S = 10.0
STATM = Path("/proc/self/statm")


def rss_bytes() -> int:
    """Resident memory: by /proc, which costs microseconds, else by psutil."""
    with suppress(OSError, ValueError):
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    import psutil

    return int(psutil.Process().memory_info().rss)


def open_files() -> int | None:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return sum(1 for _ in Path(folder).iterdir())
    return None


class ProcessUsage:
    """`look` tells of the time since the last look."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()

    def look(self) -> dict[str, Any]:
        wall_s, cpu_s = time.monotonic(), time.process_time()
        busy = 100 * (cpu_s - self._cpu_s) / max(1e-9, wall_s - self._wall_s)
        self._wall_s, self._cpu_s = wall_s, cpu_s
        found = {"pid": os.getpid(), "rss_bytes": rss_bytes(), "cpu_pct": round(busy, 1), "open_files": open_files()}
        return {key: value for key, value in found.items() if value is not None}
