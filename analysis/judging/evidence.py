"""What the arrivals of a window say to an objective: for each term a count and how much it is worth, for the judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

from tailrate.analysis.judging.share import Count, Term, terms
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.stats.dependence import LEAST_BEYOND, effective_size, worth
from tailrate.analysis.stats.sketch import Sketch
from tailrate.analysis.text.words import significant

SHOWN_AT = (50.0, 75.0, 90.0, 95.0, 97.5, 99.0, 99.5, 100.0)
"""Percentiles at which dependence is looked for; the last stands for the highest with enough arrivals beyond."""

Burst = Callable[[], float]
"""The mean number of failures in a row."""
Shown = Callable[[Sketch], tuple[float, float]]


def counts(
    slo: Slo, sketch: Sketch, seconds: float, burst: Burst, others: Mapping[str, Sketch] = MappingProxyType({})
) -> tuple[Count, ...]:
    """The sketch of latencies has an edge at each one of the objective; so have those of streams' figures, by name."""
    shown = cache(_shown)  # the same for each term that needs it
    return tuple(
        count(term, of, seconds, burst, shown) if (of := {"": sketch, **others}.get(term.figure)) else Count(0, 0)
        for term in terms(slo)
    )


def count(term: Term, sketch: Sketch, seconds: float, burst: Burst, shown: Shown | None = None) -> Count:
    """Dependence is that of those beyond, where there are enough to see it.

    Where there are not, it is the least that any share of slow arrivals shows: what hardly ever happens is no more
    dependent than what happens more often. Of few failures, which latencies say nothing of, it is how many came in a
    row.
    """
    n, beyond = sketch.n, sketch.beyond(term.limit_ms).astype(float)
    over = int(beyond.sum())
    if over >= LEAST_BEYOND:
        return Count(n, over, n / worth(sketch.counts.sum(axis=1).astype(float), beyond), seconds)
    if not term.of_latency:
        in_a_row = burst() if over else 1.0
        return Count(n, over, in_a_row, seconds, f"{significant(in_a_row, 2)} failures in a row")
    size, percent = (shown or _shown)(sketch)
    by = f"as those above P{percent:g} came" if percent < 100 else f"as the {LEAST_BEYOND} slowest came"
    return Count(n, over, n / size, seconds, by)


def _shown(sketch: Sketch) -> tuple[float, float]:
    """The most that its arrivals are worth at any of the percentiles, and at which."""
    sizes = {percent: effective_size(sketch, percent) or 1.0 for percent in SHOWN_AT}
    percent = max(sizes, key=lambda one: sizes[one])
    return sizes[percent], percent
