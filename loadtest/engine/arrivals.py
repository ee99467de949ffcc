"""When arrivals are due: pure, seeded, without a clock.

A schedule is a sorted array of nanoseconds from the start of a step. It depends on the process, the
rate, the length and the seed alone, never on responses, so the same seed gives every endpoint the same
arrivals. Nothing is rescaled to end on a round number. In distributed runs a worker's share is every
`count`-th arrival, so the shares of all workers together are exactly the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]

PROCESSES = ("constant", "poisson")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One scheduled request: `offset_ns` after its step's start, whatever became of the ones before it."""

    seq: int
    step: int
    offset_ns: int


def offsets(process: str, rate_rps: float, seconds: float, seed: int) -> Offsets:
    """All arrivals of a step, in nanoseconds from its start.

    >>> offsets("constant", 4, 1, seed=1).tolist()
    [0, 250000000, 500000000, 750000000]
    """
    if process == "constant":
        return np.round(np.arange(np.ceil(rate_rps * seconds)) * (1e9 / rate_rps)).astype(np.int64)
    if process == "poisson":
        return _poisson(rate_rps, seconds, np.random.default_rng(seed))
    raise ValueError(f"unknown arrival process '{process}'; known are {', '.join(PROCESSES)}")


def _poisson(rate_rps: float, seconds: float, rng: np.random.Generator) -> Offsets:
    """Exponential gaps until the step is over; their number is whatever it turns out to be."""
    expected = rate_rps * seconds
    chunk = int(expected + 4 * expected**0.5 + 16)
    at = np.cumsum(rng.exponential(1 / rate_rps, chunk))
    while at[-1] < seconds:
        at = np.concatenate([at, at[-1] + np.cumsum(rng.exponential(1 / rate_rps, chunk))])
    return np.asarray(np.round(at[at < seconds] * 1e9), dtype=np.int64)


def share(schedule: Offsets, step: int, index: int, count: int) -> Iterator[Arrival]:
    """The arrivals of worker `index` of `count`; `seq` numbers the whole schedule."""
    for seq, offset in zip(range(index, len(schedule), count), schedule[index::count].tolist(), strict=True):
        yield Arrival(seq, step, offset)
