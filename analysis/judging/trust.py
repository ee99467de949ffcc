"""Whether a window says something of the endpoint, or of the load generator: sent late, dropped, too busy. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from tailrate.analysis.judging.share import percent
from tailrate.analysis.records.objective import LATE_MS, LATE_SHARE, MOST_CPU_PCT, MOST_UNSENT, Slo
from tailrate.analysis.stats.array_types import Floats
from tailrate.analysis.stats.trend import Growth
from tailrate.analysis.text.words import significant

MOST_GIVEN_UP = 0.05
FIRST = 20
"""Successes that tell how long an answer took before anything waited."""
SPARE = 1.5
"""Of requests under way, over rate times P99: what to ask for where there were too few."""
FILLED = 99.0
"""Percentile of how long answers stream: after that time as many are under way as will be where nothing waits."""
BUILT_UP = 2.0
"""A queue is seen by answers that take so many times as long as the first ones."""


def late_limit_ms(slos: Iterable[Slo], usual_ms: float, *, streams: bool = False) -> float:
    """How late arrivals may be sent: so that the nearest objective would not show it, or else the usual service.

    Of streams without one the first token would show it, however long the whole answer takes. TPOT shows nothing of it.
    """
    limits = [bound.ms for slo in slos for name, bound in slo.bounds.items() if name != "tpot" and bound.ms < math.inf]
    return max(LATE_MS, LATE_SHARE * min(limits, default=0.0 if streams else usual_ms))


def lateness(p99_ms: float, late: int, limit_ms: float) -> str:
    """Why latencies may be the load generator's, or nothing."""
    # under a hundred arrivals the P99 is the latest of all: one hiccup is not a late generator
    if p99_ms <= limit_ms or late <= 1:
        return ""
    p99, limit = significant(p99_ms), significant(limit_ms)
    return f"the load generator was late: P99 {p99} ms, where {limit} ms would do no harm"


def doubts(dropped: int, n: int, would_do: float | None, cpu_pct: float | None) -> list[str]:
    """Why a step's figures say more about the load generator than about the endpoint; empty: they can be trusted."""
    found = []
    if dropped > MOST_UNSENT * n:
        to = f" to {significant(float(f'{would_do:.2g}'))}" if would_do else ""
        share = percent(dropped / n)
        found.append(f"{share} of the arrivals were dropped although the queue did not grow: raise --max-in-flight{to}")
    if cpu_pct is not None and cpu_pct > MOST_CPU_PCT:
        found.append(f"a load process was busy for {cpu_pct:.0f} % of the time")
    return found


def overload(growth: Growth, n: int, given_up: int, dropped: int, early_ms: float, later_ms: float) -> str:
    """How the queue grew, where it did: of so many arrivals, those given up ran into the time limit or were dropped.

    Where all were dropped, nothing was asked of the endpoint.
    """
    if growth.rising:
        return f"the queue grew by {growth.per_s:.3g} requests/s"
    # where answers took as long from the beginning, only the client's own limit was reached
    if dropped < n and given_up / n >= MOST_GIVEN_UP and not later_ms < BUILT_UP * early_ms:
        return f"{percent(given_up / n)} of the arrivals were dropped or ran into the time limit"
    return ""


def early_ms(answered: Floats, took_ms: Floats) -> float:
    """Mean latency of the first successes of a step, settle time included: by slice of time how many, and their sum."""
    first = 1 + int(np.searchsorted(np.cumsum(answered), min(FIRST, answered.sum())))
    count = answered[:first].sum()
    return float(took_ms[:first].sum() / count) if count else math.inf
