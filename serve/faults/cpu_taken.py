"""Busy processes take cores of the gateway's host."""

from __future__ import annotations

import subprocess

from tailrate.serve import machine
from tailrate.serve.faults import ServerFault, ServerSide, Target, amount

MOST_PER_CORE = 4
CORES = Target("how many cores", "all", below=1e6)
BUSY = """
import os, sys, time
parent, end = os.getppid(), time.monotonic() + float(sys.argv[1])
while time.monotonic() < end and os.getppid() == parent:
    sum(range(100_000))
"""
BARE = ("-S", "-E", "-c")
"""Python starts at once with these."""


async def strike(server: ServerSide, target: str, seconds: float) -> str:
    cores = machine.cores()
    count = min(int(amount(target or str(cores), "target")), MOST_PER_CORE * cores)
    for _ in range(count):
        server.start(subprocess.DEVNULL, *BARE, BUSY, str(seconds))
    return f"{count} busy processes for {seconds:g} s on the gateway's host, which has {cores} cores"


FAULT = ServerFault(place=4, word="cpu", seconds=30, target=CORES, strike=strike)
