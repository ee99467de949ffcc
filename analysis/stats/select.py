"""Order statistics of more values than are held: counted in bins a thousandth wide, then looked up where it matters."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tailrate.analysis.stats.array_types import Ints
from tailrate.analysis.stats.trend import rank

SPLIT = 10
"""Bins to an octave, as a power of two."""
COARSE = 5
"""The same where there are many such counts, by length or position: 3 % wide."""
ENOUGH = 100
"""Values from which on one of them is a 99th percentile."""


def bins(values: Ints, split: int = SPLIT) -> Ints:
    """Monotone in the value: the first bits of it as a floating-point number."""
    found: Ints = (np.maximum(values, 0).astype(np.float64).view(np.int64) >> (52 - split)) - (1023 << split) + 1
    return np.maximum(found, 0, out=found)


def near(counts: Ints, percent: float, split: int = SPLIT) -> float:
    """The upper border of the bin that holds a percentile of what was counted in them."""
    number = int(np.searchsorted(np.cumsum(counts), rank(int(counts.sum()), percent), side="right"))
    return float(np.array([(number + (1023 << split)) << (52 - split)], np.int64).view(np.float64)[0])


class Select:
    """Order statistics of values (whole, not negative) that are shown twice and never held."""

    def __init__(self) -> None:
        self.counts = np.zeros((52 << SPLIT) + 2, dtype=np.int64)
        self.wanted: list[int] = []
        self.found: dict[int, list[tuple[Ints, Ints]]] = {}

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    def count(self, values: Ints) -> None:
        self.counts += np.bincount(bins(values), minlength=len(self.counts))

    def near(self, percent: float) -> float:
        """A percentile, or at most a thousandth above it."""
        return near(self.counts, percent)

    def want(self, ranks: Iterable[int]) -> None:
        """After every value was counted: these will be asked for."""
        below = np.cumsum(self.counts)
        self.found = {int(np.searchsorted(below, wanted, side="right")): [] for wanted in ranks}
        self.wanted = sorted(self.found)

    def look(self, values: Ints) -> None:
        places = bins(values)
        inside = np.isin(places, self.wanted)
        values, places = values[inside], places[inside]
        for wanted in self.wanted:
            if len(mine := values[places == wanted]):
                self.found[wanted].append(np.unique(mine, return_counts=True))

    def at(self, wanted: int) -> int:
        """The value of this rank, from zero."""
        below = np.cumsum(self.counts)
        number = int(np.searchsorted(below, wanted, side="right"))
        values = np.concatenate([found for found, _ in self.found[number]])
        order = np.argsort(values)
        held = np.cumsum(np.concatenate([counts for _, counts in self.found[number]])[order])
        before = int(below[number - 1]) if number else 0
        return int(values[order][np.searchsorted(held, wanted - before, side="right")])
