"""Statistics of latencies: percentiles, their intervals, sample sizes, trends, ratios.

Pure functions of arrays; a failure is +infinity. Knows neither steps nor files. Methods and their measured
coverage are in the field notes; each is tested against a published table or a known distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special, stats

Floats = npt.NDArray[np.float64]

BATCHES = 50
LEAST_N_EFF = 200
"""Below this many effective samples an interval would be narrower than it may be: there is none."""


def percentile(values: Floats, percent: float) -> float:
    """The exact order statistic, NaN of nothing.

    >>> percentile(np.array([1.0, 2.0, np.inf]), 50)
    2.0
    """
    return float(np.quantile(values, percent / 100, method="higher")) if len(values) else math.nan


def effective_size(values: Floats, percent: float) -> float | None:
    """How many independent samples these, in order of time, are worth for this percentile; None under 2 a batch.

    The variance of batch means of 1{x > percentile} against what independent samples would show.
    """
    if len(values) < 2 * BATCHES:
        return None
    quantile = percentile(values, percent)
    over = values > quantile if math.isfinite(quantile) else np.isinf(values)
    edges = np.arange(BATCHES) * len(values) // BATCHES
    means = np.add.reduceat(over, edges, dtype=np.float64) / np.diff(np.append(edges, len(values)))
    share, variance = over.mean(), means.var(ddof=1) / BATCHES
    return min(float(len(values)), float(share * (1 - share) / variance)) if variance > 0 else float(len(values))


def percentile_interval(
    values: Floats, percent: float, n_eff: float | None, confidence: float = 0.95
) -> tuple[float, float] | None:
    """Order statistics that hold the true percentile between them, or None if the sample is too small to say.

    The binomial interval for the rank (Clopper-Pearson) at the effective sample size.
    """
    if n_eff is None or n_eff < LEAST_N_EFF:
        return None
    tail, hits, n = (1 - confidence) / 2, n_eff * percent / 100, len(values)
    low = stats.beta.ppf(tail, hits, n_eff - hits + 1)
    high = stats.beta.ppf(1 - tail, hits + 1, n_eff - hits)
    ranks = [max(0, math.floor(low * n) - 1), min(n - 1, math.ceil(high * n) - 1)]
    found = np.partition(values, ranks)[ranks]
    return float(found[0]), float(found[1])


# ---- how many arrivals a percentile needs


def early_stop_n(percent: float, over: int = 0, confidence: float = 0.99) -> int:
    """MLPerf's early stopping: the arrivals needed to claim the percentile when `over` of them were over it.

    The smallest h with I_p(h, over + 1) ≤ 1 − confidence, plus `over`.

    >>> early_stop_n(99), early_stop_n(99, 1)
    (459, 662)
    """
    p = percent / 100
    low, high = 0, 1
    while special.betainc(high, over + 1, p) > 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if special.betainc(middle, over + 1, p) <= 1 - confidence else (middle, high)
    return high + over


def surely_over(n: int, over: int, percent: float, confidence: float = 0.99) -> bool:
    """So many of n are over the limit that the percentile itself can hardly be below it."""
    return over > 0 and bool(special.betainc(over, n - over + 1, 1 - percent / 100) <= 1 - confidence)


# ---- trends


def mann_kendall(values: Sequence[float] | Floats) -> tuple[float, float]:
    """Kendall's tau of the values against their order, and the one-sided p-value of a rise."""
    found = stats.kendalltau(np.arange(len(values)), np.asarray(values), alternative="greater")
    return (0.0, 1.0) if math.isnan(found.pvalue) else (float(found.statistic), float(found.pvalue))


@dataclass(frozen=True, slots=True)
class Growth:
    """What the number of unanswered requests did over a window."""

    rising: bool
    per_s: float
    p_value: float


