"""Arrivals by second, and those beyond each limit of the objectives: what the judge needs while rows come in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tailrate.analysis.judging.share import Count, Term, terms
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.stats.dependence import LEAST_BEYOND, worth
from tailrate.analysis.stats.sketch import as_recorded_ms
from tailrate.loadtest.engine.scenario.knee_search import USUAL, Limits

Floats = npt.NDArray[np.float64]

LEAST_SECONDS = 20
"""From which on they tell how much arrivals depend on each other."""


def limits_of(term: Term) -> Limits:
    """All of which are to be kept."""
    return term.joint or ((term.figure, term.limit_ms),)


def beyond_any(figures_ms: Mapping[str, Floats], limits: Limits) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.zeros(len(figures_ms[""]), np.bool_)
    for name, limit_ms in limits:
        values = figures_ms[name]
        found |= np.isinf(values) if math.isinf(limit_ms) else values > as_recorded_ms(limit_ms)
    return found


class Counted:
    """`add` arrivals as they come, `count` those beyond a limit; above an infinite one are failures."""

    def __init__(self, slos: Sequence[Slo]) -> None:
        self._limits = sorted({limits_of(term) for slo in slos for term in terms(slo)})
        self._by_second: dict[int, npt.NDArray[np.int64]] = {}

    def add(self, due_s: Floats, figures_ms: Mapping[str, Floats]) -> None:
        """By name: the latency is nameless, of streams there are `ttft` and `tpot`; a failure is infinite."""
        if not self._limits:
            return
        seconds = due_s.astype(np.int64)
        for second in np.unique(seconds).tolist():
            mine = {name: values[seconds == second] for name, values in figures_ms.items()}
            beyond = [int(beyond_any(mine, limit).sum()) for limit in self._limits]
            row = self._by_second.setdefault(second, np.zeros(1 + len(beyond), dtype=np.int64))
            row += [len(mine[""]), *beyond]

    def __bool__(self) -> bool:
        return bool(self._by_second)

    def counts(self) -> list[tuple[Limits, Count]]:
        return [(limit, self._count(limit)) for limit in self._limits]

    def count(self, term: Term) -> Count:
        return self._count(limits_of(term))

    def _count(self, limit: Limits) -> Count:
        rows = np.array([self._by_second[second] for second in sorted(self._by_second)], dtype=np.float64)
        if not len(rows):
            return Count(0, 0)
        arrivals, beyond = rows[:, 0], rows[:, 1 + self._limits.index(limit)]
        n, over = int(arrivals.sum()), int(beyond.sum())
        seconds = float(len(rows))
        if over >= LEAST_BEYOND and len(rows) >= LEAST_SECONDS:
            return Count(n, over, n / worth(arrivals, beyond), seconds)
        return Count(n, over, USUAL, seconds, "as is usual")
