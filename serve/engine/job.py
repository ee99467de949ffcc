"""One request on its way through the engine, and how one that is larger than a batch goes in chunks.

Stages are contiguous: queue (received → batch begun), batch (collated, padded), h2d, compute, and d2h,
whose end only the receiver knows, since it lasts until the response is handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any
from weakref import ref

import numpy as np

from tailrate.serve.runner.buckets import natural_length
from tailrate.serve.spec import Tensors
from tailrate.serve.wire import STAGES, Array, WireError


def late(where: str) -> WireError:
    return WireError(504, f"the deadline of the request passed while it {where}")


def is_over(deadline_ns: int | None, now_ns: int) -> bool:
    """A deadline is the first instant that is too late: a coarse clock may say the same one twice."""
    return deadline_ns is not None and now_ns >= deadline_ns


@dataclass(slots=True, eq=False, weakref_slot=True)
class Job:
    """Instants are `time.perf_counter_ns`; fields from `outputs` on are the engine's until it delivers the job.

    Whoever submits one holds it: its chunks know it weakly, else all of them, megabytes, would wait in a cycle for the
    garbage collection.
    """

    tensors: Tensors
    rows: int
    wanted: frozenset[str]
    received_ns: int
    deadline_ns: int | None = None
    gone: Callable[[], bool] | None = None
    """Whether nobody waits for it any longer; asked from the engine's thread."""
    waiter: Any = None
    """The submitter's own, such as a future."""
    outputs: dict[str, Array] | None = None
    error: WireError | None = None
    batch_rows: int = 0
    compiled: bool = False
    """Whether it had to wait for torch.compile."""
    begun_ns: int = 0
    batched_ns: int = 0
    copied_in_ns: int = 0
    computed_ns: int = 0
    split: Split | None = None
    """How far its chunks are, where it goes in chunks."""
    part_of: ref[Job] | None = None
    """What it is a chunk of, as long as anybody waits for that."""

    def stages_ms(self, done_ns: int) -> list[float]:
        """In the order of `wire.STAGES`."""
        return [ns / 1e6 for ns in self._spans_ns(done_ns)]

    def pointless(self, now_ns: int) -> WireError | None:
        """Why it need not be run any more, or None."""
        if is_over(self.deadline_ns, now_ns):
            return late("ran" if self.reached else "was queued")
        if self.gone is not None and self.gone():
            return WireError(499, "the client has gone")
        return None

    def stages_ns(self, done_ns: int) -> dict[str, int]:
        """By the names of `wire.STAGES`."""
        return dict(zip(STAGES, self._spans_ns(done_ns), strict=True))

    def _spans_ns(self, done_ns: int) -> tuple[int, ...]:
        begun, batched, copied_in, computed = self.begun_ns, self.batched_ns, self.copied_in_ns, self.computed_ns
        return begun - self.received_ns, batched - begun, copied_in - batched, computed - copied_in, done_ns - computed

    @property
    def reached(self) -> bool:
        """Whether the device has had any of it."""
        return self.begun_ns > 0 or self.split is not None

    @property
    def left(self) -> int:
        """Rows that no batch has taken yet."""
        return self.rows if self.split is None else self.rows - self.split.taken

    def chunk(self, most: int) -> Job:
        """The next rows of it, `most` at most, as a job of their own."""
        if self.split is None:
            self.split = Split()
        return self.split.chunk(self, most)

    def cut(self, stretched: Set[str]) -> None:
        """Outputs that are as long as the request, to that length."""
        assert self.outputs is not None
        for name in stretched & self.outputs.keys():
            self.outputs[name] = self.outputs[name][:, : natural_length(self.tensors)]


class Split:
    """A job in chunks: what is taken, what is done, and the pieces of its outputs."""

    def __init__(self) -> None:
        self.taken = 0
        self.over = False
        """Complete, failed, or given up: chunks that are still being run no longer matter."""
        self._chunks: list[Job] = []
        self._rows_done = 0

    def chunk(self, whole: Job, most: int) -> Job:
        start = self.taken
        self.taken = min(whole.rows, start + most)
        tensors = {name: tensor[start : self.taken] for name, tensor in whole.tensors.items()}
        rows = self.taken - start
        chunk = Job(tensors, rows, whole.wanted, whole.received_ns, whole.deadline_ns, part_of=ref(whole))
        self._chunks.append(chunk)
        return chunk

    def settle(self, whole: Job, chunk: Job) -> bool:
        """Takes a chunk that is done or failed; whether that was the end of the whole job."""
        if self.over:
            return False
        self._rows_done += chunk.rows
        if chunk.error is not None:
            whole.error = chunk.error
        elif self._rows_done == whole.rows:
            self._join(whole)
        else:
            return False
        self.over = True
        return True

    def _join(self, whole: Job) -> None:
        found = [chunk.outputs for chunk in self._chunks if chunk.outputs is not None]
        whole.outputs = {name: np.concatenate([outputs[name] for outputs in found]) for name in whole.wanted}
        whole.batch_rows = max(chunk.batch_rows for chunk in self._chunks)
        self._time(whole)

    def _time(self, whole: Job) -> None:
        """Each stage lasts as long as in all chunks together; what is left between them was spent queueing."""

        def spent(stages: Iterable[tuple[int, int]]) -> int:
            return sum(end - start for start, end in stages)

        done = self._chunks
        end = max(chunk.computed_ns for chunk in done)
        compute = spent((chunk.copied_in_ns, chunk.computed_ns) for chunk in done)
        h2d = spent((chunk.batched_ns, chunk.copied_in_ns) for chunk in done)
        batch = spent((chunk.begun_ns, chunk.batched_ns) for chunk in done)
        # with several batches in flight their stages overlap, and may add up to more than there was
        whole.computed_ns = end
        whole.copied_in_ns = max(whole.received_ns, end - compute)
        whole.batched_ns = max(whole.received_ns, whole.copied_in_ns - h2d)
        whole.begun_ns = max(whole.received_ns, whole.batched_ns - batch)


def settled(job: Job) -> Job | None:
    """The job to be delivered now that this one is done or failed: itself, or what it was the last chunk of."""
    while job.part_of is not None:
        whole = job.part_of()
        if whole is None or whole.split is None or not whole.split.settle(whole, job):
            return None
        job = whole
    return job


def grouped(jobs: Sequence[Job], most: int) -> Iterator[list[Job]]:
    """In batches of `most` rows at most, in order; a job of more goes in chunks."""
    batch: list[Job] = []
    rows = 0
    for job in jobs:
        pieces = [job] if job.rows <= most else [job.chunk(most) for _ in range(0, job.rows, most)]
        for piece in pieces:
            if rows + piece.rows > most:
                yield batch
                batch, rows = [], 0
            batch.append(piece)
            rows += piece.rows
    yield batch
