"""What the arrivals of a window say to an objective: for each term a count and how much it is worth, for the judge."""

from __future__ import annotations

import math
from collections.abc import Callable

from analysis.judge import Count, Term, terms
from analysis.records import Slo
from analysis.sketch import LEAST_BEYOND, Sketch, effective_size, worth

Burst = Callable[[], float]
"""The mean number of failures in a row."""


def counts(slo: Slo, sketch: Sketch, seconds: float, burst: Burst) -> tuple[Count, ...]:
    """The sketch has an edge at each latency of the objective."""
    return tuple(_count(term, sketch, seconds, burst) for term in terms(slo))


def _count(term: Term, sketch: Sketch, seconds: float, burst: Burst) -> Count:
    """Dependence is that of those beyond, where there are enough to see it; else of the slowest that are enough.

    Of few failures, which latencies say nothing of, it is how many came in a row.
    """
    n, beyond = sketch.n, sketch.beyond(term.limit_ms).astype(float)
    over = int(beyond.sum())
    if over >= LEAST_BEYOND:
        dependence = n / worth(sketch.counts.sum(axis=1), beyond)
    elif math.isinf(term.limit_ms):
        dependence = burst() if over else 1.0
    else:
        dependence = n / (effective_size(sketch, 100.0) or 1.0)
    return Count(n, over, dependence, seconds)
