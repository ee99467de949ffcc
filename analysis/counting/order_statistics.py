"""Exact order statistics of a step's latencies, service times and lateness, and the sketch of its latencies.

Where a tally kept every value they are sorted; where there were too many, further passes over the rows find the wanted
ranks: one counts values in bins a thousandth wide, the next looks into the bins that hold a rank. Both give the very
values, to the nanosecond. Times are in ms, a failure is +infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tailrate.analysis.counting.counts import Key, Tallies, Tally
from tailrate.analysis.counting.one_pass import pieces, tally
from tailrate.analysis.judging.trust import late_limit_ms
from tailrate.analysis.records.objective import LATE_MS
from tailrate.analysis.run.bins import FAILED, SLICE_BITS
from tailrate.analysis.stats.array_types import Ints
from tailrate.analysis.stats.dependence import effective_size
from tailrate.analysis.stats.interval import interval, ranks
from tailrate.analysis.stats.select import SPLIT, Select
from tailrate.analysis.stats.sketch import Sketch, as_recorded_ms, probabilities
from tailrate.analysis.stats.trend import rank

if TYPE_CHECKING:
    from tailrate.analysis.run.recorded_run import RecordedRun

PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)
MEDIAN_AND_TAIL = (50.0, 99.0)
"""Of service times."""
LATE = (50.0, 99.0, 100.0)


@dataclass(frozen=True, slots=True, eq=False)
class OrderStatistics:
    """Percentiles of one step; None of nothing."""

    latency_ms: Mapping[float, float]
    """Of all arrivals of the window, by percent."""
    ok_ms: Mapping[float, float]
    """Of its successes."""
    service_ms: Mapping[float, float]
    """Of its successes that have a time of sending."""
    service_all_ms: Mapping[float, float]
    """The same, failures as infinity; nothing where a success has no time of sending."""
    late_ms: Mapping[float, float]
    late_whole_ms: Mapping[float, float]
    """Of the whole step, settle time included."""
    late: int
    """Arrivals of the window sent later than `late_limit_ms`."""
    late_limit_ms: float
    sketch: Sketch
    n_eff: float | None
    """Independent arrivals that those of the window are worth for P99."""
    p99_interval_ms: tuple[float, float] | None
    """The order statistics between which P99 lies, the upper one infinite where the sample gives none; None where it is
    too small for any."""

    @classmethod
    def empty(cls) -> OrderStatistics:
        return cls({}, {}, {}, {}, {}, {}, 0, LATE_MS, Sketch.empty(np.zeros(0)), None, None)


def gather(run: RecordedRun) -> tuple[Tallies, dict[Key, OrderStatistics]]:
    """The tallies of a run and the order of each; a step's values are let go of when it has no more rows."""
    percents = sorted({*PERCENTS, *(slo.percentile for slo in run.manifest.slos if slo.percentile)})
    limits = [slo.latency_ms for slo in run.manifest.slos if slo.latency_ms]
    late_limit = partial(late_limit_ms, run.manifest.slos, streams=run.manifest.streams)
    found: dict[Key, OrderStatistics] = {}

    def closed(key: Key, whole: Tally) -> None:
        if whole.kept:
            found[key] = _kept(whole, percents, limits, late_limit)
            whole.let_go()

    tallies = tally(run, closed)
    if rest := [key for key in tallies.groups if key not in found]:
        found |= _passed(run, rest, {key: _Passes(tallies.groups[key], percents, limits, late_limit) for key in rest})
    return tallies, found


def _ms(ns: float) -> float:
    return math.inf if ns >= FAILED else ns / 1e6


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """One figure of the arrivals of a window, in order."""

    ns: Ints
    sketch: Sketch
    n_eff: float | None
    interval_ms: tuple[float, float] | None
    """Of P99."""

    def percentiles(self, percents: Iterable[float], of: int | None = None) -> dict[float, float]:
        """Of the lowest so many, or of all; nothing of nothing."""
        n = len(self.ns) if of is None else of
        return {percent: _ms(self.ns[rank(n, percent)]) for percent in percents} if n else {}


