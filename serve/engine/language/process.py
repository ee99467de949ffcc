"""The process of a language model's engine, started by a replica (see `remote`), which has the clients.

Telling many streams of each step takes as long as some steps do, and two threads of one interpreter would do it in
turns. So this one only computes: a replica's orders come through one pipe, what became of them goes through another.
Where the replica is gone, so is this.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from logging.handlers import QueueHandler
from typing import Any

from tailrate.serve import variants
from tailrate.serve.engine.language.generator import Generator, Piece
from tailrate.serve.engine.language.messages import Incoming, Served, packed
from tailrate.serve.engine.language.open_language import open_language
from tailrate.serve.engine.language.writing import Writing
from tailrate.serve.engine.observers import Observers
from tailrate.serve.wire import WireError

LOADING_S, READY_S = 0.1, 1.0
"""How often it says where it stands."""


class EngineProcess:
    """Its loop takes orders; the engine's thread tells of tokens itself, so that none waits for the other."""

    def __init__(self, served: Served, news: int) -> None:
        options, variant = served.options, variants.load(served.variant)
        spec = options.spec(served.model)
        self._news, self._sending = news, threading.Lock()
        logging.getLogger().addHandler(LogSender(partial(self._send, "log")))
        self._engine = Generator(
            lambda say: open_language(spec, variant, options, say, self._watch), self._deliver, max_queue=sys.maxsize
        )
        self._watch = self._engine.onlooker = Observers(options, spec, served.name, self._engine.counters)
        self._orders: dict[str, Callable[..., None]] = {
            "write": self._write, "withdraw": self._withdraw, "stand": self._stand, "profile": self._profile,
        }  # fmt: skip
        self._taken = 0
        self._under_way: dict[int, Writing] = {}
        self._profiles: dict[int, asyncio.Task[None]] = {}
        self._loading = True
        self._engine.start()
        self._say_always()

    def take(self, order: tuple[Any, ...]) -> None:
        what, number, *more = order
        self._orders[what](number, *more)

    def _send(self, what: str, *more: Any) -> None:
        """From any thread; waits where the replica is behind."""
        left = memoryview(packed((what, *more)))
        with self._sending:
            try:
                while left:
                    left = left[os.write(self._news, left) :]
            except BrokenPipeError:
                end()

    # ---- answers

    def _write(self, number: int, writing: Writing) -> None:
        self._taken += 1
        self._under_way[number] = writing
        try:
            self._engine.submit(writing)
        except WireError as problem:
            writing.error = problem
            self._deliver([(writing, None)])

    def _withdraw(self, number: int) -> None:
        if number in self._under_way:  # else it was over before that was known
            self._engine.withdraw(self._under_way[number])
        elif number in self._profiles:
            self._profiles[number].cancel()

    def _deliver(self, pieces: Sequence[Piece]) -> None:
        told = []
        for writing, token in pieces:
            error = writing.error and _plain(writing.error)
            told.append((writing.number, token and (token.number, token.likely, token.finish), error, writing.times))
            if token is None or token.finish:
                del self._under_way[writing.number]
        self._send("pieces", self._taken, self._engine.waiting, self._engine.written, told)

    # ---- where it stands

    def _say_always(self) -> None:
        self._stand(None)
        if self._loading and self._engine.state != "LOADING":
            self._loading = False
            gc.collect()
            gc.freeze()  # else full collections over torch's heap fall into steps
        asyncio.get_running_loop().call_later(LOADING_S if self._loading else READY_S, self._say_always)

    def _stand(self, number: int | None) -> None:
        engine = self._engine
        standing, runner = engine.standing(), engine.runner
        seen = runner and (runner.slots, runner.device, runner.parameters())
        self._send("stands", number, standing, seen, engine.counters.snapshot(), self._watch.facts())

    # ---- profiles

    def _profile(self, number: int, batches: int, timeout_s: float) -> None:
        self._profiles[number] = asyncio.create_task(self._profiled(number, batches, timeout_s))

    async def _profiled(self, number: int, batches: int, timeout_s: float) -> None:
        try:
            self._send("profiled", number, await self._watch.profiled(batches, timeout_s), None)
        except WireError as problem:
            self._send("profiled", number, None, _plain(problem))
        finally:
            del self._profiles[number]


class LogSender(QueueHandler):
    """What is logged here is logged by the replica."""

    def __init__(self, send: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # there is none
        self.setLevel(logging.WARNING)
        self._send = send

    def enqueue(self, record: logging.LogRecord) -> None:
        self._send(record)


def _plain(problem: WireError) -> tuple[int, str, str]:
    return problem.status, problem.sentence, problem.reason


def end() -> None:
    os._exit(0)  # whatever the device is doing


async def _live(orders: int, news: int) -> None:
    loop = asyncio.get_running_loop()
    process: EngineProcess | None = None

    def take(message: Any) -> None:
        nonlocal process
        if process is None:
            process = EngineProcess(message, news)
        else:
            process.take(message)

    for pipe in (orders, news):
        os.set_inheritable(pipe, False)
    await loop.connect_read_pipe(lambda: Incoming(take, end), os.fdopen(orders, "rb", 0))
    await loop.create_future()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that is the replica's, which ends this
    asyncio.run(_live(*map(int, sys.argv[1:])))
