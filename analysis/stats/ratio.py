"""The ratio of a percentile of two windows, of one round or of several, and how surely: an interval of it.

Two windows that were driven alike have their waves in common, which cancel in the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailrate.analysis.stats.array_types import Floats
from tailrate.analysis.stats.dependence import (
    LEAST_BEYOND,
    WAVES,
    allowance,
    allowed,
    excess,
    variance,
)
from tailrate.analysis.stats.distributions import betainc
from tailrate.analysis.stats.sketch import Sketch, quantile

LEVEL = 0.05
"""At which two percentiles are called different."""
PRIOR = 0.25
"""How much rounds are thought to differ beforehand: the median, as a share of what differs within one."""


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
    *counts, share, here = _beyond_both(sides, log, percent, alike)
    # of those beyond a limit that a share of all is beyond, fewer than their number are free to be a's or b's
    of_a, of_b = (count / (1 - share) / factor**AT_SAMPLES / here ** (1 - AT_SAMPLES) for count in counts)
    half = sum(a.n for a, _ in sides) / sum(a.n + b.n for a, b in sides)
    # as b is stretched, more of those beyond are b's
    if above:
        return betainc(of_b, of_a + 1, 1 - half) <= LEVEL / 2 if of_b else False
    return betainc(of_a, of_b + 1, half) <= LEVEL / 2 if of_a else False


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
    few, many = (variance(deviations, waves) / independent for waves in (WAVES, SHARED_WAVES))
    shared = many * allowance(SHARED_WAVES * windows)
    if alike and shared < 1 and few * allowance(WAVES * windows) < 1:
        factor = max(LEAST_SHARED, shared)
    else:
        factor = allowed(excess(few, WAVES * windows), total)
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
    errors = np.sqrt(2 * variance)
    for _ in range(50):
        reach = (low + high) / 2
        inside = float(chance @ [math.erf(reach / error) for error in errors])
        low, high = (low, reach) if inside > 0.95 else (reach, high)
    return float(np.mean(logs)), within.wider(high / (1.96 * scale / math.sqrt(count)))
