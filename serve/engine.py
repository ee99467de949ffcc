"""One replica's engine: the queue, the batching rule, and the one thread that owns the device.

The rule is opportunistic: the moment the device is free it takes all that waits, oldest first, up to
`max_batch` rows; only a request that waits alone may be kept back, `max_wait_s` at most, for company. Knows
nothing of HTTP, Ray or asyncio: whoever submits a `Job` gets it back through `deliver`, a batch at a time.

Stages are contiguous: queue (received → batch begun), batch (collated, padded), h2d, compute, and d2h,
whose end only the receiver knows, since it lasts until the response is handed over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

from serve.counters import Counters
from serve.opening import Say
from serve.runner import Ran, Runner, first_line
from serve.spec import ServeError, Tensors
from serve.wire import Array, WireError

log = logging.getLogger(__name__)

State = Literal["LOADING", "READY", "UNAVAILABLE"]


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way through the engine; instants are `time.perf_counter_ns`."""

    tensors: Tensors
    rows: int
    wanted: frozenset[str]
    received_ns: int
    deadline_ns: int | None = None
    waiter: Any = None
    """The submitter's own, such as a future."""
    outputs: dict[str, Array] | None = None
    error: WireError | None = None
    batch_rows: int = 0
    begun_ns: int = 0
    batched_ns: int = 0
    copied_in_ns: int = 0
    computed_ns: int = 0

    def stages_ms(self, done_ns: int) -> list[float]:
        """In the order of `wire.STAGES`."""
        ends = (self.received_ns, self.begun_ns, self.batched_ns, self.copied_in_ns, self.computed_ns, done_ns)
        return [(after - before) / 1e6 for before, after in pairwise(ends)]


class Deliver(Protocol):
    def __call__(self, jobs: Sequence[Job], /) -> None:
        """Takes finished jobs back; called in the engine's thread, once per batch."""
        ...


class Engine:
    """Opens a runner in its own thread, then serves jobs with it until closed."""

    def __init__(
        self, open_runner: Callable[[Say], Runner], deliver: Deliver, *, max_queue: int, max_wait_s: float = 0.0
    ) -> None:
        self.state: State = "LOADING"
        self.counters = Counters()
        self._open = open_runner
        self._deliver = deliver
        self._max_queue = max_queue
        self._max_wait_s = max_wait_s
        self._progress = ("starting", time.monotonic())
        self._runner: Runner | None = None
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._live, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Finishes the batch in hand, refuses what waits, and ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def runner(self) -> Runner | None:
        """None until it is ready."""
        return self._runner

    @property
    def reason(self) -> str:
        """What it is busy with while loading, or why it is unavailable; empty when ready."""
        text, since_s = self._progress
        return f"{text}, {time.monotonic() - since_s:.0f} s" if self.state == "LOADING" else text

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    # ---- from any thread

    def submit(self, job: Job) -> None:
        """Queues the job, or raises `WireError` at once where it cannot be served."""
        runner = self._runner
        if runner is None or self.state != "READY":
            raise WireError(503, f"the model is {self.state.lower()}: {self.reason}")
        if job.rows > runner.max_batch:
            raise WireError(413, f"the request has {job.rows} rows, but a batch holds at most {runner.max_batch}")
        with self._changed:
            if self._closing:
                raise WireError(503, "the replica is shutting down")
            if len(self._waiting) >= self._max_queue:
                raise WireError(503, f"the queue is full: {self._max_queue} requests wait already")
            self._waiting.append(job)
            self._changed.notify()

    def withdraw(self, job: Job) -> bool:
        """Takes a job back that is still waiting; False if it is being run or is done."""
        with self._changed:
            try:
                self._waiting.remove(job)
            except ValueError:
                return False
            return True

    # ---- the engine's thread

    def _say(self, text: str) -> None:
        self._progress = (text, time.monotonic())

    def _live(self) -> None:
        try:
            self._runner = self._open(self._say)
        except ServeError as problem:
            self._fail(str(problem))
        except BaseException as problem:
            log.exception("the replica cannot start")
            self._fail(first_line(problem))
        else:
            self._progress = ("", 0.0)
            self.state = "READY"
            while jobs := self._take(self._runner.max_batch):
                self._run(self._runner, jobs)
            self._fail("the replica is shutting down")

    def _fail(self, reason: str) -> None:
        self._progress = (reason, 0.0)
        self.state = "UNAVAILABLE"
        with self._changed:
            jobs, self._waiting = list(self._waiting), deque()
        for job in jobs:
            job.error = WireError(503, reason)
        if jobs:
            self._deliver(jobs)

    def _take(self, max_batch: int) -> list[Job]:
        """Waits for work and takes the next batch; empty when closing."""
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return []
                self._wait_for_company(max_batch)
                taken: list[Job] = []
                late: list[Job] = []
                rows = 0
                now_ns = time.perf_counter_ns()
                while self._waiting and rows + self._waiting[0].rows <= max_batch:
                    job = self._waiting.popleft()
                    if job.deadline_ns is not None and now_ns > job.deadline_ns:
                        job.error = WireError(504, "the deadline of the request passed while it was queued")
                        late.append(job)
                    else:
                        taken.append(job)
                        rows += job.rows
            if late:
                self._deliver(late)
            if taken:
                for job in taken:
                    job.begun_ns, job.batch_rows = now_ns, rows
                return taken

    def _wait_for_company(self, max_batch: int) -> None:
        until_s = time.monotonic() + self._max_wait_s
        while len(self._waiting) == 1 and self._waiting[0].rows < max_batch and not self._closing:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            self._changed.wait(left_s)

    def _run(self, runner: Runner, jobs: list[Job]) -> None:
        try:
            self._run_together(runner, jobs)
        except Exception as problem:
            if len(jobs) == 1:
                log.exception("a request failed")
                jobs[0].error = WireError(500, f"the model failed on this request: {first_line(problem)}")
            else:  # one of them is guilty: each alone, so that only that one fails
                for job in jobs:
                    self._run(runner, [job])
                return
        self._deliver(jobs)

    def _run_together(self, runner: Runner, jobs: list[Job]) -> None:
        rows = sum(job.rows for job in jobs)
        ran = runner.run([job.tensors for job in jobs], rows, frozenset().union(*(job.wanted for job in jobs)))
        at = 0
        for job in jobs:
            job.outputs = {name: ran.outputs[name][at : at + job.rows] for name in job.wanted}
            job.batch_rows = rows
            job.batched_ns, job.copied_in_ns, job.computed_ns = ran.batched_ns, ran.copied_in_ns, ran.computed_ns
            at += job.rows
        self._count(jobs, ran, rows)

    def _count(self, jobs: list[Job], ran: Ran, rows: int) -> None:
        begun_ns = jobs[0].begun_ns
        stages_ns = {
            "batch": ran.batched_ns - begun_ns,
            "h2d": ran.copied_in_ns - ran.batched_ns,
            "compute": ran.computed_ns - ran.copied_in_ns,
            "d2h": time.perf_counter_ns() - ran.computed_ns,
        }
        self.counters.batch(rows, stages_ns, (begun_ns - job.received_ns for job in jobs))
