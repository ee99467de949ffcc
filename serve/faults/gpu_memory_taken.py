"""A process holds memory of the first GPU."""

from __future__ import annotations

import asyncio
import subprocess

from tailrate.serve.faults import ServerFault, ServerSide, Target, amount
from tailrate.serve.wire import WireError

USUAL_GIB = "1"
HOLD_S = 60.0
"""Torch is imported, and the device opened, within this."""
HOLD = """
import os, sys, time
parent, seconds, gib = os.getppid(), float(sys.argv[1]), float(sys.argv[2])
import torch
if not torch.cuda.is_available():
    sys.exit("there is no GPU here")
try:
    held = torch.zeros(int(gib * 2**30), dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    sys.exit(f"the device has no {gib:g} GiB to give")
print(torch.cuda.get_device_name(), flush=True)
end = time.monotonic() + seconds
while time.monotonic() < end and os.getppid() == parent:
    time.sleep(0.1)
"""


async def strike(server: ServerSide, target: str, seconds: float) -> str:
    gib = amount(target or USUAL_GIB, "target")
    process = server.start(subprocess.PIPE, "-c", HOLD, str(seconds), str(gib))
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        try:
            device = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), HOLD_S)
        except TimeoutError:
            process.kill()  # which ends the reading, too
            raise WireError(409, f"the device could not be opened within {HOLD_S:g} s") from None
        if not device.strip():
            why = (await asyncio.to_thread(process.stderr.read)).strip().splitlines()
            raise WireError(409, f"no memory was taken: {why[-1] if why else 'no reason given'}")
    return f"{gib:g} GiB of {device.strip()} are held for {seconds:g} s"


MEMORY = Target("GiB", USUAL_GIB, below=1e6)
FAULT = ServerFault(place=5, word="gpu-memory", seconds=30, target=MEMORY, strike=strike)
