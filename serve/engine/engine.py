"""One replica's engine: the one thread that owns the device, and what becomes of the jobs that it is given.

The moment the device is free, all that waits is run as a batch (see `queue`). Where several batches may be in
flight, one is begun behind another only when it is full: it could not grow by waiting. One that is begun in no time is
so before the answers of the one before are given back, since the interpreter is then their callers'. A batch that fails
is run again so that only the guilty fails, and one that does not fit into memory in smaller ones.

Knows nothing of HTTP, Ray or asyncio: whoever submits a `Job` gets it back through `deliver`, a batch at a time.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from tailrate.serve.engine.batch_observer import Onlooker
from tailrate.serve.engine.batch_regrowth import Regrowth
from tailrate.serve.engine.device_thread import DeviceThread
from tailrate.serve.engine.job import Job, grouped, settled
from tailrate.serve.engine.queue import Queue
from tailrate.serve.runner.compile_watch import refused
from tailrate.serve.runner.cuda_pipeline import BatchResult, Failed, Flight
from tailrate.serve.runner.open_runner import Say
from tailrate.serve.runner.runner import Runner, first_line, out_of_memory
from tailrate.serve.wire import WireError

__all__ = ["Engine", "Job", "Onlooker"]

log = logging.getLogger(__name__)

IN_NO_TIME_NS = 1_000_000
"""Of this thread's time: so long answers may wait until the next batch is begun. The replay of a graph takes less, the
launch of each kernel more."""


class Deliver(Protocol):
    def __call__(self, jobs: Sequence[Job], /) -> None:
        """Takes finished jobs back; called in the engine's thread, once per batch."""
        ...


