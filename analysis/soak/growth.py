"""By how much a series grew in all, from the beginning of a soak to its end, and how sure that is: whatever its shape.

A leak may go up a ramp or stairs, now and then or all the time. So nothing is fitted: the soak is cut into sixteen
parts, and the level of the last is held against that of the first. What else makes levels differ goes down as often as
up, so the falls between parts say how much of a rise is chance; how much more they are over longer times says how far
the level wanders by itself from end to end. Pure: cells in, numbers out; a hole is NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tailrate.analysis.stats.array_types import Floats
from tailrate.analysis.stats.distributions import student_p_value

PARTS, FEWEST = 16, 8
"""Of a soak, and of them those that must be known."""
TINIEST = 1e-12
FREEDOM = 8
"""Of the error, which is that of some falls: by simulation (tests/analysis/soak/test_growth.py)."""


@dataclass(frozen=True, slots=True)
class TotalGrowth:
    begin: float
    """The first level."""
    end: float
    error: float
    """Standard error of the difference."""
    cells: float
    """Between the middles of the first part and the last."""

    @property
    def by(self) -> float:
        return self.end - self.begin

    @property
    def p_value(self) -> float:
        """How often chance shows as much, up or down."""
        return student_p_value(FREEDOM, self.by / self.error)


def growth(values: Floats, floor: float, fitted: Floats | float = 0.0) -> TotalGrowth | None:
    """None where too little is known. `floor`: no level is known better than that.

    `fitted`: changes that were found, whose falls are no chance.
    """
    cells = np.arange(len(values))
    parts = [part for part in np.array_split(cells, PARTS) if not np.isnan(values[part]).all()]
    if len(parts) < FEWEST:
        return None
    levels, rest = (np.array([np.nanmedian(one[part]) for part in parts]) for one in (values, values - fitted))
    # where something else than what was fitted happened, that has falls which the values have not
    error = min(_error(levels), _error(rest))
    apart = float(parts[-1].mean() - parts[0].mean())
    return TotalGrowth(float(levels[0]), float(levels[-1]), max(error, floor, TINIEST), apart)


def _error(levels: Floats) -> float:
    """Of the last over the first, by the falls between all."""
    near, far = _falls(levels, 1), _falls(levels, 4)
    # as independent levels, or as a random walk, or between
    grows = min(0.5, max(0.0, math.log(far / near) / math.log(4))) if near and far else 0.0
    return float(max(near, _falls(levels, 2), far) * ((len(levels) - 1) / 4) ** grows)


def _falls(levels: Floats, apart: int) -> float:
    """The deviation of levels so far apart, if rises without a cause are as large as falls."""
    falls = np.minimum(levels[apart:] - levels[:-apart], 0.0)
    return math.sqrt(2 * float(np.mean(falls**2)))
