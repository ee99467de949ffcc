"""The arrivals of a window by their label: figures of each slice, and what it says to the objectives.

Labels come with a run whose requests carried rows of a file. They are no part of the one pass: a run without them pays
nothing for them, and one that has them reads its rows once more, window by window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tailrate.analysis.counting.counts import Grid
from tailrate.analysis.judging.evidence import counts
from tailrate.analysis.judging.share import ALL, Count, terms
from tailrate.analysis.records.objective import Slo, overall
from tailrate.analysis.run.window import Excerpt
from tailrate.analysis.stats.array_types import Floats, Ints
from tailrate.analysis.stats.dependence import effective_size
from tailrate.analysis.stats.interval import ranks
from tailrate.analysis.stats.sketch import SLICES, Sketch, as_recorded_ms
from tailrate.analysis.stats.trend import percentile


@dataclass(frozen=True, slots=True)
class SliceFigures:
    """Of one label in a window; a failure is infinite."""

    n: int
    ok: int
    p50_ms: float
    p99_ms: float
    p99_interval_ms: tuple[float, float] | None
    p99_of: Mapping[str, float]
    """Of `ttft` and `tpot`, where it streams."""
    within: Mapping[float, int]
    """Successes no slower than each latency of an objective."""
    counts: Mapping[Slo, tuple[Count, ...]]
    """Of each objective of this slice, one for each term."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the arrivals of an excerpt say to objectives, by what these limit."""

    rows: Excerpt
    seconds: float
    sketches: Mapping[str, Sketch]
    """That of whole answers is nameless."""
    at: Ints
    """In which slice of the window each was due."""
    limited_ms: Mapping[str, Floats]
    """What objectives limit; infinite of a failure, NaN of what has no such figure."""

    @classmethod
    def of(cls, rows: Excerpt, grid: Grid, seconds: float, slos: Sequence[Slo]) -> Said:
        at = (rows.intended_ns - grid.start_ns) // grid.slice_ns
        limited_ms = {"": np.where(rows.ok, rows.latency_ms, np.inf), "ttft": rows.ttft_ms, "tpot": rows.tpot_ms}
        found = {}
        for name, values in limited_ms.items():
            limits = sorted({slo.bounds[name].ms for slo in slos if name in slo.bounds})
            known = ~np.isnan(values)
            if not name or (limits and known.any()):
                found[name] = Sketch.of(at[known], values[known], [ms for ms in limits if math.isfinite(ms)])
        return cls(rows, seconds, found, at, limited_ms)

    def to(self, slo: Slo) -> tuple[Count, ...]:
        beyond = ~self.rows.ok
        for name, bound in slo.bounds.items():
            beyond |= self.limited_ms[name] > as_recorded_ms(bound.ms)
        arrived, missed = (np.bincount(at, minlength=SLICES) for at in (self.at, self.at[beyond]))
        both = {**self.sketches, ALL: Sketch.of_two(arrived, missed)}
        return counts(slo, both.pop(""), self.seconds, self.rows.burst, both)


def slices(rows: Excerpt, grid: Grid, seconds: float, slos: Sequence[Slo]) -> dict[str, SliceFigures]:
    """By label, in the order of labels; arrivals without one are in none."""
    labels = sorted({label for label in rows.label if label is not None})
    return {label: _figures(rows.where(rows.label == label), label, grid, seconds, slos) for label in labels}


def _figures(rows: Excerpt, label: str, grid: Grid, seconds: float, slos: Sequence[Slo]) -> SliceFigures:
    limits = sorted({slo.latency_ms for slo in slos if slo.latency_ms})
    said = Said.of(rows, grid, seconds, slos)
    of_streams = {**said.limited_ms}
    latency_ms = of_streams.pop("")
    sketch = said.sketches[""]
    ends = ranks(len(rows), 99, effective_size(sketch, 99))
    ordered = np.sort(latency_ms)
    return SliceFigures(
        len(rows),
        int(rows.ok.sum()),
        percentile(latency_ms, 50),
        percentile(latency_ms, 99),
        ends and (float(ordered[ends[0]]), math.inf if ends[1] is None else float(ordered[ends[1]])),
        {name: percentile(ms[~np.isnan(ms)], 99) for name, ms in of_streams.items() if not np.isnan(ms).all()},
        {limit: len(rows) - int(sketch.beyond(limit).sum()) for limit in limits},
        {slo: said.to(slo) for slo in slos if slo.slice == label},
    )


def counted(found: Mapping[str, SliceFigures], slo: Slo) -> tuple[Count, ...]:
    """What a slice says to an objective of its own; nothing where no arrival was in it."""
    mine = found.get(slo.slice or "")
    return mine.counts[slo] if mine else tuple(Count(0, 0) for _ in terms(slo))


def nearest(label: str, slos: Sequence[Slo]) -> Slo | None:
    """The objective whose latency a slice is held against: its own, else that of all, at the highest percentile."""
    for among in ([slo for slo in slos if slo.slice == label], overall(slos)):
        if found := [slo for slo in among if slo.latency_ms and slo.percentile]:
            return max(found, key=lambda slo: slo.percentile or 0.0)
    return None
