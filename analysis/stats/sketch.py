"""Latencies counted by slice of time and by value, in half a megabyte; a failure is +infinity.

The slices carry what makes an interval honest: latencies of neighbouring requests resemble each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailrate.analysis.stats.array_types import Floats

SLICES = 200


def probabilities(n: int) -> Floats:
    """Where the edges of a sketch of n values should lie: dense towards P50 … P99.9, as their intervals are."""
    decades = max(1.0, math.log10(max(n, 1)))
    found = [np.linspace(0, 1, 101), 1 - 10 ** -np.linspace(1, decades, math.ceil(12 * decades))]
    for p in (0.5, 0.9, 0.95, 0.99, 0.999):
        reach = 2 * math.sqrt(p * (1 - p) / max(n, 1)) * np.geomspace(0.1, 10, 18)
        found.append(np.concatenate([p - reach, [p], p + reach]))
    inside = np.concatenate(found)
    return np.unique(np.round(inside[(inside >= 0) & (inside <= 1)], 9))


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """Counts by slice of time and value. Bin k: edges[k-1] < x <= edges[k]; the last: above all, failures included."""

    edges: Floats
    counts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, slices: npt.NDArray[np.integer], values: Floats, limits: Sequence[float] = ()) -> Sketch:
        """Edges are order statistics, and what is to be counted exactly; a repeated value has a bin to itself."""
        n, found = len(values), np.sort(values)
        longest = found[np.isfinite(found)][-1:]
        found = found[np.unique(np.ceil(probabilities(n) * (n - 1)).astype(np.int64))] if n else found
        found = found[np.isfinite(found)]
        repeated = np.nextafter(found[1:][found[1:] == found[:-1]], -math.inf)
        sketch = cls.empty(np.unique(np.concatenate([found, repeated, longest, [*map(as_recorded_ms, limits)]])))
        sketch.add(slices, values)
        return sketch

    @classmethod
    def empty(cls, edges: Floats) -> Sketch:
        return cls(edges, np.zeros((SLICES, len(edges) + 1), np.int64))

    @classmethod
    def of_two(cls, arrived: npt.NDArray[np.int64], above: npt.NDArray[np.int64]) -> Sketch:
        """Arrivals by slice, and those of them that are above the one edge."""
        found = cls.empty(np.zeros(1))
        found.counts[:, 1], found.counts[:, 0] = above, arrived - above
        return found

    def add(self, slices: npt.NDArray[np.integer], values: Floats) -> None:
        cells = np.asarray(slices, np.int64) * self.counts.shape[1] + np.searchsorted(self.edges, values)
        self.counts[...] += np.bincount(cells, minlength=self.counts.size).reshape(self.counts.shape)

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    def beyond(self, limit: float) -> npt.NDArray[np.int64]:
        """Values above a limit that has an edge, by slice; above an infinite one are failures."""
        k = len(self.edges) - 1 if math.isinf(limit) else int(np.searchsorted(self.edges, as_recorded_ms(limit)))
        found: npt.NDArray[np.int64] = self.counts[:, k + 1 :].sum(axis=1)
        return found


def as_recorded_ms(latency_ms: float) -> float:
    """As exactly as latencies are recorded, so that equal ones are equal."""
    return round(latency_ms * 1e6) / 1e6


def quantile(sketch: Sketch, probability: float) -> float:
    """The value at this probability, interpolated inside its bin; NaN of nothing, infinite above the last edge."""
    below = np.cumsum(sketch.counts.sum(axis=0))
    if not below[-1]:
        return math.nan
    rank = 1 + min(max(probability, 0.0), 1.0) * float(below[-1] - 1)
    k = int(np.searchsorted(below, rank))
    if k >= len(sketch.edges):
        return math.inf
    low, high = float(sketch.edges[max(k - 1, 0)]), float(sketch.edges[k])
    if k == 0 or math.nextafter(high, low) == low:
        return high
    return low + (rank - float(below[k - 1])) / float(below[k] - below[k - 1]) * (high - low)
