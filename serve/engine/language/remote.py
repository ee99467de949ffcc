"""A language model's engine as its replica has it: in a process of its own (see `process`), spoken to through pipes.

Belongs to one event loop, whose callers are told of each step's tokens as soon as they come.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tailrate.serve import wire
from tailrate.serve.engine.device_thread import Standing
from tailrate.serve.engine.language.generator import Deliver, Piece
from tailrate.serve.engine.language.messages import Incoming, Served, packed
from tailrate.serve.engine.language.writing import Token, Writing
from tailrate.serve.engine.profiling import Profile
from tailrate.serve.engine.queue import full
from tailrate.serve.telemetry.statistics import Counters, Counts, add
from tailrate.serve.wire import WireError

FRESH_S = 1.0
"""How long an engine that is busy is waited for, to say where it stands."""
PIPE_BYTES = 1 << 20
"""What an engine may be ahead of who tells it: thousands of steps."""


@dataclass(frozen=True, slots=True)
class RunnerSeen:
    """What a runner says of itself."""

    slots: int
    device: str
    said: dict[str, Any]

    @property
    def max_batch(self) -> int:
        return self.slots

    def parameters(self) -> dict[str, Any]:
        return self.said


class CountersOfBoth(Counters):
    """What is counted here, and what the engine counts."""

    def __init__(self) -> None:
        super().__init__()
        self.engine_s: Counts = {}

    def snapshot(self) -> Counts:
        return add(super().snapshot(), self.engine_s)


class RemoteGenerator(Standing[RunnerSeen]):
    def __init__(self, served: Served, deliver: Deliver, *, max_queue: int) -> None:
        super().__init__()
        self.counters = CountersOfBoth()
        self.written = 0
        """Answers that have a row."""
        self._served, self._deliver, self._max_queue = served, deliver, max_queue
        self._facts: dict[str, Any] = {}
        self._numbers = count(1)
        self._under_way: dict[int, Writing] = {}
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._sent = self._taken = self._queued = 0
        self._heard_s = time.monotonic()
        self._closing, self._over = False, threading.Event()

    # ---- its process

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        orders, self._orders = os.pipe()
        news, theirs = os.pipe()
        with suppress(OSError):  # more than this user may have
            fcntl.fcntl(news, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tailrate.serve.engine.language.process", f"{orders}", f"{theirs}"],
            pass_fds=(orders, theirs), stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path)},
        )  # fmt: skip
        os.close(orders)
        os.close(theirs)
        self._connecting = self._loop.create_task(self._connect(news))

    async def _connect(self, news: int) -> None:
        writing = self._loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(self._orders, "wb", 0))
        self._transport, _ = await writing
        self._transport.write(packed(self._served))
        await self._loop.connect_read_pipe(lambda: Incoming(self._take, self._ended), os.fdopen(news, "rb", 0))

    def close(self) -> None:
        """Ends the process, from another thread than the loop's; who still waits is told."""
        self._closing = True
        self._process.kill()
        self._over.wait()

    def _ended(self) -> None:
        self._transport.abort()
        code = self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        self._lost = None if self._closing else f"the engine's process {how}"
        self._refusal = "lost" if self._lost else "stopping"
        self._progress = (self._lost or wire.STOPPING, 0.0)
        self.state, self._moved_s, self.written = "UNAVAILABLE", None, 0
        error = WireError(503, self._progress[0], self._refusal)
        left, self._under_way = [*self._under_way.values()], {}
        self._taken, self._queued = self._sent, 0
        for one in left:
            one.error = error
        self._deliver([(one, None) for one in left])
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(WireError(503, self._progress[0], self._refusal))
        self._over.set()

    def _send(self, *order: Any) -> None:
        self._transport.write(packed(order))

    def _take(self, message: tuple[Any, ...]) -> None:
        what, *more = message
        self._heard_s = time.monotonic()
        if what == "pieces":
            self._pieces(*more)
        elif what == "stands":
            self._stands(*more)
        elif what == "profiled":
            number, found, problem = more
            self._answered(number, found, problem)
        else:
            (record,) = more
            logging.getLogger(record.name).handle(record)

    # ---- answers

    @property
    def waiting(self) -> int:
        return self._queued + self._sent - self._taken

    def submit(self, writing: Writing) -> None:
        """Queues it, or raises `WireError` at once where it cannot be served; what the engine refuses is a piece."""
        self.ready_runner()
        if self.waiting >= self._max_queue:
            raise full(self._max_queue)
        writing.number = next(self._numbers)
        self._under_way[writing.number] = writing
        self._sent += 1
        self._send("write", writing.number, dataclasses.replace(writing, gone=None, waiter=None))

    def withdraw(self, writing: Writing) -> None:
        """Nothing more of it is wanted; what it has is free at the next step."""
        if not writing.stopped and writing.number in self._under_way:
            self._send("withdraw", writing.number)
        writing.stopped = True

    def _pieces(self, taken: int, queued: int, written: int, told: Sequence[Any]) -> None:
        self._taken, self._queued, self.written = taken, queued, written
        found: list[Piece] = []
        for number, token, error, times in told:
            writing = self._under_way[number]
            writing.times = times
            if token is None:
                writing.error = WireError(*error)
                found.append((writing, None))
            else:
                writing.tokens.append(token[0])
                writing.finish = token[2]
                found.append((writing, Token(*token)))
            if token is None or writing.finish:
                del self._under_way[number]
        self._deliver(found)
        for writing in self._under_way.values():
            if writing.gone is not None and writing.gone():
                self.withdraw(writing)

    # ---- where it stands

    def trouble(self, stuck_after_s: float) -> str | None:
        silent_s = time.monotonic() - self._heard_s
        if self.state == "READY" and silent_s > max(stuck_after_s, self._opening_s):
            return f"the engine's process has said nothing for {silent_s:.0f} s"
        return super().trouble(stuck_after_s)

    async def fresh(self) -> None:
        """What is known of it is as of now, unless it is busy."""
        if self.state == "READY":
            with suppress(TimeoutError, WireError):
                await asyncio.wait_for(self._ask("stand"), FRESH_S)

    async def profiled(self, batches: int, timeout_s: float) -> Profile:
        self.ready_runner()
        found: Profile = await self._ask("profile", batches, timeout_s)
        return found

    def facts(self) -> dict[str, Any]:
        return self._facts

    async def _ask(self, what: str, *more: Any) -> Any:
        number = next(self._numbers)
        answer = self._asked[number] = self._loop.create_future()
        self._send(what, number, *more)
        try:
            return await answer
        finally:
            del self._asked[number]
            if answer.cancelled():
                self._send("withdraw", number)

    def _answered(self, number: int | None, found: Any, problem: tuple[int, str, str] | None = None) -> None:
        answer = self._asked.get(number or 0)
        if answer is None or answer.done():  # nobody waits for it any more
            return
        if problem is None:
            answer.set_result(found)
        else:
            answer.set_exception(WireError(*problem))

    def _stands(self, number: int | None, standing: dict[str, Any], seen: Any, counts: Counts, facts: Any) -> None:
        for name, value in standing.items():
            setattr(self, name, value)
        self._runner = RunnerSeen(*seen) if seen else None
        self.counters.engine_s, self._facts = counts, facts
        self._answered(number, None)
