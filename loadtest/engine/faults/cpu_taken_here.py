"""Busy processes take cores of the load generator's machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tailrate.loadtest.engine.faults import LoadFault, LoadSide
from tailrate.serve import machine
from tailrate.serve.faults.cpu_taken import BARE, BUSY, CORES, MOST_PER_CORE


@contextmanager
def lasting(here: LoadSide, target: str, seconds: float) -> Iterator[str]:
    cores = machine.cores()
    count = min(MOST_PER_CORE * cores, int(float(target or cores)))
    command = [sys.executable, *BARE, BUSY, str(seconds)]
    busy = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield f"{count} busy processes on the load generator's {cores} cores"
    finally:
        for process in busy:
            process.kill()
            process.wait()


FAULT = LoadFault(place=5, word="cpu-here", seconds=30, target=CORES, lasting=lasting)