def queue_growth(sent_s: Floats, done_s: Floats, start_s: float, end_s: float) -> Growth:
    """Whether the in-flight count rises without bound: mean of ten segments, Mann-Kendall p < 0.01.

    A request without an answer stays in flight (`done_s` infinite). The rise must also come to half a percent
    of the arrivals: a queue may creep by a fraction of a request without being overloaded.
    """
    if end_s <= start_s or not len(sent_s):
        return Growth(False, 0.0, 1.0)
    edges = np.linspace(start_s, end_s, 11)
    means = np.diff(_elapsed(sent_s, edges) - _elapsed(done_s[np.isfinite(done_s)], edges)) / (edges[1] - edges[0])
    _, p_value = mann_kendall(means)
    per_s = float(stats.theilslopes(means, (edges[1:] + edges[:-1]) / 2).slope)
    arrivals = np.count_nonzero((sent_s >= start_s) & (sent_s < end_s))
    rising = p_value < 0.01 and per_s * (end_s - start_s) > max(1.0, 0.005 * arrivals)
    return Growth(rising, per_s, p_value)


def _elapsed(instants: Floats, until: Floats) -> Floats:
    """Σ max(0, t − instant) for each t: the integral of how many instants have passed."""
    ordered = np.sort(instants)
    passed = np.searchsorted(ordered, until)
    total: Floats = until * passed - np.concatenate([[0.0], np.cumsum(ordered)])[passed]
    return total


# ---- ratios


@dataclass(frozen=True, slots=True)
class Ratio:
    """a ÷ b with its interval, and the smallest change that could have been seen (0.05: five percent)."""

    value: float
    low: float
    high: float
    smallest_visible: float


def paired_ratio(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> Ratio | None:
    """The geometric mean of a ÷ b over rounds, by Student's t on the logarithms; None under two finite rounds."""
    logs = np.log(np.asarray(a, dtype=np.float64)) - np.log(np.asarray(b, dtype=np.float64))
    if len(logs) < 2 or not np.isfinite(logs).all():
        return None
    return _ratio(float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(len(logs)), len(logs) - 1, confidence)


def block_ratio(a: Floats, b: Floats, percent: float, confidence: float = 0.95, draws: int = 400) -> Ratio | None:
    """The ratio of one percentile in two series, each in order of time; None where either cannot carry it.

    A bootstrap over fifty blocks of time, so that autocorrelation within a block stays. Both sides draw the
    same blocks: they had the same arrivals, and what these do to both cancels.
    """
    if any(n_eff is None or n_eff < LEAST_N_EFF for n_eff in (effective_size(a, percent), effective_size(b, percent))):
        return None
    weights = np.random.default_rng(0).multinomial(BATCHES, np.full(BATCHES, 1 / BATCHES), size=draws)
    drawn = _weighted(a, percent, weights), _weighted(b, percent, weights)
    value = percentile(a, percent), percentile(b, percent)
    if not np.isfinite([*drawn[0], *drawn[1], *value]).all() or min(*value, *map(np.min, drawn)) <= 0:
        return None
    spread = float((np.log(drawn[0]) - np.log(drawn[1])).std(ddof=1))
    return _ratio(math.log(value[0] / value[1]), spread, BATCHES - 1, confidence)


def _weighted(values: Floats, percent: float, weights: npt.NDArray[np.int64]) -> Floats:
    """The percentile of each resample, where block k of the values counts `weights[draw, k]` times."""
    order = np.argsort(values)
    block = (np.arange(len(values)) * BATCHES // len(values))[order]
    found = np.empty(len(weights))
    for draw, weight in enumerate(weights):
        count = np.cumsum(weight[block])
        rank = math.ceil((count[-1] - 1) * percent / 100)
        found[draw] = values[order[np.searchsorted(count, rank, side="right")]]
    return found


def _ratio(log_value: float, error: float, freedom: int, confidence: float) -> Ratio:
    reach = float(stats.t.ppf((1 + confidence) / 2, freedom)) * error
    # 2.8 standard errors: seen in 80 of 100 runs at a level of 5 %
    visible = math.expm1(2.8 * error)
    return Ratio(math.exp(log_value), math.exp(log_value - reach), math.exp(log_value + reach), visible)