class Engine(DeviceThread[Runner]):
    """Opens a runner in its own thread, then serves jobs with it until closed."""

    def __init__(
        self,
        open_runner: Callable[[Say], AbstractContextManager[Runner]],
        deliver: Deliver,
        *,
        max_queue: int,
        max_wait_s: float = 0.0,
    ) -> None:
        super().__init__(open_runner)
        self.onlooker: Onlooker = Onlooker()
        self._deliver = deliver
        self._queue = Queue(max_queue, max_wait_s)
        self._flights: deque[tuple[list[Job], Flight]] = deque()
        self._in_hand: list[Job] = []
        """Neither waiting nor in flight, and not given back yet."""
        self._regrowth = Regrowth()
        self._beginning_ns = 0
        """What the last one took of this thread's time."""

    def _end(self) -> None:
        self._queue.close()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    # ---- from any thread

    def submit(self, job: Job) -> None:
        """Queues the job, or raises `WireError` at once where it cannot be served."""
        self._queue.submit(job, self.ready_runner().max_batch)

    def withdraw(self, job: Job) -> bool:
        """Takes a job back, or what is left of one that goes in chunks; False if any of it is run or done already."""
        return self._queue.withdraw(job)

    # ---- the engine's thread

    def _abandon(self, error: WireError) -> None:
        self._refuse(self._queue.clear(), error)
        # only where the engine itself broke is there anything else, of which some may have got its outputs
        in_hand = [*self._in_hand, *(job for jobs, _ in self._flights for job in jobs)]
        for job in in_hand:
            if job.outputs is None or job.part_of is not None:
                job.error = error
        self._give_back(in_hand)

    def _serve(self, runner: Runner) -> None:
        flights, queue = self._flights, self._queue
        while self._lost is None:
            most = runner.max_batch
            if not flights:
                if not queue.wait(most, self.onlooker.idle):
                    return
                self._next(runner, most)
            elif len(flights) < runner.depth and queue.fills_up(most, self._too_late(most)):
                self._next(runner, most)
            else:
                self._land(runner)

    def _too_late(self, most: int) -> Callable[[], bool]:
        """For another batch to fill up behind the one in flight; behind one that is not full, it is at once."""
        jobs, flight = self._flights[0]
        return flight.done if sum(job.rows for job in jobs) >= most else lambda: True

    def _next(self, runner: Runner, most: int) -> None:
        taken, dropped = self._queue.take(most)
        if dropped:
            self._give_back(dropped)
        if taken:
            self._begin(runner, taken)

    # ---- running it

    def _begin(self, runner: Runner, jobs: list[Job]) -> None:
        flight: Flight
        try:
            flight = self._begun(runner, jobs)
        except Exception as problem:
            flight = Failed(_told(jobs, problem))
        self._flights.append((jobs, flight))

    def _land(self, runner: Runner) -> None:
        """Waits for the oldest batch in flight."""
        jobs, flight = self._flights[0]
        failure: Exception | None = None
        try:
            ran = flight.finish()
        except Exception as problem:
            failure = problem.with_traceback(None) if isinstance(flight, Failed) else _told(jobs, problem)
        self._flights.popleft()
        self._in_hand = jobs
        if failure is None:
            at_once = runner.depth > 1 and self._beginning_ns < IN_NO_TIME_NS
            if at_once and not self._flights and self._queue.ready(runner.max_batch):
                self._next(runner, runner.max_batch)
            self._hand_out(runner, jobs, ran)
        else:
            self._again(runner, jobs, failure)
        self._in_hand = []
        self._moved_s = time.monotonic() if self._flights else None

    def _begun(self, runner: Runner, jobs: list[Job]) -> Flight:
        self._moved_s = time.monotonic()
        now_ns = time.perf_counter_ns()
        wanted = jobs[0].wanted
        rows = 0
        for job in jobs:
            job.begun_ns = now_ns
            rows += job.rows
            if job.wanted != wanted:
                wanted |= job.wanted
        with self.onlooker.batch():
            begun_ns = time.thread_time_ns()
            try:
                return runner.begin([job.tensors for job in jobs], rows, wanted)
            finally:
                self._beginning_ns = time.thread_time_ns() - begun_ns

    def _again(self, runner: Runner, jobs: list[Job], problem: Exception) -> None:
        """A batch failed: smaller ones where memory ran out, else each request alone, so that only the guilty fails."""
        self._lost = self._lost or runner.lost()
        rows = sum(job.rows for job in jobs)
        if self._lost is not None:
            self._refuse(jobs, WireError(503, self._lost, "lost"))
        elif out_of_memory(problem) and self._shrunk(runner, rows):
            self._run_now(runner, grouped(jobs, runner.max_batch))
        elif len(jobs) > 1:
            self._run_now(runner, ([job] for job in jobs))
        elif out_of_memory(problem):
            self._regrowth.ran_out(time.monotonic())
            self._refuse(
                jobs, WireError(503, f"there is no memory for this request: {first_line(problem)}", "no_memory")
            )
        else:
            why = refused(problem) or f"the model failed on this request: {first_line(problem)}"
            self._refuse(jobs, WireError(500, why))

    def _shrunk(self, runner: Runner, rows: int) -> bool:
        """Whether batches are smaller than that from now on; those in flight may fail for want of memory, too."""
        before = runner.max_batch
        if 1 < rows <= before and (most := runner.shrink(rows)) < before:
            self._regrowth.gave_up(before, time.monotonic())
            self.counters.event("out_of_memory")
            self._tell(f"a batch of {rows} rows did not fit into memory: from now on a batch has at most {most}")
        return runner.max_batch < rows

    def _run_now(self, runner: Runner, batches: Iterator[list[Job]]) -> None:
        for jobs in batches:
            if sum(job.rows for job in jobs) > runner.max_batch:  # memory ran out for one of those before
                self._run_now(runner, grouped(jobs, runner.max_batch))
                continue
            failure: Exception | None = None
            try:
                ran = self._begun(runner, jobs).finish()
            except Exception as problem:
                failure = _told(jobs, problem)
            if failure is None:
                self._hand_out(runner, jobs, ran)
            else:
                self._again(runner, jobs, failure)

    def _hand_out(self, runner: Runner, jobs: list[Job], ran: BatchResult) -> None:
        rows = sum(job.rows for job in jobs)
        size = self._regrowth.ran(rows >= runner.max_batch, time.monotonic())
        if size is not None:
            self._tell(
                f"memory has sufficed for a while: from now on a batch has at most {runner.grow(size)} rows again"
            )
        at = 0
        for job in jobs:
            end = at + job.rows
            job.outputs = {name: ran.outputs[name][at:end] for name in job.wanted}
            at = end
            job.batch_rows = rows
            job.begun_ns += ran.waited_ns
            job.batched_ns, job.copied_in_ns, job.computed_ns = ran.batched_ns, ran.copied_in_ns, ran.computed_ns
        if runner.stretched:
            for job in jobs:
                job.cut(runner.stretched)
        self._count(jobs, ran, rows)
        self.onlooker.ran(jobs)
        self._give_back(jobs)

    def _count(self, jobs: list[Job], ran: BatchResult, rows: int) -> None:
        begun_ns = jobs[0].begun_ns
        stages_ns = {
            "batch": ran.batched_ns - begun_ns,
            "h2d": ran.copied_in_ns - ran.batched_ns,
            "compute": ran.computed_ns - ran.copied_in_ns,
            "d2h": time.perf_counter_ns() - ran.computed_ns,
        }
        self.counters.batch(rows, stages_ns, (begun_ns - job.received_ns for job in jobs if job.part_of is None))

    def _refuse(self, jobs: Sequence[Job], error: WireError) -> None:
        for job in jobs:
            job.error = error
        self._give_back(jobs)

    def _give_back(self, jobs: Sequence[Job]) -> None:
        """Chunks to what they are chunks of; whole jobs to whoever submitted them."""
        done = [whole for job in jobs if (whole := settled(job)) is not None]
        for whole in done:
            if whole.split is not None and whole.error is None:
                self.counters.in_chunks(whole.stages_ns(time.perf_counter_ns()))
        if done:
            self._deliver(done)


def _told(jobs: Sequence[Job], problem: Exception) -> Exception:
    """The problem, logged where there is one to blame, and without what it would keep alive of the failed batch."""
    if len(jobs) == 1 and not out_of_memory(problem):
        log.error("a request failed", exc_info=problem)
    problem.__context__ = problem.__cause__ = None
    return problem.with_traceback(None)
