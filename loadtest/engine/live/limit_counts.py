"""Arrivals by second, and those beyond each limit of the objectives: what the judge needs while rows come in."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tailrate.analysis.judging.share import Count, terms
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.stats.dependence import LEAST_BEYOND, worth
from tailrate.loadtest.engine.scenario.knee_search import USUAL

Floats = npt.NDArray[np.float64]

LEAST_SECONDS = 20
"""From which on they tell how much arrivals depend on each other."""


class Counted:
    """`add` arrivals as they come, `count` those beyond a limit; above an infinite one are failures."""

    def __init__(self, slos: Sequence[Slo]) -> None:
        self.limits_ms = sorted({term.limit_ms for slo in slos for term in terms(slo)})
        self._by_second: dict[int, npt.NDArray[np.int64]] = {}

    def add(self, due_s: Floats, latency_ms: Floats) -> None:
        if not self.limits_ms:
            return
        seconds = due_s.astype(np.int64)
        for second in np.unique(seconds).tolist():
            mine = latency_ms[seconds == second]
            beyond = [np.isinf(mine).sum() if math.isinf(limit) else (mine > limit).sum() for limit in self.limits_ms]
            row = self._by_second.setdefault(second, np.zeros(1 + len(beyond), dtype=np.int64))
            row += [len(mine), *beyond]

    def __bool__(self) -> bool:
        return bool(self._by_second)

    def counts(self) -> list[tuple[float, Count]]:
        return [(limit_ms, self.count(limit_ms)) for limit_ms in self.limits_ms]

    def count(self, limit_ms: float) -> Count:
        rows = np.array([self._by_second[second] for second in sorted(self._by_second)], dtype=np.float64)
        if not len(rows):
            return Count(0, 0)
        arrivals, beyond = rows[:, 0], rows[:, 1 + self.limits_ms.index(limit_ms)]
        n, over = int(arrivals.sum()), int(beyond.sum())
        seconds = float(len(rows))
        if over >= LEAST_BEYOND and len(rows) >= LEAST_SECONDS:
            return Count(n, over, n / worth(arrivals, beyond), seconds)
        return Count(n, over, USUAL, seconds, "as is usual")
