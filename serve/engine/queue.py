"""What waits for the device, oldest first, and the rule by which batches are made of it.

The rule is opportunistic: whoever takes gets all that waits, up to `most` rows; only a request that waits alone
may be kept back, `max_wait_s` at most, for company. A request of more rows than a batch holds has batches to
itself, and goes to the end of the queue after each. One thread takes, any may submit.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from tailrate.serve.engine.job import Job
from tailrate.serve.wire import WireError

POLL_S = 50e-6
"""How often `fills_up` asks whether it is too late for that."""


def full(most: int) -> WireError:
    return WireError(503, f"the queue is full: {most} requests wait already", "queue_full")


class Queue:
    """Of one replica."""

    def __init__(self, max_queue: int, max_wait_s: float = 0.0) -> None:
        self._max_queue = max_queue
        self._max_wait_s = max_wait_s
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closing = False

    def __len__(self) -> int:
        """Requests."""
        return len(self._jobs)

    def submit(self, job: Job, most: int) -> None:
        """Raises `WireError` where there is no room for it, be it in batches of `most` rows."""
        if job.rows > most * self._max_queue:
            raise WireError(
                413, f"the request has {job.rows} rows, but the queue holds at most {most * self._max_queue}"
            )
        with self._changed:
            if self._closing:
                raise WireError(503, "the replica is shutting down", "stopping")
            if len(self._jobs) >= self._max_queue:
                raise full(self._max_queue)
            self._jobs.append(job)
            self._changed.notify()

    def withdraw(self, job: Job) -> bool:
        """Takes a job back, or what is left of one that goes in chunks; False if any of it was taken already."""
        with self._changed:
            try:
                self._jobs.remove(job)
            except ValueError:
                untouched = False
            else:
                untouched = job.split is None
            if job.split is not None:
                job.split.over = True
            return untouched

    def close(self) -> None:
        """Nothing is taken or submitted from now on."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def clear(self) -> list[Job]:
        """Closes it; what waited still."""
        with self._changed:
            self._closing = True
            left = [job for job in self._jobs if job.split is None or not job.split.over]
            self._jobs.clear()
        for job in left:
            if job.split is not None:
                job.split.over = True
        return left

    # ---- the one thread that takes

    def wait(self, most: int, idle: Callable[[], float | None]) -> bool:
        """For work; `idle` is called while there is none, and says when to be called again. False: it was closed."""
        with self._changed:
            while not self._jobs and not self._closing:
                self._changed.release()
                try:
                    again_s = idle()
                finally:
                    self._changed.acquire()
                if not self._jobs and not self._closing:
                    self._changed.wait(again_s)
            if self._max_wait_s:
                self._wait_for_company(most)
            return not self._closing

    def _wait_for_company(self, most: int) -> None:
        until_s = time.monotonic() + self._max_wait_s
        while self._alone(most) and not self._closing:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            self._changed.wait(left_s)

    def ready(self, most: int) -> bool:
        """Whether something waits that need not wait for company."""
        with self._changed:
            jobs = self._jobs
            return bool(jobs) and not self._closing and not (self._max_wait_s and self._alone(most))

    def _alone(self, most: int) -> bool:
        return len(self._jobs) == 1 and self._jobs[0].left < most

    def fills_up(self, most: int, too_late: Callable[[], bool]) -> bool:
        """Whether a full batch waits, before it is too late."""
        with self._changed:
            while not self._closing:
                if sum(job.left for job in self._jobs) >= most:
                    return True
                if too_late():
                    return False
                self._changed.wait(POLL_S)
            return False

    def take(self, most: int) -> tuple[list[Job], list[Job]]:
        """What goes into the next batch, and what need not be run any more, with its error."""
        taken: list[Job] = []
        dropped: list[Job] = []
        rows = 0
        now_ns = time.perf_counter_ns()
        with self._changed:
            jobs = self._jobs
            while jobs and rows < most:
                job = jobs[0]
                if job.split is not None and job.split.over:  # a chunk of it failed
                    jobs.popleft()
                elif (why := job.pointless(now_ns)) is not None:
                    job.error = why
                    dropped.append(jobs.popleft())
                    if job.split is not None:
                        job.split.over = True
                elif rows + (left := job.left) <= most:
                    jobs.popleft()
                    taken.append(job if job.split is None else job.chunk(most))
                    rows += left
                elif left > most and not taken:
                    jobs.rotate(-1)
                    taken.append(job.chunk(most))
                    break
                else:
                    break
        return taken, dropped
