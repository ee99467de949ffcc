"""What a step's window says of its latency percentiles, and how surely, in half a megabyte.

A sketch counts latencies by slice of time and by value; a failure is +infinity. The slices carry what makes an
interval honest: latencies of neighbouring requests resemble each other, so n of them are `worth` fewer. Every interval
is a binomial one at that number, and open above where the sample could well lie wholly below the percentile. Knows
neither steps nor files. What never happened in a window cannot show: one that met no rare stall is sure, and wrong.
How often intervals hold the truth, and how other estimators do: tests/bench/intervals.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from tailrate.analysis.stats.array_types import Floats

SLICES = 200
WAVES = 8
"""How many cosines over the window a variance is estimated from: fewer see longer correlation, more vary less."""
CLUSTERS = 6
"""Dependence that is seen in few clusters of arrivals may be underestimated: it counts for more where they are few."""
LEAST_BEYOND = 10
"""Fewer arrivals beyond a limit say nothing of how much they depend on each other."""

LEVEL = 0.05
"""At which two percentiles are called different."""
PRIOR = 0.25
"""How much rounds are thought to differ beforehand: the median, as a share of what differs within one."""


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
    def of(cls, slices: npt.NDArray[np.integer], values: Floats, limits: Sequence[float] = ()) -> Sketch:
        """Edges are order statistics, and what is to be counted exactly; a repeated value has a bin to itself."""
        n, found = len(values), np.sort(values)
        longest = found[np.isfinite(found)][-1:]
        found = found[np.unique(np.ceil(probabilities(n) * (n - 1)).astype(np.int64))] if n else found
        found = found[np.isfinite(found)]
        repeated = np.nextafter(found[1:][found[1:] == found[:-1]], -math.inf)
        sketch = cls.empty(np.unique(np.concatenate([found, repeated, longest, [*map(to_ns, limits)]])))
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

    def beyond(self, limit: float) -> npt.NDArray[np.int64]:
        """Values above a limit that has an edge, by slice; above an infinite one are failures."""
        k = len(self.edges) - 1 if math.isinf(limit) else int(np.searchsorted(self.edges, to_ns(limit)))
        found: npt.NDArray[np.int64] = self.counts[:, k + 1 :].sum(axis=1)
        return found


def to_ns(latency_ms: float) -> float:
    """As exactly as latencies are recorded, so that equal ones are equal."""
    return round(latency_ms * 1e6) / 1e6


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


def worth(arrivals: Floats, beyond: Floats) -> float:
    """How many independent arrivals these are worth, of which so many were beyond a limit, both by slice of time.

    For the share that is beyond, be it late or failed: the variance of their number is seen in its slowest waves. A
    window that happened to miss the long waits of a queue looks both fast and independent, and the fewer clusters there
    are beyond the limit, the likelier that is; so what dependence there is counts for more where they are few.
    """
    n, over = float(arrivals.sum()), float(beyond.sum())
    return max(1.0, n / dependence(inflation(arrivals, beyond), min(over, n - over))) if 0 < over < n else n


def inflation(arrivals: Floats, beyond: Floats) -> float:
    """The variance of the number beyond, over that of independent arrivals, as the slowest waves show it."""
    n, over = float(arrivals.sum()), float(beyond.sum())
    if not 0 < over < n:
        return 1.0
    return _variance([beyond - over / n * arrivals]) / (over * (1 - over / n))


def dependence(found: float, beyond: float, windows: int = 1) -> float:
    """What such an inflation is to be taken for, that so many windows showed with so many beyond the limit."""
    return _allowed(_excess(found, WAVES * windows), beyond)


def _variance(deviations: Sequence[Floats], waves: int = WAVES) -> float:
    """Of the sum of deviations from what was expected, each by slice: the equal-weighted cosine estimator."""
    return sum(2 * float(np.mean(np.square(_cosines(waves, len(one)) @ one))) for one in deviations)


@cache
def _cosines(waves: int, slices: int) -> Floats:
    time = (np.arange(slices) + 0.5) * math.pi / slices
    found: Floats = np.cos(np.outer(np.arange(1, waves + 1), time))
    return found


def _excess(inflation: float, waves: int) -> float:
    """By what a variance exceeds that of independent arrivals, with Student's allowance for so few waves."""
    return max(0.0, _allowance(waves) * (inflation - 1))


