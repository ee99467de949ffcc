"""Times in bins a two-hundredth apart: percentiles of any number of them, in constant memory and a few microseconds.

A percentile is the middle of its bin, so it is within a quarter of a percent of the order statistic that the report
works out from the rows; the least and the greatest are exact. What never ended counts as infinitely long.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEAST_MS, MOST_MS = 1e-3, 1e7
GROWTH = math.log(1.005)
BINS = math.ceil(math.log(MOST_MS / LEAST_MS) / GROWTH)


class Histogram:
    """`add` what was measured, `quantile` what came of it."""

    def __init__(self) -> None:
        self.finite = 0
        self.infinite = 0
        self._bins = np.zeros(BINS, dtype=np.int64)
        self._least_ms, self._most_ms = math.inf, -math.inf

    def add(self, values_ms: Floats, infinite: int = 0) -> None:
        self.infinite += infinite
        if len(values_ms):
            at = (np.log(np.clip(values_ms, LEAST_MS, MOST_MS) / LEAST_MS) / GROWTH).astype(np.int64)
            first = int(at.min())
            counts = np.bincount(at - first)
            self._bins[first : first + len(counts)] += counts
            self.finite += len(values_ms)
            self._least_ms = min(self._least_ms, float(values_ms.min()))
            self._most_ms = max(self._most_ms, float(values_ms.max()))

    def merge(self, other: Histogram) -> None:
        self._bins += other._bins
        self.finite += other.finite
        self.infinite += other.infinite
        self._least_ms = min(self._least_ms, other._least_ms)
        self._most_ms = max(self._most_ms, other._most_ms)

    def quantile(self, q: float) -> float | None:
        """None where it is infinite, or nothing was measured."""
        rank = math.ceil(q * (self.finite + self.infinite - 1) - 1e-9)  # as numpy's method "higher"
        if rank < 0 or rank >= self.finite:
            return None
        if rank == self.finite - 1:
            return round(self._most_ms, 3)
        place = int(np.searchsorted(np.cumsum(self._bins), rank, side="right"))
        middle_ms = LEAST_MS * math.exp((place + 0.5) * GROWTH)
        return round(min(max(middle_ms, self._least_ms), self._most_ms), 3)
