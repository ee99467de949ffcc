"""How many requests may be under way: a number, or as many as a rate and its time-out make, if this machine can.

Resolved before the load by the process that plans it; load processes elsewhere are taken to have as much room.
"""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

AUTO = "auto"
CHANCE = 5.0
"""Standard deviations by which random arrivals within a time-out may be more than usual."""
SHARE = 0.8
"""Of what this machine has."""
BYTES = 100_000
"""For a request under way: 14 KB of the load process, measured with 1,600, and the kernel's buffers for its body."""
PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
MEMORY = Path("/proc/meminfo")
USUAL_PORTS = 16_384
"""From 49152 up, which IANA sets aside for it and macOS uses."""
HALF = "half of the memory, as the system does not say how much is free"
BY_RATE = "rate × time-out"


def parse(text: str, rate_rps: float | None, timeout_s: float) -> tuple[int, str]:
    """The number, and what it follows from: nothing if it is given, else the tightest of what binds it.

    Without a rate, as in a search, all that there is room for. Raises `ValueError`.

    >>> parse("50", 10, 10)
    (50, '')
    """
    if text != AUTO:
        if not text.isdigit() or int(text) < 1:
            raise ValueError(f"--max-in-flight must be at least 1, or auto, not '{text}'")
        return int(text), ""
    found = room()
    if rate_rps is not None:
        usual = rate_rps * timeout_s
        found[BY_RATE] = math.ceil(usual + CHANCE * math.sqrt(usual))
    binding = min(found, key=lambda name: found[name])
    return max(1, found[binding]), binding


def room() -> dict[str, int]:
    """What this machine can hold, by what it takes."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = {} if files == resource.RLIM_INFINITY else {"open files": int(SHARE * files)}
    first, last = map(int, PORTS.read_text().split()) if PORTS.exists() else (0, USUAL_PORTS - 1)
    found["local ports"] = int(SHARE * (last - first + 1))
    if MEMORY.exists():
        (kb,) = (line.split()[1] for line in MEMORY.read_text().splitlines() if line.startswith("MemAvailable:"))
        found["memory"] = int(SHARE * int(kb) * 1024 / BYTES)
    else:
        found[HALF] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 // BYTES
    return found