@cache
def _allowance(waves: int) -> float:
    from scipy import special

    return float(special.stdtrit(waves, 0.975) / special.ndtri(0.975)) ** 2


def _allowed(excess: float, beyond: float) -> float:
    """By what factor a variance is to be taken larger than that of independent arrivals."""
    return 1 + excess * (1 + CLUSTERS * (1 + excess) / beyond)


def effective_size(sketch: Sketch, percent: float) -> float | None:
    """What its arrivals are worth for this percentile, or for the highest below it that enough of them are beyond.

    None where they are too few for any.
    """
    n = sketch.n
    if n < 2 * LEAST_BEYOND:
        return None
    return worth(*beyond(sketch, min(percent, 100 * (1 - LEAST_BEYOND / n))))


def beyond(sketch: Sketch, percent: float) -> tuple[Floats, Floats]:
    """All arrivals, and those beyond the edge that is nearest to this percentile, by slice."""
    below = np.cumsum(sketch.counts.sum(axis=0))[:-1]
    k = int(np.argmin(np.abs(below - percent / 100 * sketch.n))) if len(below) else -1
    return sketch.counts.sum(axis=1).astype(float), sketch.counts[:, k + 1 :].sum(axis=1).astype(float)


def bounds(percent: float, n_eff: float | None, confidence: float = 0.95) -> tuple[float, float | None] | None:
    """Probabilities whose sample quantiles hold the true percentile between them (Clopper and Pearson).

    The upper one is None where all of so many might well be below it. None of too small a sample.
    """
    from scipy import special

    if n_eff is None:
        return None
    p, tail = percent / 100, (1 - confidence) / 2
    hits = n_eff * p
    low = float(special.betaincinv(hits, n_eff - hits + 1, tail)) if (1 - p) ** n_eff <= tail else 0.0
    open_ = n_eff < least_for_upper(percent, confidence)
    return low, None if open_ else float(special.betaincinv(hits + 1, n_eff - hits, 1 - tail))


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


# ---- two windows


@dataclass(frozen=True, slots=True)
class Doubt:
    """How far the logarithm of a ratio may be from what was found: its 95 % interval, down and up, infinite if open."""

    down: float
    up: float

    @classmethod
    def of(cls, error: float) -> Doubt:
        """Of a standard error, with the allowance for not knowing it well."""
        return cls(1.96 * error, 1.96 * error)

    @property
    def error(self) -> float:
        """The standard error that it comes to, of the side that is known where only one is."""
        known = [side for side in (self.down, self.up) if math.isfinite(side)]
        return sum(known) / len(known) / 1.96 if known else math.inf

    @property
    def smallest_visible(self) -> float:
        """The relative change that would be seen in 80 of 100 runs (0.05: five percent)."""
        return math.expm1(2.8 * (self.down + self.up) / 2 / 1.96) if self.down + self.up < 100 else math.inf

    def wider(self, factor: float) -> Doubt:
        return Doubt(factor * self.down, factor * self.up)

    def p_value(self, log: float) -> float:
        """How often chance shows so much where the ratio is 1."""
        towards = self.down if log > 0 else self.up
        return math.erfc(abs(log) / max(towards / 1.96, 1e-12) / math.sqrt(2))


def holm(p_values: Sequence[float], of: int) -> int:
    """How many of these, in rising order, are called differences, wrong about any in at most 5 of 100 cases.

    Holm's procedure: the clearest of so many must stand at the level divided by their number, the next by one less.
    """
    return next((k for k, p_value in enumerate(p_values) if p_value >= LEVEL / (of - k)), len(p_values))


