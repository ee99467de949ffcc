"""Which GPUs a server of models holds, found by the port that it listens on: from the process that has memory on a GPU
upwards to one that listens there, each in its own network, as that of a pod.

Processes of other users can be looked at by root alone, or with the rights CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH; in a
container by one that sees the host's processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from tailrate.serve.telemetry.own_processes import PROC

LISTENS = "0A"
"""The kernel's state of a socket that waits for connections."""
HIGHEST = 64
"""Processes above one that are looked at; a circle, which there is none of, would have no end."""


def devices_of(port: int, holders: Mapping[str, Iterable[int]], proc: Path = PROC) -> list[str]:
    """Of devices with the processes that have memory on them, those whose server listens on the port."""
    known: dict[int, bool] = {}

    def serves(pid: int) -> bool:
        for above in _upwards(pid, proc):
            if above not in known:
                known[above] = port in _ports(above, proc)
            if known[above]:
                return True
        return False

    return [device for device, pids in holders.items() if any(map(serves, pids))]


def _upwards(pid: int, proc: Path) -> Iterable[int]:
    for _ in range(HIGHEST):
        if pid <= 0:
            return
        yield pid
        found = re.search(r"^PPid:\s*(\d+)", _text(proc / str(pid) / "status"), re.M)
        pid = int(found[1]) if found else 0


def _ports(pid: int, proc: Path) -> set[int]:
    """Those that a process listens on."""
    own = proc / str(pid)
    sockets = set()
    with suppress(OSError):
        for entry in (own / "fd").iterdir():
            with suppress(OSError):
                found = re.fullmatch(r"socket:\[(\d+)\]", str(entry.readlink()))
                sockets |= {found[1]} if found else set()
    if not sockets:
        return set()
    lines = [line.split() for name in ("tcp", "tcp6") for line in _text(own / "net" / name).splitlines()[1:]]
    return {int(words[1].rpartition(":")[2], 16) for words in lines if words[3] == LISTENS and words[9] in sockets}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
