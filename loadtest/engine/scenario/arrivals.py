"""When arrivals are due: pure, seeded, without a clock.

A schedule is a sorted array of nanoseconds from the start of a step. It depends on the pattern, the rate, the length,
the seed and the phase alone, never on responses, so the same seed gives every endpoint the same arrivals. They are
drawn at a rate of one and carried to time by the inverse of the cumulative rate, so that every spacing goes with every
shape. Nothing is rescaled to end on a round number. In distributed runs a worker's share is every `count`-th arrival,
so the shares of all workers together are exactly the schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailrate.analysis.records.manifest import in_ns

Offsets = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SPACINGS = {
    "constant": "evenly",
    "poisson": "at random, independent of each other",
    "gamma": "in bursts or more evenly than at random (see burstiness)",
}
SHAPES = {
    "flat": "flat",
    "linear": "linear:FROM:TO",
    "steps": "steps:FACTOR:FACTOR:…",
    "sine": "sine:DEPTH[:PERIOD_S[:FROM_S]]",
    "spike": "spike:FACTOR:AT_S:SECONDS",
}
"""How a step's rate may change over its length; numbers are factors of its rate, or seconds."""
GRID_S = 0.001


@dataclass(frozen=True, slots=True)
class Arrival:
    """One scheduled request: `offset_ns` after its block's start, whatever became of the ones before it."""

    seq: int
    step: int
    offset_ns: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """How arrivals are spaced around a rate, and how that rate changes over a step; or a recorded trace."""

    spacing: str = "constant"
    burstiness: float = 1.0
    """Shape of gamma's gaps: 1 is Poisson, below it come bursts, far above it an even spacing."""
    shape: str = "flat"
    trace_ns: tuple[int, ...] = ()
    """Arrivals as they were recorded, from the first; rate, spacing and shape then count for nothing."""

    def offsets(self, rate_rps: float, seconds: float, seed: int, phase: float = 0.0) -> Offsets:
        """All arrivals of a step, in nanoseconds from its start; even ones begin with a part of their gap, the phase.

        >>> Pattern().offsets(4, 1, seed=1).tolist()
        [0, 250000000, 500000000, 750000000]
        """
        if self.trace_ns:
            at = np.asarray(self.trace_ns)
        elif self.spacing == "constant" and self.shape == "flat":  # each rounded by itself, none accumulated
            at = np.round((np.arange(np.ceil(rate_rps * seconds)) + phase) * (1e9 / rate_rps))
        else:
            times, factors = _cumulative(self.shape, seconds)
            expected = factors * rate_rps
            events = self._events(float(expected[-1]), np.random.default_rng(seed), phase)
            at = np.round(np.interp(events, expected, times) * 1e9)
        return at[at < in_ns(seconds)].astype(np.int64)  # what is due at the end itself, no window would count

    def _events(self, until: float, rng: np.random.Generator, phase: float) -> Floats:
        """Arrivals at a rate of one, to beyond `until`; their number is whatever it turns out to be."""
        if self.spacing == "constant":
            return np.arange(math.ceil(until), dtype=np.float64) + phase
        gaps: dict[str, Callable[[int], Floats]] = {
            "poisson": lambda count: rng.standard_exponential(count),
            "gamma": lambda count: rng.gamma(self.burstiness, 1 / self.burstiness, count),
        }
        draw = gaps[self.spacing]
        chunk = int(until + 4 * until**0.5 + 16)
        at = np.cumsum(draw(chunk))
        while at[-1] < until:
            at = np.concatenate([at, at[-1] + np.cumsum(draw(chunk))])
        return at[at < until]


def peak(shape: str) -> float:
    """The highest factor that a shape comes to."""
    kind, numbers = parse_shape(shape)
    if kind == "sine":
        return 1 + numbers[0]
    return max(1.0, numbers[0]) if kind == "spike" else max(numbers, default=1.0)


def mean_arrivals(shape: str, seconds: float) -> float:
    """How many there are at a rate of one, in the mean over all seeds."""
    return float(_cumulative(shape, seconds)[1][-1])


def _cumulative(shape: str, seconds: float) -> tuple[Floats, Floats]:
    """(times, ∫ factor) at as many points as straight lines between them need."""
    kind, numbers = parse_shape(shape)
    if kind == "sine":
        depth, period = numbers[0], numbers[1] if len(numbers) > 1 else seconds
        times = np.linspace(0, seconds, int(seconds / GRID_S) + 2)
        turn, from_s = 2 * math.pi / period, numbers[2] if len(numbers) > 2 else 0.0
        return times, times + depth / turn * (math.cos(turn * from_s) - np.cos(turn * (from_s + times)))
    if kind == "linear":
        first, last = numbers
        times = np.linspace(0, seconds, int(seconds / GRID_S) + 2)
        return times, first * times + (last - first) / (2 * seconds) * times**2
    if kind == "steps":
        edges, factors = np.linspace(0, seconds, len(numbers) + 1), np.asarray(numbers)
    elif kind == "spike":
        factor, begin, length = numbers
        edges = np.array([0, min(begin, seconds), min(begin + length, seconds), seconds])
        factors = np.array([1, factor, 1])
    else:
        edges, factors = np.array([0, seconds]), np.array([1.0])
    return edges, np.concatenate([[0.0], np.cumsum(np.diff(edges) * factors)])


def parse_shape(text: str) -> tuple[str, tuple[float, ...]]:
    """Raises `ValueError` with one sentence.

    >>> parse_shape("sine:0.5:60")
    ('sine', (0.5, 60.0))
    """
    kind, *words = text.split(":")
    known = ", ".join(SHAPES.values())
    try:
        numbers = tuple(float(word) for word in words)
    except ValueError:
        raise ValueError(f"shape '{text}' is not understood; write one of {known}") from None
    fits = {
        "flat": not numbers,
        "linear": len(numbers) == 2 and min(numbers, default=-1) >= 0 < max(numbers, default=0),
        "steps": len(numbers) > 0 and min(numbers, default=0) > 0,
        "sine": len(numbers) in (1, 2, 3) and 0 <= numbers[0] < 1 and min(numbers[1:2], default=1) > 0 <= numbers[-1],
        "spike": len(numbers) == 3 and numbers[0] > 0 and numbers[1] >= 0 and numbers[2] > 0,
    }
    if not fits.get(kind, False) or not all(map(math.isfinite, numbers)):
        raise ValueError(f"shape '{text}' is not understood; write one of {known}")
    return kind, numbers


def share(schedule: Offsets, step: int, index: int, count: int, from_ns: int = 0) -> Iterator[Arrival]:
    """The arrivals of worker `index` of `count`, in a step that begins `from_ns` into its block."""
    for seq, offset in zip(range(index, len(schedule), count), schedule[index::count].tolist(), strict=True):
        yield Arrival(seq, step, from_ns + offset)
