"""Which processes are this server's: on a node of Ray its raylet and all below it, elsewhere this one and all below."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def _first(proc: Path = PROC) -> int:
    parent = os.getppid()
    return parent if _text(proc / str(parent) / "comm").strip() == "raylet" else os.getpid()


def kin(proc: Path = PROC) -> list[int]:
    found = [_first(proc)]
    for pid in found:  # grows as it goes
        with suppress(OSError):  # it may end meanwhile
            for listing in (proc / str(pid) / "task").glob("*/children"):
                found += map(int, _text(listing).split())
    return found


def is_kin(pid: int) -> bool:
    """Looks upwards from one process, which is a few reads where `kin` takes hundreds."""
    import psutil

    first = _first()
    try:
        return pid == first or any(above.pid == first for above in psutil.Process(pid).parents())
    except psutil.Error:
        return False


def own_bytes(proc: Path = PROC) -> int | None:
    """What they hold of memory and share with nobody: a leak is all in there. None where the kernel doesn't say."""
    pages = 0
    for pid in kin(proc):
        if sizes := _text(proc / str(pid) / "statm").split():
            pages += int(sizes[1]) - int(sizes[2])
    return pages * os.sysconf("SC_PAGE_SIZE") or None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