def ordered(packed: Ints, limits: Sequence[float]) -> Ordered:
    """Of values in ns with their slices of time, which are sorted in place; a failure is `FAILED`."""
    packed.sort()
    ns = packed >> SLICE_BITS
    n, finite = len(ns), int(np.searchsorted(ns, FAILED))
    places = np.unique(np.ceil(probabilities(max(1, n)) * (n - 1)).astype(np.int64))[:n]
    # what is beyond an objective, or failed, can be counted exactly
    exact = [ns[finite - 1 : finite], [round(limit * 1e6) for limit in limits]]
    edges = np.unique(np.concatenate([_edges(ns[places]), *exact]).astype(np.int64))
    held = np.searchsorted(ns, edges, side="right")
    bins = np.repeat(np.arange(len(edges) + 1), np.diff(held, prepend=0, append=n))
    sketch = Sketch.empty(edges / 1e6)
    cells = (packed & ((1 << SLICE_BITS) - 1)) * (len(edges) + 1) + bins
    sketch.counts[...] = np.bincount(cells, minlength=sketch.counts.size).reshape(sketch.counts.shape)
    n_eff = effective_size(sketch, 99)
    ends = ranks(n, 99, n_eff)
    between = ends and (_ms(ns[ends[0]]), math.inf if ends[1] is None else _ms(ns[ends[1]]))
    return Ordered(ns, sketch, n_eff, between)


LateLimit: TypeAlias = Callable[[float], float]
"""In ms, from the median service time."""


def _kept(tally: Tally, percents: Sequence[float], limits: Sequence[float], late_limit: LateLimit) -> OrderStatistics:
    latency = ordered(whole(tally.packed), limits)
    service, late = whole(tally.service), whole(tally.late)
    late_whole = np.concatenate([late, *tally.late_outside])

    def picked(values: Ints, wanted: Iterable[float], n: int) -> dict[float, float]:
        """In rising order, by partition of what is left: one rank at a time takes less than a sort, or all at once."""
        found, below = {}, 0
        for percent in wanted if n else ():
            place = rank(n, percent) - below
            if place >= len(values):  # a failure
                found[percent] = math.inf
                continue
            values = np.partition(values, place)[place:] if place < len(values) - 1 else values.max(keepdims=True)
            below += place
            found[percent] = _ms(float(values[0]))
        return found

    times = picked(service, MEDIAN_AND_TAIL, len(service))
    limit = late_limit(times.get(50.0, 0.0))
    return OrderStatistics(
        latency.percentiles(percents),
        latency.percentiles(percents, of=tally.ok),
        times,
        picked(service, percents, tally.n) if len(service) == tally.ok else {},
        picked(late, (99.0,), len(late)),
        picked(late_whole, LATE, len(late_whole)),
        int(np.count_nonzero(late > limit * 1e6)),
        limit,
        latency.sketch,
        latency.n_eff,
        latency.interval_ms,
    )


def whole(pieces: list[Ints]) -> Ints:
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)


def _edges(ns: Ints) -> Ints:
    """Borders of bins at these ordered latencies; one that repeats has a bin to itself."""
    ns = ns[ns < FAILED]
    ties = ns[1:][np.diff(ns) == 0]
    edges: Ints = np.unique(np.concatenate([ns, ties - 1]))
    return edges


# ---- more values than are kept


def _ranks(n: int, percents: Iterable[float]) -> list[int]:
    return [rank(n, percent) for percent in percents if n]


def _values(select: Select, n: int, percents: Iterable[float]) -> dict[float, float]:
    return {percent: _ms(select.at(rank(n, percent))) for percent in percents if n}


