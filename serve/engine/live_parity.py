"""Is a variant still the same model under load? A seeded share of its answers, compared with eager fp32 afterwards.

What is sampled is copied and kept, within bounds, until no batch has run for a while; then the engine's thread
runs the eager module on the same inputs, one request at a time. So live traffic waits for one eager request at
the worst, and in a measured step for none.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrate.serve.runner import parity
from tailrate.serve.wire import Array

if TYPE_CHECKING:
    import torch

    from tailrate.serve.engine.batch_observer import Seen

log = logging.getLogger(__name__)

QUIET_S = 1.0
"""Longer than the breath between two steps of a run, so that none of them begins beside a comparison."""
MOST_KEPT = 32
MOST_BYTES = 64 << 20


Reference = Callable[[Sequence[Array]], "Sequence[torch.Tensor]"]
"""The eager fp32 module over a request's arrays, in the engine's thread."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request's inputs and what it was answered."""

    inputs: tuple[Array, ...]
    outputs: dict[str, Array]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.inputs, *self.outputs.values()))


class Samples:
    """Of one replica; `names` are the model's outputs in order. Idle until there is something to `compare_with`."""

    def __init__(
        self,
        share: float,
        seed: int,
        names: Sequence[str],
        count: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share = 0.0
        self._wanted_share = share
        self._random = random.Random(seed)
        self._names = tuple(names)
        self._count = count
        """Told of each comparison; see `counters.EVENTS`."""
        self._clock = clock
        self._skip = math.inf
        self._kept: deque[Sample] = deque()
        self._kept_bytes = 0
        self._last_s = clock()
        self._compared = self._failed = self._left_out = 0
        self._worst_error: float | None = None
        self._worst_cosine: float | None = None
        self._why = ""

    def compare_with(self, reference: Reference, failure: Callable[[parity.Parity], str | None]) -> None:
        """From now on answers are sampled and held against `reference`; `failure` says what is wrong, if anything."""
        self._reference, self._failure = reference, failure
        self._share = self._wanted_share
        self._skip = self._gap()

    def _gap(self) -> float:
        """How many requests pass until the next one that is kept."""
        if self._share <= 0:
            return math.inf
        if self._share >= 1:
            return 0
        return math.floor(math.log(1 - self._random.random()) / math.log(1 - self._share))

    # ---- the engine's thread

    def batch(self, jobs: Sequence[Seen]) -> None:
        """A batch is done: keeps those of its requests whose turn it is."""
        self._last_s = self._clock()
        while self._skip < len(jobs):
            self._keep(jobs[int(self._skip)])
            self._skip += 1 + self._gap()
        self._skip -= len(jobs)

    def idle(self) -> float | None:
        """Nothing waits: compares one sample if it has been quiet; says in how many seconds to be called again."""
        if not self._kept:
            return None
        noisy_s = self._last_s + QUIET_S - self._clock()
        if noisy_s > 0:
            return noisy_s
        sample = self._kept[0]
        try:
            self._compare(sample)
            self._kept.popleft()  # now, so that what is being compared still counts as waiting
            self._kept_bytes -= sample.nbytes
        except Exception as problem:  # such as no memory for the reference: the variant itself goes on
            log.exception("sampled responses are not compared any more")
            self._share, self._skip = 0.0, math.inf
            self._kept.clear()
            self._kept_bytes = 0
            self._why = self._why or f"the comparison failed: {type(problem).__name__}: {problem}".split("\n", 1)[0]
        return 0.0 if self._kept else None

    def _keep(self, job: Seen) -> None:
        if job.outputs is None:
            return
        sample = Sample(tuple(job.tensors.values()), dict(job.outputs))
        if len(self._kept) >= MOST_KEPT or self._kept_bytes + sample.nbytes > MOST_BYTES:
            self._left_out += 1
            return
        # copied: inputs are views into the request's body, outputs may be overwritten by the next batch
        inputs = tuple(array.copy() for array in sample.inputs)
        self._kept.append(Sample(inputs, {name: array.copy() for name, array in sample.outputs.items()}))
        self._kept_bytes += sample.nbytes

    def _compare(self, sample: Sample) -> None:
        import torch

        wanted = dict(zip(self._names, self._reference(sample.inputs), strict=True))
        found = {name: torch.from_numpy(array) for name, array in sample.outputs.items()}
        alike = [name for name in found if found[name].shape == wanted[name].shape]
        if not alike or not all(bool(wanted[name].isfinite().all()) for name in alike):
            self._left_out += 1  # there is nothing to hold it against, such as an input with NaN in it
            return
        compared = parity.compare([found[name] for name in alike], [wanted[name].cpu() for name in alike])
        self._compared += 1
        self._worst_error = max(self._worst_error or 0.0, _number(compared.relative_error, math.inf))
        self._worst_cosine = min(
            1.0 if self._worst_cosine is None else self._worst_cosine, _number(compared.cosine, -1)
        )
        self._count("parity_samples")
        if (why := self._failure(compared)) is not None:
            self._failed += 1
            self._why = self._why or why
            self._count("parity_failures")

    # ---- any thread

    def facts(self) -> dict[str, Any]:
        """For the metadata; figures are null until something was compared."""
        error = self._worst_error
        return {
            "sampled_share": self._share,
            "sampled_responses": self._compared,
            "sampled_failures": self._failed,
            "sampled_waiting": len(self._kept),
            "sampled_left_out": self._left_out,
            "sampled_relative_error": None if error is None or math.isinf(error) else error,
            "sampled_cosine": self._worst_cosine,
            "sampled_why": self._why,
        }


def _number(value: float, instead_of_nan: float) -> float:
    return instead_of_nan if math.isnan(value) else value