class _Above:
    """How many of a sketch's arrivals are above a latency, by slice; between its edges in proportion."""

    def __init__(self, sketch: Sketch) -> None:
        below = np.cumsum(sketch.counts, axis=1)
        self.edges = np.maximum(sketch.edges, 1e-9)
        self.arrivals = below[:, -1].astype(np.float64)
        self.n = float(self.arrivals.sum())
        self._above = self.arrivals[:, None] - below[:, :-1]
        self._in_all = self._above.sum(axis=0)

    def at(self, latency: float) -> Floats:
        k = int(np.searchsorted(self.edges, latency))
        if k == 0:
            return self.arrivals
        if k == len(self.edges):
            return np.asarray(self._above[:, -1], dtype=np.float64)
        part = (latency - self.edges[k - 1]) / (self.edges[k] - self.edges[k - 1])
        found: Floats = self._above[:, k - 1] * (1 - part) + self._above[:, k] * part
        return found

    def numbers(self, latencies: Floats) -> Floats:
        """Of all slices together."""
        return np.asarray(np.interp(latencies, self.edges, self._in_all, left=self.n), dtype=np.float64)


FURTHEST = math.log(100)
"""A ratio that is not told from one a hundred times as large is open on that side."""
LEAST_SHARED = 0.1
"""What two windows have in common cancels, but for so much of the variance of independent arrivals."""
SHARED_WAVES = 30
"""Cosines that have to show it: eight would do so by chance in three of ten cases."""
AT_SAMPLES = 0.45
"""How much a variance at the ratio of the samples counts, beside that at the ratio in question: with 0.5 one of 15
intervals of two alike on one busy device misses 1, with 0.4 half of them are open."""


def ratio(rounds: Sequence[tuple[Sketch, Sketch]], percent: float, alike: bool) -> Doubt | None:
    """Of a percentile of a over that of b, in each of several rounds; None where a window is too small.

    The interval holds each ratio at which b's latencies, that many times as long, would be beyond the percentile of
    both together about as often as a's: as often as chance, at the effective number of those beyond, may bring about.
    Where both were driven `alike`, on the same arrivals or at the same time, what these did to both cancels in the
    difference, whose variance is taken as it is. At a ratio that is wrong it cancels no more, so the variance at the
    ratio of the samples counts as well.
    """
    if any(sketch.n < 2 * LEAST_BEYOND or not len(sketch.edges) for both in rounds for sketch in both):
        return None
    ratios = [quantile(a, percent / 100) / quantile(b, percent / 100) for a, b in rounds]
    if not all(0 < found < math.inf for found in ratios):
        return None
    sides = [(_Above(a), _Above(b)) for a, b in rounds]
    middle = float(np.mean(np.log(ratios)))
    *_, factor = _beyond_both(sides, middle, percent, alike)

    def reach(up: bool) -> float:
        inside, outside, step = 0.0, math.inf, 0.02
        while outside == math.inf and inside < FURTHEST:
            step *= 2
            if _unlikely(sides, middle + (step if up else -step), percent, alike, factor, up):
                outside = step
            else:
                inside = step
        while outside - inside > 1e-4 + 0.005 * outside and math.isfinite(outside):
            between = (inside + outside) / 2
            if _unlikely(sides, middle + (between if up else -between), percent, alike, factor, up):
                outside = between
            else:
                inside = between
        return outside

    return Doubt(reach(False), reach(True))


Sides = Sequence[tuple[_Above, _Above]]


def _unlikely(sides: Sides, log: float, percent: float, alike: bool, factor: float, above: bool) -> bool:
    """Whether a ratio so large, or so small, is one at which such counts are seen in less than 2.5 of 100 cases.

    `factor` is that of the ratio of the samples.
    """
    from scipy import special

    *counts, share, here = _beyond_both(sides, log, percent, alike)
    # of those beyond a limit that a share of all is beyond, fewer than their number are free to be a's or b's
    of_a, of_b = (count / (1 - share) / factor**AT_SAMPLES / here ** (1 - AT_SAMPLES) for count in counts)
    half = sum(a.n for a, _ in sides) / sum(a.n + b.n for a, b in sides)
    # as b is stretched, more of those beyond are b's
    if above:
        return bool(special.betainc(of_b, of_a + 1, 1 - half) <= LEVEL / 2) if of_b else False
    return bool(special.betainc(of_a, of_b + 1, half) <= LEVEL / 2) if of_a else False


