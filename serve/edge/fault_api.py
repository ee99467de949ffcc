"""Faults on request: `POST /v2/tailrate/faults` breaks something of this server, if that was allowed at its start.

    {"fault": "cpu_taken", "target": "2", "seconds": 30} → {"fault": …, "sentence": "what was done"}

403 without --allow-faults, 409 for what cannot be done here. What takes cores or memory is a process of its own, which
ends by itself, or with this one. What only Ray can kill is given by whoever knows Ray.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tailrate.serve import wire
from tailrate.serve.asgi import HttpAnswer, Request, as_json
from tailrate.serve.edge.replica_board import ReplicaBoard
from tailrate.serve.wire import WireError

LONGEST_S = 3600.0
MOST_PER_CORE = 4
HOLD_S = 60.0
"""Torch is imported, and the device opened, within this."""
DELAY_S = 0.3
"""From the answer to the end of the way that it takes."""

Kill = Callable[[str], str]
"""Kills what the target names and says what it was; raises `WireError` 409 where that cannot be."""

BUSY = """
import os, sys, time
parent, end = os.getppid(), time.monotonic() + float(sys.argv[1])
while time.monotonic() < end and os.getppid() == parent:
    sum(range(100_000))
"""
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


class FaultApi:
    """What may be broken, how, and the processes that do it."""

    def __init__(self, allowed: bool, board: ReplicaBoard, kills: Mapping[str, Kill]) -> None:
        """`kills` are replica (by its id), ingress and node (by its host; empty: any but the head)."""
        self._allowed = allowed
        self._board = board
        self._kills = kills
        self._processes: list[subprocess.Popen[str]] = []
        self._later: set[asyncio.Task[None]] = set()
        self._ways: dict[str, Callable[[str, float], Awaitable[str]]] = {
            "replica_killed": self._replica,
            "ingress_restarted": self._ingress,
            "node_killed": self._node,
            "cpu_taken": self._cpu,
            "gpu_memory_taken": self._gpu_memory,
        }

    async def answer(self, request: Request) -> HttpAnswer:
        if not self._allowed:
            raise WireError(403, "faults are not allowed here; the server must be started with --allow-faults")
        fault, target, seconds = _asked(request.body)
        if fault not in self._ways:
            raise WireError(400, f"unknown fault '{fault[:64]}'; known are {', '.join(self._ways)}")
        sentence = await self._ways[fault](target, seconds)
        return as_json({"fault": fault, "target": target, "seconds": seconds, "sentence": sentence})

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()

    # ---- what is killed

    async def _replica(self, target: str, seconds: float) -> str:
        """The target is an endpoint, whose first replica that is still there it hits; empty: the first endpoint."""
        names = {"/".join(name): name for name in self._board.endpoints}
        if target and target not in names:
            raise WireError(409, f"unknown endpoint '{target[:64]}'; there are {', '.join(names)}")
        endpoint = target or next(iter(names))
        why = WireError(409, f"no replica of {endpoint} is heard of")
        for report in self._board.reports(names[endpoint], time.monotonic()):
            try:
                return f"replica {await self._kill('replica', report['replica'])} of {endpoint} was killed"
            except WireError as problem:
                why = problem  # dead for a moment: the board does not know yet
        raise why

    async def _ingress(self, target: str, seconds: float) -> str:
        async def soon() -> None:  # this answer goes out by the way that then ends
            await asyncio.sleep(DELAY_S)
            await self._kill("ingress", target)

        task = asyncio.create_task(soon())
        self._later.add(task)
        task.add_done_callback(self._later.discard)
        return f"the proxy that requests come through is killed in {DELAY_S:g} s; Ray Serve starts another"

    async def _node(self, target: str, seconds: float) -> str:
        return f"the raylet of {await self._kill('node', target)} was killed"

    async def _kill(self, what: str, target: str) -> str:
        if what not in self._kills:
            raise WireError(409, f"this server has no {what} that could be killed")
        return await asyncio.to_thread(self._kills[what], target)

    # ---- what is taken

    async def _cpu(self, target: str, seconds: float) -> str:
        cores = os.cpu_count() or 1
        count = min(int(_number(target or str(cores), "target")), MOST_PER_CORE * cores)
        for _ in range(count):
            self._start(subprocess.DEVNULL, "-S", "-E", "-c", BUSY, str(seconds))
        return f"{count} busy processes for {seconds:g} s on the gateway's host, which has {cores} cores"

    async def _gpu_memory(self, target: str, seconds: float) -> str:
        gib = _number(target or "1", "target")
        process = self._start(subprocess.PIPE, "-c", HOLD, str(seconds), str(gib))
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout, process.stderr:
            try:
                said = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), HOLD_S)
            except TimeoutError:
                process.kill()  # which ends the reading, too
                raise WireError(409, f"the device could not be opened within {HOLD_S:g} s") from None
            if not said.strip():
                why = (await asyncio.to_thread(process.stderr.read)).strip().splitlines()
                raise WireError(409, f"no memory was taken: {why[-1] if why else 'no reason given'}")
        return f"{gib:g} GiB of {said.strip()} are held for {seconds:g} s"

    def _start(self, pipe: int, *words: str) -> subprocess.Popen[str]:
        self._processes = [process for process in self._processes if process.poll() is None]
        command = [sys.executable, *words]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        self._processes.append(process)
        return process


def _asked(body: wire.Body) -> tuple[str, str, float]:
    """(fault, target, seconds) of a request."""
    try:
        found: Any = json.loads(bytes(body))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("fault"), str):
        raise WireError(400, 'the body must be JSON such as {"fault": "cpu_taken", "target": "2", "seconds": 30}')
    seconds = _number(str(found.get("seconds") or 0), "seconds")
    if seconds > LONGEST_S:
        raise WireError(400, f"seconds must be at most {LONGEST_S:g}")
    return found["fault"], str(found.get("target") or ""), seconds


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise WireError(400, f"{name} must be a number of at least 0, not '{text[:64]}'")
    return value
