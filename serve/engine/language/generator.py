"""The engine of a language model: answers that are written together, a token each per step, and prompts read between.

Continuous batching: whoever comes is in the next step, whoever is done leaves a place. In each turn a piece of one
prompt is read, and then every answer gets its next token; so nobody waits longer for a token than a piece takes. Knows
nothing of HTTP or asyncio: whoever submits a `Writing` is told of its tokens through `deliver`, a step at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from tailrate.serve.engine.batch_observer import Onlooker
from tailrate.serve.engine.device_thread import DeviceThread
from tailrate.serve.engine.language.runner import LanguageRunner
from tailrate.serve.engine.language.sampling import chosen, most_likely, without
from tailrate.serve.engine.language.writing import Token, Writing
from tailrate.serve.engine.queue import full
from tailrate.serve.runner.open_runner import Say
from tailrate.serve.runner.runner import first_line, out_of_memory
from tailrate.serve.telemetry.token_counts import TokenCounts
from tailrate.serve.wire import WireError

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

Piece = tuple[Writing, Token | None]
"""A token of an answer; None where it ends without one."""


class Deliver(Protocol):
    def __call__(self, pieces: Sequence[Piece], /) -> None:
        """Takes what one step made; called in the engine's thread."""
        ...


class Generator(DeviceThread[LanguageRunner]):
    def __init__(
        self,
        open_runner: Callable[[Say], AbstractContextManager[LanguageRunner]],
        deliver: Deliver,
        *,
        max_queue: int,
    ) -> None:
        super().__init__(open_runner)
        self.onlooker: Onlooker = Onlooker()
        self._deliver, self._max_queue = deliver, max_queue
        self._counts = TokenCounts()
        self.counters.more = self._counts.snapshot
        self._queue: deque[Writing] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._reading: Writing | None = None
        """Whose prompt is being read, or has been and waits for a row."""
        self._rows: list[Writing] = []
        """Those that are written, each in the row of its place here."""
        self._pieces: list[Piece] = []
        """Of this turn, not delivered yet."""

    # ---- from any thread

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def written(self) -> int:
        """Answers that have a row."""
        return len(self._rows)

    def submit(self, writing: Writing) -> None:
        """Queues it, or raises `WireError` at once where it cannot be served."""
        runner = self.ready_runner()
        if not writing.prompt:
            raise WireError(400, "the prompt is empty")
        if (least := len(writing.prompt) + 1) > runner.context:
            raise WireError(400, f"the prompt has {least - 1} tokens, and the model reads and writes {runner.context}")
        writing.most = min(writing.most, runner.context - len(writing.prompt))
        with self._changed:
            if self._closing:
                raise WireError(503, "the replica is shutting down", "stopping")
            if len(self._queue) >= self._max_queue:
                raise full(self._max_queue)
            self._queue.append(writing)
            self._changed.notify()

    def withdraw(self, writing: Writing) -> None:
        """Nothing more of it is wanted; what it has is free at the next step."""
        writing.stopped = True
        with self._changed:
            self._changed.notify()

    # ---- the thread

    def _end(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _abandon(self, error: WireError) -> None:
        with self._changed:
            self._closing = True
            left = [*self._queue, *([self._reading] if self._reading else []), *self._rows]
            self._queue.clear()
        self._reading, self._rows = None, []
        for one in left:
            self._over(one, error)
        self._hand_over()

    def _serve(self, runner: LanguageRunner) -> None:
        while self._lost is None:
            if not self._rows and self._reading is None and not self._wait():
                return
            self._moved_s = time.monotonic()
            self._drop(runner)
            self._read(runner)
            if not runner.ahead:
                self._hand_over()  # a first token waits for nobody's next one
            self._write(runner)
            if not (runner.ahead and self._rows):
                self._hand_over()
            self._moved_s = time.monotonic() if self._rows or self._reading else None

    def _wait(self) -> bool:
        """For work; False: it was closed."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.release()
                try:
                    again_s = self.onlooker.idle()
                finally:
                    self._changed.acquire()
                if not self._queue and not self._closing:
                    self._changed.wait(again_s)
            return not self._closing

    def _hand_over(self) -> None:
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._deliver(pieces)

    def _over(self, writing: Writing, error: WireError | None = None) -> None:
        """Told with its last token, or without one."""
        writing.done_ns = time.perf_counter_ns()
        if error is not None:
            writing.error = error
            self._pieces.append((writing, None))

    def _drop(self, runner: LanguageRunner) -> None:
        """Those of whom nothing more is wanted."""
        now_ns = time.perf_counter_ns()
        if self._reading and (why := self._reading.pointless(now_ns)):
            self._over(self._reading, why)
            self._reading = None
        for row in range(len(self._rows) - 1, -1, -1):
            if why := self._rows[row].pointless(now_ns):
                self._over(self._rows[row], why)
                self._leave(runner, row)

    def _leave(self, runner: LanguageRunner, row: int) -> None:
        """The last row takes the place of one that is free, so that there are no gaps."""
        last = len(self._rows) - 1
        if row != last:
            runner.move(last, row, self._rows[last].read)
            self._rows[row] = self._rows[last]
        self._rows.pop()

    def _next(self) -> Writing | None:
        while True:
            with self._changed:
                if not self._queue:
                    return None
                found = self._queue.popleft()
            if why := found.pointless(time.perf_counter_ns()):
                self._over(found, why)
                continue
            return found

    # ---- reading prompts

    def _read(self, runner: LanguageRunner) -> None:
        """A piece of one; where nobody waits for a token, until one is read."""
        if self._reading is None and len(self._rows) < runner.slots and (found := self._next()):
            found.begun_ns = found.begun_ns or time.perf_counter_ns()
            self._reading = found
        while (one := self._reading) is not None:
            self._hand_over()  # nobody's token waits for a prompt
            tokens = one.all
            piece = tokens[one.read : one.read + runner.chunk]
            began_ns = time.perf_counter_ns()
            try:
                with self.onlooker.batch():
                    scores = runner.read(piece, one.read)
                    if whole := one.read + len(piece) == len(tokens):
                        self._choose([one], scores)
                self.onlooker.ran([one])
            except Exception as problem:
                self._reading = None
                self._failed(runner, [one], problem)
                return
            took_ns = time.perf_counter_ns() - began_ns
            self._counts.read(len(piece), took_ns, last=whole)
            one.prefill_ns += took_ns
            one.read += len(piece)
            if whole:
                self._admit(runner, one)
            if whole or self._rows:
                return

    def _admit(self, runner: LanguageRunner, one: Writing) -> None:
        """Its prompt is read, and the first token chosen."""
        self._reading = None
        if one.finish is None:
            runner.adopt(len(self._rows), one.read)
            self._rows.append(one)

    # ---- writing answers

    def _write(self, runner: LanguageRunner) -> None:
        rows = self._rows
        if not rows:
            return
        began_ns = time.perf_counter_ns()
        try:
            with self.onlooker.batch():
                scores = runner.write([one.tokens[-1] for one in rows], [one.read for one in rows])
                # a device that works by itself has its next step before anybody is told of the last one
                self._hand_over()
                self._choose(rows, scores)
            self.onlooker.ran(rows)
        except Exception as problem:
            self._again(runner, problem)
            return
        took_ns = time.perf_counter_ns() - began_ns
        self._counts.wrote(len(rows), took_ns)
        for row in range(len(rows) - 1, -1, -1):
            rows[row].decode_ns += took_ns
            rows[row].read += 1
            if rows[row].finish is not None:
                self._leave(runner, row)

    def _choose(self, ones: Sequence[Writing], scores: torch.Tensor) -> None:
        """The next token of each."""
        allowed = without(scores, [one.banned for one in ones])
        numbers = chosen(allowed, [one.sampling for one in ones], [len(one.tokens) for one in ones]).tolist()
        likely = most_likely(allowed, [one.likely for one in ones], numbers)
        now_ns = time.perf_counter_ns()
        for row, (one, number) in enumerate(zip(ones, numbers, strict=True)):
            one.first_ns = one.first_ns or now_ns
            one.take(number)
            if one.finish is not None:
                one.scores = scores[row]
                self._over(one)
            self._pieces.append((one, Token(number, likely.get(row, ()), one.finish)))

    # ---- failures

    def _again(self, runner: LanguageRunner, problem: Exception) -> None:
        """A step failed: with fewer rows where memory ran out, the youngest beginning anew; else all of them fail."""
        rows = len(self._rows)
        if out_of_memory(problem) and (fewer := runner.fewer(rows)):
            runner.slots = fewer
            self.counters.event("out_of_memory")
            self._tell(
                f"a step of {rows} answers did not fit into memory: from now on at most {runner.slots} are written"
            )
            with self._changed:
                while len(self._rows) > runner.slots:
                    one = self._rows.pop()
                    one.read = 0
                    self._queue.appendleft(one)
            return
        left, self._rows = self._rows, []
        self._failed(runner, left, problem)

    def _failed(self, runner: LanguageRunner, ones: Sequence[Writing], problem: Exception) -> None:
        self._lost = self._lost or runner.lost()
        if self._lost is not None:
            error = WireError(503, self._lost, "lost")
        elif out_of_memory(problem):
            error = WireError(503, f"there is no memory for this request: {first_line(problem)}", "no_memory")
        else:
            log.error("a step failed", exc_info=problem)
            error = WireError(500, f"the model failed on this request: {first_line(problem)}")
        for one in ones:
            self._over(one, error)