class _Passes:
    """A step whose values are shown three times and never held: they are counted, looked at, added to the sketch."""

    def __init__(self, tally: Tally, percents: Sequence[float], limits: Sequence[float], late_limit: LateLimit) -> None:
        self.tally, self.percents, self.limits, self.late_limit = tally, percents, limits, late_limit
        self.latency, self.service, self.late, self.late_whole = Select(), Select(), Select(), Select()
        self.many_late = 0

    def _shown(self, piece: Tally) -> Iterator[tuple[Select, Ints]]:
        yield self.latency, whole(piece.packed) >> SLICE_BITS
        yield self.service, whole(piece.service)
        yield self.late, whole(piece.late)
        yield self.late_whole, whole([*piece.late, *piece.late_outside])

    def count(self, piece: Tally) -> None:
        for select, values in self._shown(piece):
            select.count(values)

    def want(self) -> None:
        """Once all are counted: which ranks are asked for."""
        n, ok = self.tally.n, self.tally.ok
        # where failures push it beyond the last success it is infinite
        self.all_sent = self.service.n == ok
        within = [place for place in _ranks(n, self.percents) if place < ok] if self.all_sent else []
        self.service.want([*_ranks(self.service.n, MEDIAN_AND_TAIL), *within])
        self.late.want(_ranks(self.late.n, (99.0,)))
        self.late_whole.want(_ranks(self.late_whole.n, LATE))
        self.latency.want([*_ranks(n, self.percents), *_ranks(ok, (*self.percents, 100.0))])

    def look(self, piece: Tally) -> None:
        for select, values in self._shown(piece):
            select.look(values)

    def settle(self) -> None:
        """Once all were looked at: the order statistics, and the edges of the sketch."""
        n, ok, percents = self.tally.n, self.tally.ok, self.percents
        self.latency_ms = _values(self.latency, n, percents)
        self.ok_ms = _values(self.latency, ok, percents)
        self.service_ms = _values(self.service, self.service.n, MEDIAN_AND_TAIL)
        self.service_all_ms = {
            percent: _ms(self.service.at(place)) if (place := rank(n, percent)) < ok else math.inf
            for percent in (percents if self.all_sent else ())
        }
        self.late_limit_ms = self.late_limit(self.service_ms.get(50.0, 0.0))
        # the upper borders of the bins that hold the sketch's ranks will do for its edges
        places = np.ceil(probabilities(n) * (n - 1)).astype(np.int64)
        borders = np.unique(np.searchsorted(np.cumsum(self.latency.counts), places, side="right"))
        edges_ms = ((borders + (1023 << SPLIT)) << (52 - SPLIT)).view(np.float64) / 1e6
        # what is beyond an objective, or failed, can be counted exactly
        exact = [value for value in self.latency_ms.values() if math.isfinite(value)]
        exact += [*map(as_recorded_ms, self.limits), *filter(None, _values(self.latency, ok, (100.0,)).values())]
        self.sketch = Sketch.empty(np.unique([*edges_ms[edges_ms < FAILED / 1e6], *exact]))

    def add(self, piece: Tally) -> None:
        packed = whole(piece.packed)
        latency = packed >> SLICE_BITS
        self.sketch.add(packed & ((1 << SLICE_BITS) - 1), np.where(latency < FAILED, latency / 1e6, math.inf))
        self.many_late += int(np.count_nonzero(whole(piece.late) > self.late_limit_ms * 1e6))

    def order(self) -> OrderStatistics:
        return OrderStatistics(
            self.latency_ms,
            self.ok_ms,
            self.service_ms,
            self.service_all_ms,
            _values(self.late, self.late.n, (99.0,)),
            _values(self.late_whole, self.late_whole.n, LATE),
            self.many_late,
            self.late_limit_ms,
            self.sketch,
            effective_size(self.sketch, 99),
            interval(self.sketch, 99),
        )


def _passed(run: RecordedRun, keys: Sequence[Key], steps: Mapping[Key, _Passes]) -> dict[Key, OrderStatistics]:
    for key, piece in pieces(run, keys):
        steps[key].count(piece)
    for step in steps.values():
        step.want()
    for key, piece in pieces(run, keys):
        steps[key].look(piece)
    for step in steps.values():
        step.settle()
    for key, piece in pieces(run, keys):
        steps[key].add(piece)
    return {key: step.order() for key, step in steps.items()}
