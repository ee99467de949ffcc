"""What a step's window says of its latency percentiles, and how surely.

Every interval is a binomial one at the number of independent arrivals that those of the window are worth, and open
above where the sample could well lie wholly below the percentile. Knows neither steps nor files. What never happened
in a window cannot show: one that met no rare stall is sure, and wrong. How often intervals hold the truth, and how
other estimators do: tests/bench/intervals.py.
"""

from __future__ import annotations

import math

from tailrate.analysis.stats.dependence import effective_size
from tailrate.analysis.stats.distributions import betaincinv
from tailrate.analysis.stats.sketch import Sketch, quantile


def bounds(percent: float, n_eff: float | None, confidence: float = 0.95) -> tuple[float, float | None] | None:
    """Probabilities whose sample quantiles hold the true percentile between them (Clopper and Pearson).

    The upper one is None where all of so many might well be below it. None of too small a sample.
    """
    if n_eff is None:
        return None
    p, tail = percent / 100, (1 - confidence) / 2
    hits = n_eff * p
    low = betaincinv(hits, n_eff - hits + 1, tail) if (1 - p) ** n_eff <= tail else 0.0
    open_ = n_eff < least_for_upper(percent, confidence)
    return low, None if open_ else betaincinv(hits + 1, n_eff - hits, 1 - tail)


def least_for_upper(percent: float, confidence: float = 0.95) -> float:
    """Independent arrivals from which on an interval has an upper end.

    >>> math.ceil(least_for_upper(99))
    368
    """
    return math.log((1 - confidence) / 2) / math.log(percent / 100)


def ranks(n: int, percent: float, n_eff: float | None, confidence: float = 0.95) -> tuple[int, int | None] | None:
    """The same as ranks, from zero, of the n sorted values."""
    found = bounds(percent, n_eff, confidence)
    if found is None:
        return None
    low, high = found
    return max(0, math.floor(low * n) - 1), None if high is None else min(n - 1, math.ceil(high * n) - 1)


def interval(sketch: Sketch, percent: float, confidence: float = 0.95) -> tuple[float, float] | None:
    """Latencies that hold the true percentile between them, or None; the upper one may be infinite."""
    found = bounds(percent, effective_size(sketch, percent), confidence)
    if found is None:
        return None
    low, high = found
    return quantile(sketch, low), math.inf if high is None else quantile(sketch, high)
