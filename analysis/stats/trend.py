"""Statistics that need no more than a few numbers: order statistics, sample sizes, trends, steadiness.

Pure functions of arrays; a failure is +infinity. Knows neither steps nor files. How sure a percentile is, and what two
of them differ by, is `sketch`. Each is tested against a published table or a known distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from tailrate.analysis.stats.array_types import Floats
from tailrate.analysis.stats.distributions import betainc


def rank(n: int, percent: float) -> int:
    """The place, from zero, of a percentile in n ordered values: that of `numpy.quantile(method="higher")`."""
    return math.ceil((n - 1) * percent / 100 - 1e-9)


def percentile(values: Floats, percent: float) -> float:
    """The exact order statistic, NaN of nothing.

    >>> percentile(np.array([1.0, 2.0, np.inf]), 50)
    2.0
    """
    if not len(values):
        return math.nan
    place = rank(len(values), percent)
    return float(np.partition(values, place)[place])


def median(values: Floats) -> float:
    """Of a few numbers five times as fast as numpy's."""
    found = np.sort(values)
    return float(found[(len(found) - 1) // 2] + found[len(found) // 2]) / 2


# ---- how many arrivals a percentile needs


def early_stop_n(percent: float, over: int = 0, confidence: float = 0.99) -> int:
    """MLPerf's early stopping: the arrivals needed to claim the percentile when `over` of them were over it.

    The smallest h with I_p(h, over + 1) ≤ 1 − confidence, plus `over`.

    >>> early_stop_n(99), early_stop_n(99, 1)
    (459, 662)
    """
    p = percent / 100
    low, high = 0, 1
    while betainc(high, over + 1, p) > 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if betainc(middle, over + 1, p) <= 1 - confidence else (middle, high)
    return high + over


# ---- trends


def mann_kendall(values: Sequence[float] | Floats) -> tuple[float, float]:
    """Kendall's tau of the values against their order, and the one-sided p-value of a rise.

    The p-value is exact for up to fifty different values, else the normal one with its correction for ties.
    """
    found = np.asarray(values, dtype=np.float64)
    n = len(found)
    if n < 2:
        return 0.0, 1.0
    later = np.sign(found[None, :] - found[:, None])[np.triu_indices(n, 1)]
    score, pairs = float(later.sum()), n * (n - 1) // 2
    _, repeats = np.unique(found, return_counts=True)
    tied = float((repeats * (repeats - 1) / 2).sum())
    if tied == pairs:
        return 0.0, 1.0
    tau = score / math.sqrt(pairs * (pairs - tied))
    if n <= 50 and not tied:
        discordant = round((pairs - score) / 2)
        return tau, float(_at_most(n)[discordant])
    variance = (n * (n - 1) * (2 * n + 5) - float((repeats * (repeats - 1) * (2 * repeats + 5)).sum())) / 18
    return tau, 0.5 * math.erfc(score / math.sqrt(2 * variance))


@cache
def _at_most(n: int) -> Floats:
    """The probability that n different values in random order have at most so many inversions."""
    chances = np.ones(1)
    for k in range(2, n + 1):
        chances = np.convolve(chances, np.full(k, 1 / k))
    return np.cumsum(chances)


def slope(values: Floats, step: float) -> float:
    """The median of all slopes between two of the values, which lie `step` apart (Theil and Sen)."""
    first, second = np.triu_indices(len(values), 1)
    return float(np.median((values[second] - values[first]) / ((second - first) * step))) if len(first) else 0.0


@dataclass(frozen=True, slots=True)
class Growth:
    """What the number of unanswered requests did over a window."""

    rising: bool
    per_s: float
    p_value: float


NO_GROWTH = Growth(False, 0.0, 1.0)


def queue_growth(in_flight: Floats, arrived: Floats, seconds: float) -> Growth:
    """Whether the in-flight count, a mean for each equal part of the window, rises by more than the arrivals explain.

    Per arrival, as a rate that rises has more under way. Means of ten segments, Mann-Kendall p < 0.01. The rise must
    also come to half a percent of the arrivals: a queue may creep by a fraction of a request without being overloaded.
    """
    arrivals = float(arrived.sum())
    if seconds <= 0 or not arrivals or len(in_flight) < 10:
        return NO_GROWTH
    means, due = segments(in_flight, 10), segments(arrived, 10)
    if due.all():
        means = means / due * due.mean()
    _, p_value = mann_kendall(means)
    per_s = slope(means, seconds / 10)
    return Growth(p_value < 0.01 and per_s * seconds > max(1.0, 0.005 * arrivals), per_s, p_value)


def segments(values: Floats, count: int, weights: Floats | None = None) -> Floats:
    """Means of so many nearly equal runs of the values; NaN where a run has no weight."""
    edges = np.arange(count) * len(values) // count
    weight = np.ones(len(values)) if weights is None else weights
    total = np.add.reduceat(np.where(weight > 0, values, 0.0) * weight, edges)
    share = np.add.reduceat(weight, edges)
    means: Floats = np.full(count, np.nan)
    return np.divide(total, share, out=means, where=share > 0)


# ---- steadiness


def settled_after(means: Floats, counts: Floats) -> int:
    """How many of the first means belong to the settling (MSER): without them the mean of the rest is surest.

    White (1997): the d ≤ half that makes s²(d) / (n − d) smallest, over means of at least five values each (MSER-5),
    here means of equal slices of time weighted by their counts.
    """
    known = np.where(counts > 0, means, 0.0)
    # suffix sums: what is left after cutting off the first d
    weight, total, square = (np.cumsum(values[::-1])[::-1] for values in (counts, counts * known, counts * known**2))
    most = len(means) // 2
    left = weight[: most + 1]
    if not len(left) or left[0] <= 0:
        return 0
    safe = np.maximum(left, 1.0)
    spread = np.maximum(square[: most + 1] / safe - (total[: most + 1] / safe) ** 2, 0.0)
    return int(np.argmin(np.where(left > 0, spread / safe, np.inf)))


def three_windows(rates: Sequence[float], latencies: Sequence[float]) -> bool | None:
    """perf_analyzer's rule: the last three windows differ by at most ten percent in rate and latency; None under three.

    A range check, for comparison: slow drift passes it, and chance fails it at small counts.
    """
    if len(rates) < 3 or len(latencies) < 3:
        return None
    last = (list(rates[-3:]), list(latencies[-3:]))
    return all(min(values) > 0 and max(values) / min(values) <= 1.10 for values in last)