def _beyond_both(sides: Sides, log: float, percent: float, alike: bool) -> tuple[float, float, float, float]:
    """At a ratio: how many of a's and of b's are beyond, what share of all, and by what their variance is larger."""
    times, deviations, beyond, independent = math.exp(log), [], [0.0, 0.0], 0.0
    for a, b in sides:
        limit = _limit(a, b, times, (1 - percent / 100) * (a.n + b.n))
        over = a.at(limit), b.at(limit / times)
        counts = [float(side.sum()) for side in over]
        beyond = [beyond[0] + counts[0], beyond[1] + counts[1]]
        independent += sum(counts) * (1 - sum(counts) / (a.n + b.n))
        own = [x - count / side.n * side.arrivals for x, count, side in zip(over, counts, (a, b), strict=True)]
        deviations += [own[0] - own[1]] if alike else own
    total, independent, windows = sum(beyond), max(independent, 1e-9), len(deviations)
    few, many = (_variance(deviations, waves) / independent for waves in (WAVES, SHARED_WAVES))
    shared = many * _allowance(SHARED_WAVES * windows)
    if alike and shared < 1 and few * _allowance(WAVES * windows) < 1:
        factor = max(LEAST_SHARED, shared)
    else:
        factor = _allowed(_excess(few, WAVES * windows), total)
    return beyond[0], beyond[1], 1 - independent / total, factor


def _limit(a: _Above, b: _Above, times: float, beyond: float) -> float:
    """The latency that so many of a's, and of b's when they take so many times as long, are above."""
    latencies = np.sort(np.concatenate([a.edges, b.edges * times]))
    above = a.numbers(latencies) + b.numbers(latencies / times)
    k = int(np.searchsorted(-above, -beyond))
    if not 0 < k < len(above):
        return float(latencies[min(k, len(above) - 1)])
    part = (above[k - 1] - beyond) / (above[k - 1] - above[k])
    return float(latencies[k - 1] + part * (latencies[k] - latencies[k - 1]))


def over_rounds(logs: Sequence[float], within: Doubt) -> tuple[float, Doubt]:
    """ln(ratio) and its doubt from several rounds', at least one, with what they know of it among themselves.

    Rounds may differ by more than that, and a few of them hardly tell by how much. So every such spread counts by how
    well it explains the rounds: random effects, under a prior that favours no spread much larger than a quarter of a
    round's doubt over another. Rounds that differ a lot then come to what Student's t says of them.
    """
    from scipy import special

    count = len(logs)
    if count == 1 or not math.isfinite(within.error):
        return float(np.mean(logs)), within
    scale = max(within.error, 1e-9) * math.sqrt(count)
    widest = max(6.0, 8 * float(np.ptp(logs)) / scale)
    between = scale * np.concatenate([[0.0], np.geomspace(0.02, widest, 160)])
    variance = (scale**2 + between**2) / count
    fit = (1 - count) * np.log(variance) - float(np.var(logs)) / variance
    # how likely each spread is, times how much of the grid it stands for
    chance = np.exp((fit - fit.max()) / 2) / (1 + between / scale / PRIOR)
    chance *= np.gradient(between)
    chance /= chance.sum()
    # the half width that holds 95 % of a mixture of normal distributions, one for each spread
    low, high = 0.0, 20 * float(np.sqrt(variance.max()))
    for _ in range(50):
        reach = (low + high) / 2
        inside = float(chance @ special.erf(reach / np.sqrt(2 * variance)))
        low, high = (low, reach) if inside > 0.95 else (reach, high)
    return float(np.mean(logs)), within.wider(high / (1.96 * scale / math.sqrt(count)))
