"""Where the level of a series changed for good: change points of figures over many runs.

The best split of the values is the one whose means differ most (Student's t); it is a change where so large a t is rare
among the same values in random order. Both sides are then split again. Values far off by themselves are drawn in first,
since one bad run is no change of level. Pure; the random orders come from a fixed seed.
"""

from __future__ import annotations

import numpy as np

from tailrate.analysis.stats.array_types import Floats
from tailrate.analysis.stats.trend import median

FEWEST = 3
"""Values on either side of a change."""
ORDERS = 999
SURE = 0.002
"""How rare: Otava's practice is 0.001; a table has several figures."""
HOPELESS = 3.0
"""No smaller t is ever that rare, so the random orders are spared."""
FAR = 3.5
"""Median absolute deviations, as standard deviations: farther off, a value is one by itself."""


def shifts(values: Floats) -> list[int]:
    """Places at which a new level begins, in order."""
    return _split(_drawn_in(values), 0) if len(values) >= 2 * FEWEST else []


def _split(values: Floats, start: int) -> list[int]:
    if len(values) < 2 * FEWEST:
        return []
    scores = _scores(values[None, :])[0]
    at = int(np.argmax(scores))
    if scores[at] < HOPELESS:
        return []
    orders = np.random.default_rng(len(values)).permuted(np.tile(values, (ORDERS, 1)), axis=1)
    as_large = scores[at] * (1 - 1e-9)  # the same split in another order has another rounding
    if (1 + np.count_nonzero(_scores(orders).max(axis=1) >= as_large)) / (1 + ORDERS) > SURE:
        return []
    at += FEWEST
    return [*_split(values[:at], start), start + at, *_split(values[at:], start + at)]


def _scores(rows: Floats) -> Floats:
    """|t| of each split of each row, from one that leaves `FEWEST` on the left."""
    n = rows.shape[1]
    centred = rows - rows.mean(axis=1, keepdims=True)
    left = np.arange(1, n)
    total = np.cumsum(centred, axis=1)[:, :-1]
    between = total**2 * n / (left * (n - left))  # the sum of squares that the split explains
    within = np.maximum((centred**2).sum(axis=1, keepdims=True) - between, 1e-18)
    found: Floats = np.sqrt(between / within * (n - 2))[:, FEWEST - 1 : n - FEWEST]
    return found


def _drawn_in(values: Floats) -> Floats:
    """Those far from their neighbours come as near as is usual."""
    found = values.copy()
    for k in range(len(values)):
        near = values[max(0, k - 5) : k + 6]
        middle = median(near)
        reach = FAR * 1.4826 * median(np.abs(near - middle))
        found[k] = min(max(values[k], middle - reach), middle + reach)
    return found
