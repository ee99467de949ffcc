"""How many independent arrivals those of a window are worth, as neighbouring requests resemble each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from tailrate.analysis.stats.array_types import Bools, Floats
from tailrate.analysis.stats.distributions import normal_quantile, student_quantile
from tailrate.analysis.stats.sketch import Sketch

WAVES = 8
"""How many cosines over the window a variance is estimated from: fewer see longer correlation, more vary less."""
CLUSTERS = 6
"""Dependence that is seen in few clusters of arrivals may be underestimated: it counts for more where they are few."""
LEAST_BEYOND = 10
"""Fewer arrivals beyond a limit say nothing of how much they depend on each other."""


def in_a_row(failed: Bools) -> float:
    """How many failures came in a row, in the mean, of arrivals in the order in which they were due."""
    begins = failed & ~np.concatenate([[False], failed[:-1]])
    return float(failed.sum() / max(1, begins.sum()))


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
    return variance([beyond - over / n * arrivals]) / (over * (1 - over / n))


def dependence(found: float, beyond: float, windows: int = 1) -> float:
    """What such an inflation is to be taken for, that so many windows showed with so many beyond the limit."""
    return allowed(excess(found, WAVES * windows), beyond)


def variance(deviations: Sequence[Floats], waves: int = WAVES) -> float:
    """Of the sum of deviations from what was expected, each by slice: the equal-weighted cosine estimator."""
    return sum(2 * float(np.mean(np.square(_cosines(waves, len(one)) @ one))) for one in deviations)


@cache
def _cosines(waves: int, slices: int) -> Floats:
    time = (np.arange(slices) + 0.5) * math.pi / slices
    found: Floats = np.cos(np.outer(np.arange(1, waves + 1), time))
    return found


def excess(inflation: float, waves: int) -> float:
    """By what a variance exceeds that of independent arrivals, with Student's allowance for so few waves."""
    return max(0.0, allowance(waves) * (inflation - 1))


@cache
def allowance(waves: int) -> float:
    return (student_quantile(waves, 0.975) / normal_quantile(0.975)) ** 2


def allowed(excess: float, beyond: float) -> float:
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
