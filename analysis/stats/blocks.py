"""A series in runs of cells, so that a lone cell is none to speak of. Pure: arrays in, arrays out; a hole is NaN."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tailrate.analysis.stats.array_types import Floats


def in_blocks(values: Floats, size: int, by: str) -> Floats:
    """Runs of so many cells, each by its median, mean or least; NaN where fewer than half of them are known."""
    padded = np.append(values, np.full(-len(values) % size, math.nan)).reshape(-1, size)
    known = ~np.isnan(padded)
    enough = 2 * known.sum(axis=1) >= size
    found = np.full(len(padded), math.nan)
    reduce: Any = {"median": np.nanmedian, "mean": np.nanmean, "least": np.nanmin}[by]
    if enough.any():
        found[enough] = reduce(padded[enough], axis=1)
    return found


def calm(level: Floats, floor: float) -> Floats:
    """Without lone outliers: no further than four deviations from the median of the neighbours."""
    around = np.lib.stride_tricks.sliding_window_view(np.pad(level, 4, mode="edge"), 9)
    middle = np.median(around, axis=1)
    reach = 4 * max(floor, 1.4826 * float(np.median(np.abs(level - middle))))
    return np.clip(level, middle - reach, middle + reach)
