"""What a step's window says of its latency percentiles, and how surely, in half a megabyte.

A sketch counts latencies by slice of time and by value; a failure is +infinity. The slices carry what makes an
interval honest: latencies of neighbouring requests resemble each other, so n of them are worth fewer. Every interval
is the binomial one at that `effective_size`; too small a size has none. Knows neither steps nor files. What never
happened in a window cannot show: one that met no rare stall is sure, and wrong. Coverage: tests/bench/intervals.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SLICES = 200
LEAST_N_EFF, LEAST_BEYOND = 200, 2
"""Below so many effective samples, in all and beyond the percentile, an interval would be too narrow: there is none."""

LEVEL = 0.05
WAVES = 30
BY_CHANCE = 0.15
PRIOR = 0.25
"""Cosines that a variance is taken from: fewer see longer correlation, more leave less to chance."""


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
    def of(cls, slices: npt.NDArray[np.integer], values: Floats) -> Sketch:
        """Edges are order statistics; a repeated value has a bin to itself."""
        n, found = len(values), np.sort(values)
        found = found[np.unique(np.ceil(probabilities(n) * (n - 1)).astype(np.int64))] if n else found
        found = found[np.isfinite(found)]
        repeated = found[1:][found[1:] == found[:-1]]
        sketch = cls.empty(np.unique(np.concatenate([found, np.nextafter(repeated, -math.inf)])))
        sketch.add(slices, values)
        return sketch

    @classmethod
    def empty(cls, edges: Floats) -> Sketch:
        return cls(edges, np.zeros((SLICES, len(edges) + 1), np.int64))

    def add(self, slices: npt.NDArray[np.integer], values: Floats) -> None:
        cells = np.asarray(slices, np.int64) * self.counts.shape[1] + np.searchsorted(self.edges, values)
        self.counts[...] += np.bincount(cells, minlength=self.counts.size).reshape(self.counts.shape)

    def __add__(self, other: Sketch) -> Sketch:
        """Both together; they must have the same edges."""
        if not np.array_equal(self.edges, other.edges):
            raise ValueError("sketches can be added only if they have the same edges")
        return Sketch(self.edges, self.counts + other.counts)

    @property
    def n(self) -> int:
        return int(self.counts.sum())


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


# ---- one window


def effective_size(sketch: Sketch, percent: float) -> float | None:
    """How many independent samples these are worth for this percentile; None of nothing.

    Measured at the percentile itself. But a short window of a busy queue holds few of the long waits its tail is
    made of, and looks surest when it misses them. The middle shows the same correlation far more steadily: in
    queues the excess of variance over independent samples is some four times as large at P99 as at P50. The less
    the tail itself can tell, the more this forecast counts, where it is the lower one.
    """
    from scipy import special

    n, tail = sketch.n, 1 - percent / 100
    if not n:
        return None
    measured = n / _inflation(sketch, percent)
    # a variance from so few waves is uncertain: Student's t for the normal; but independent samples, whose variance
    # comes out above its truth by chance as often as below, are not to be thought correlated for that
    allowance = float(special.stdtrit(WAVES, 0.975) / special.ndtri(0.975)) ** 2
    direct = n / max(1.0, allowance * _inflation(sketch, percent) - BY_CHANCE)
    if percent <= 50:
        return max(1.0, direct)
    # in queues the excess at P75 is 1.4 times that at P50
    excess = min(_inflation(sketch, 50) - 1, (_inflation(sketch, 75) - 1) / 1.4) * (1 + 1.75 * math.log10(0.5 / tail))
    # a forecast of few effective samples is itself uncertain: 1 + excess becomes larger by 500 ÷ forecast
    forecast = n / (1 + excess * (1 + 500 * (1 + excess) / n))
    # forty effective samples over the percentile count as much as the forecast
    trust = measured * tail / (measured * tail + 40)
    return max(1.0, float(direct**trust * min(direct, forecast) ** (1 - trust)))


def _inflation(sketch: Sketch, percent: float) -> float:
    """The variance of the share over this percentile against that of independent samples, at least 1."""
    return max(1.0, float(np.mean(_waves(sketch, percent) ** 2)))


def _waves(sketch: Sketch, percent: float) -> Floats:
    """The slowest cosines of how many more of a slice's arrivals were over than expected of their number.

    Each squared is one estimate of the variance of the total number over, correlation and all, in units of what
    independent samples would show (the equal-weighted cosine estimator).
    """
    arrivals = sketch.counts.sum(axis=1)
    below = np.cumsum(sketch.counts.sum(axis=0))[:-1]
    n = int(arrivals.sum())
    k = int(np.argmin(np.abs(below - percent / 100 * n))) if len(below) else -1
    over = sketch.counts[:, k + 1 :].sum(axis=1)
    share = float(over.sum()) / n
    time = (np.arange(SLICES) + 0.5) * math.pi / SLICES
    scale = math.sqrt(2 / (n * share * (1 - share))) if 0 < share < 1 else 0.0
    waves: Floats = scale * np.cos(np.outer(np.arange(1, WAVES + 1), time)) @ (over - share * arrivals)
    return waves


def bounds(n: int, percent: float, n_eff: float | None, confidence: float = 0.95) -> tuple[float, float] | None:
    """Probabilities whose sample quantiles hold the true percentile between them; None of too small a sample.

    Binomial (Clopper-Pearson) at the effective size. None, too, if all n might well be on one side.
    """
    from scipy import special

    p, tail = percent / 100, (1 - confidence) / 2
    if n_eff is None or n_eff * min(p, 1 - p) < LEAST_BEYOND - 1e-6 or n_eff < LEAST_N_EFF or max(p, 1 - p) ** n > tail:
        return None
    hits = n_eff * p
    low = special.betaincinv(hits, n_eff - hits + 1, tail)
    return float(low), float(special.betaincinv(hits + 1, n_eff - hits, 1 - tail))


def ranks(n: int, percent: float, n_eff: float | None, confidence: float = 0.95) -> tuple[int, int] | None:
    """The same as ranks, from zero, of the n sorted values."""
    found = bounds(n, percent, n_eff, confidence)
    return (max(0, math.floor(found[0] * n) - 1), min(n - 1, math.ceil(found[1] * n) - 1)) if found else None


def interval(sketch: Sketch, percent: float, confidence: float = 0.95) -> tuple[float, float] | None:
    """Latencies that hold the true percentile between them, or None; the upper one may be infinite."""
    found = bounds(sketch.n, percent, effective_size(sketch, percent), confidence)
    return (quantile(sketch, found[0]), quantile(sketch, found[1])) if found else None


# ---- two windows


@dataclass(frozen=True, slots=True)
class Doubt:
    """How uncertain the logarithm of a ratio is: its standard error, with the allowance for not knowing it well."""

    error: float

    @property
    def reach(self) -> float:
        """The 95 % interval of ln(ratio) is this much either way."""
        return 1.96 * self.error

    @property
    def smallest_visible(self) -> float:
        """The relative change that would be seen in 80 of 100 runs (0.05: five percent)."""
        return math.expm1(2.8 * self.error)

    def p_value(self, log: float) -> float:
        """How often chance shows so much where the ratio is 1."""
        return math.erfc(abs(log) / max(self.error, 1e-12) / math.sqrt(2))


def holm(p_values: Sequence[float], of: int) -> int:
    """How many of these, in rising order, are called differences, wrong about any in at most 5 of 100 cases.

    Holm's procedure: the clearest of so many must stand at the level divided by their number, the next by one less.
    """
    return next((k for k, p_value in enumerate(p_values) if p_value >= LEVEL / (of - k)), len(p_values))


def ratio(a: Sketch, b: Sketch, percent: float, paired: bool) -> Doubt | None:
    """Of a percentile of a over that of b; None where either has no finite interval.

    How far the two intervals reach at most, on the logarithm, adds as standard errors do. Where both had the
    same arrivals, `paired`, what these did to both cancels: the correlation of their waves says how much that is.
    """
    half = []
    for sketch in (a, b):
        found = interval(sketch, percent)
        if found is None or found[0] <= 0 or not math.isfinite(found[1]):
            return None
        middle = quantile(sketch, percent / 100)
        half.append(math.log(max(found[1] / middle, middle / found[0])))
    shared = 0.0
    if paired:
        one, other = _waves(a, percent), _waves(b, percent)
        power = float(one @ one) * float(other @ other)
        shared = float(one @ other) / math.sqrt(power) if power else 0.0
    width = math.sqrt(max(0.0, half[0] ** 2 + half[1] ** 2 - 2 * shared * half[0] * half[1]))
    return Doubt(width / 1.96)


def over_rounds(logs: Sequence[float], doubts: Sequence[Doubt]) -> tuple[float, Doubt]:
    """ln(ratio) and its doubt from several rounds', at least one, each with what is known within it.

    Rounds may differ by more than their own doubt, and a few of them hardly tell by how much. So every such spread
    counts by how well it explains the rounds: random effects, under a prior that favours no spread much larger than
    a quarter of a round's doubt over another. Rounds that differ a lot then come to what Student's t says of them.
    """
    from scipy import special

    if len(logs) == 1:
        return logs[0], doubts[0]
    value, within = np.asarray(logs, np.float64), np.maximum([doubt.error for doubt in doubts], 1e-9) ** 2
    scale = math.sqrt(1 / float(np.mean(1 / within)))
    widest = max(6.0, 8 * float(np.ptp(value)) / scale)
    between = scale * np.concatenate([[0.0], np.geomspace(0.02, widest, 160)])
    weight = 1 / (within + between[:, None] ** 2)
    variance = 1 / weight.sum(axis=1)
    mean = variance * (weight @ value)
    fit = np.log(weight).sum(axis=1) - (weight * (value - mean[:, None]) ** 2).sum(axis=1) + np.log(variance)
    # how likely each spread is, times how much of the grid it stands for
    chance = np.exp((fit - fit.max()) / 2) / (1 + between / scale / PRIOR)
    chance *= np.gradient(between)
    chance /= chance.sum()
    centre = float(chance @ mean)
    # the half width that holds 95 % of a mixture of normal distributions, one for each spread
    low, high = 0.0, 20 * float(np.sqrt(variance.max())) + float(np.ptp(mean))
    for _ in range(50):
        reach = (low + high) / 2
        off = (np.array([[reach], [-reach]]) + centre - mean) / np.sqrt(variance)
        inside = float(chance @ (special.ndtr(off[0]) - special.ndtr(off[1])))
        low, high = (low, reach) if inside > 0.95 else (reach, high)
    return centre, Doubt(high / 1.96)


def differs(a: Sketch, b: Sketch, paired: bool, percents: Sequence[float] = (50, 99)) -> tuple[float, ...] | None:
    """Which of these percentiles differ, by Holm's procedure; None if none can be compared."""
    found = []
    for percent in percents:
        if doubt := ratio(a, b, percent, paired):
            change = math.log(quantile(a, percent / 100) / quantile(b, percent / 100))
            found.append((doubt.p_value(change), percent))
    found.sort()
    called = holm([p_value for p_value, _ in found], of=len(percents))
    return tuple(sorted(percent for _, percent in found[:called])) if found else None
