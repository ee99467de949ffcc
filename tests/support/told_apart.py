"""Which percentiles of two runs are called different, from the same parts as the product's comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tailrate.analysis.stats.ratio import holm, ratio
from tailrate.analysis.stats.sketch import Sketch, quantile


def differs(a: Sketch, b: Sketch, alike: bool, percents: Sequence[float] = (50, 99)) -> tuple[float, ...] | None:
    """Which of these percentiles differ, by Holm's procedure; None if none can be compared."""
    found = []
    for percent in percents:
        if doubt := ratio([(a, b)], percent, alike):
            change = math.log(quantile(a, percent / 100) / quantile(b, percent / 100))
            found.append((doubt.p_value(change), percent))
    found.sort()
    called = holm([p_value for p_value, _ in found], of=len(percents))
    return tuple(sorted(percent for _, percent in found[:called])) if found else None
