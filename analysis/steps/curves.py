"""Latency by percentile, and what came out of batches of each size: the rows that whole curves are drawn from.

Latencies are exact where the table of steps has them; between these they come from counts in bins 3 % wide, within
which arrivals are taken to lie evenly, so they are good to about one per cent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrate.analysis.run.bins import BINS, LOWEST, MOST_ROWS, SPLIT
from tailrate.analysis.stats.array_types import Floats, Ints

if TYPE_CHECKING:
    from tailrate.analysis.counting.counts import Tally
    from tailrate.analysis.steps.measure import MeasuredStep

PER_DECADE = 8
"""Points of a curve while what lies above the percentile becomes a tenth."""
LEAST_ABOVE = 3
"""Arrivals that a point of the curve has above it; the largest few of a sample say little about the next one's."""

EDGES_MS: Floats = ((np.arange(BINS + 1) + LOWEST) << (52 - SPLIT)).astype(np.int64).view(np.float64)
"""Where the bins of latency begin."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Of all arrivals in a step's window; a latency is infinite where failures are reached."""

    index: int
    endpoint: str
    percentile: tuple[float, ...]
    latency_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Batches:
    """Successes of a step's window that ran in batches of so many rows."""

    index: int
    endpoint: str
    batch_rows: int
    requests: int
    compute_ms: float | None
    """Mean over these requests of the time that their batch was computed for."""
    rows_per_second: float | None
    """What a device does that computes nothing but such batches, one after another."""


def curves(steps: Iterable[MeasuredStep]) -> list[Curve]:
    """A curve per step that has arrivals and no growing queue, which has no distribution."""
    return [_curve(step) for step in steps if step.tally.n and not step.overloaded]


def batches(steps: Iterable[MeasuredStep]) -> list[Batches]:
    """A row per step and batch size that occurred; nothing where the server tells none."""
    return [row for step in steps for row in _batches(step)]


def percentiles(n: int) -> list[float]:
    """0, 25, 43.8, 57.8 … 90 … 99 … as far as so many arrivals carry them, round ones included."""
    most = max(1.0, n / LEAST_ABOVE)
    tenths = math.floor(PER_DECADE * math.log10(most))
    found = {round(100 * (1 - 10 ** (-k / PER_DECADE)), 6) for k in range(tenths + 1)}
    return sorted(found | {p for p in (50.0, 95.0) if (1 - p / 100) * n >= LEAST_ABOVE})


def in_bins(counts: Floats | Ints, below: float) -> float:
    """The latency in ms under which so many arrivals lie, by counts per bin, taken to lie evenly within each."""
    reached = np.cumsum(counts)
    below = max(1.0, below)  # the fastest of all
    place = int(np.searchsorted(reached, below, side="left"))
    if place >= BINS:
        return math.inf
    inside = (below - (reached[place] - counts[place])) / counts[place] if counts[place] else 0.0
    return float(EDGES_MS[place] + inside * (EDGES_MS[place + 1] - EDGES_MS[place]))


def _curve(step: MeasuredStep) -> Curve:
    tally, known = step.tally, step.order.latency_ms
    counts = tally.by_latency[:, 0]
    asked = percentiles(tally.n)
    found = [known[p] if p in known else in_bins(counts, p / 100 * tally.n) for p in asked]
    # a bin is coarser than an exact value beside it
    least = np.minimum.accumulate([known.get(p, math.inf) for p in reversed(asked)])[::-1]
    return Curve(
        step.summary.index,
        step.summary.endpoint,
        tuple(asked),
        tuple(np.minimum(np.maximum.accumulate(found), least).tolist()),
    )


def _batches(step: MeasuredStep) -> list[Batches]:
    tally: Tally = step.tally
    found = []
    for rows in np.flatnonzero(tally.by_batch[:, 0]).tolist():
        requests, timed, compute_ms = tally.by_batch[rows].tolist()
        mean = compute_ms / timed if timed else None
        rate = 1e3 * rows / mean if mean and rows < MOST_ROWS else None
        found.append(Batches(step.summary.index, step.summary.endpoint, rows, int(requests), mean, rate))
    return found
