"""Exact order statistics of a step's latencies, service times and lateness, and the sketch of its latencies.

Where a tally kept every value they are sorted; where there were too many, further passes over the rows find the wanted
ranks: one counts values in bins a thousandth wide, the next looks into the bins that hold a rank. Both give the very
values, to the nanosecond. Times are in ms, a failure is +infinity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrate.analysis.counting.counts import Key, Tallies, Tally
from tailrate.analysis.counting.one_pass import pieces, tally
from tailrate.analysis.judging.trust import late_limit_ms
from tailrate.analysis.records.objective import LATE_MS
from tailrate.analysis.run.bins import FAILED, SLICE_BITS
from tailrate.analysis.stats.array_types import Ints
from tailrate.analysis.stats.dependence import effective_size
from tailrate.analysis.stats.interval import interval, ranks
from tailrate.analysis.stats.sketch import Sketch, probabilities, to_ns
from tailrate.analysis.stats.trend import rank

if TYPE_CHECKING:
    from tailrate.analysis.run.recorded_run import RecordedRun

PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)
MEDIAN_AND_TAIL = (50.0, 99.0)
"""Of service times."""
LATE = (50.0, 99.0, 100.0)
_SPLIT = 10


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
    found: dict[Key, OrderStatistics] = {}

    def closed(key: Key, whole: Tally) -> None:
        if whole.kept:
            found[key] = _kept(whole, percents, limits)
            whole.let_go()

    tallies = tally(run, closed)
    if rest := [key for key in tallies.groups if key not in found]:
        found |= _passed(run, tallies, rest, percents, limits)
    return tallies, found


def _ms(ns: float) -> float:
    return math.inf if ns >= FAILED else ns / 1e6


def _kept(tally: Tally, percents: Sequence[float], limits: Sequence[float]) -> OrderStatistics:
    packed = _whole(tally.packed)
    packed.sort()
    latency = packed >> SLICE_BITS
    service, late = _whole(tally.service), _whole(tally.late)
    late_whole = np.concatenate([late, *tally.late_outside])
    places = np.unique(np.ceil(probabilities(max(1, tally.n)) * (tally.n - 1)).astype(np.int64))[: tally.n]
    # what is beyond an objective, or failed, can be counted exactly
    exact = [latency[tally.ok - 1 : tally.ok], [round(limit * 1e6) for limit in limits]]
    edges = np.unique(np.concatenate([_edges(latency[places]), *exact]).astype(np.int64))
    held = np.searchsorted(latency, edges, side="right")
    bins = np.repeat(np.arange(len(edges) + 1), np.diff(held, prepend=0, append=tally.n))
    sketch = Sketch.empty(edges / 1e6)
    cells = (packed & ((1 << SLICE_BITS) - 1)) * (len(edges) + 1) + bins
    sketch.counts[...] = np.bincount(cells, minlength=sketch.counts.size).reshape(sketch.counts.shape)

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
    limit = late_limit_ms(limits, times.get(50.0, 0.0))
    n_eff = effective_size(sketch, 99)
    ends = ranks(tally.n, 99, n_eff)
    return OrderStatistics(
        {percent: _ms(latency[rank(tally.n, percent)]) for percent in percents} if tally.n else {},
        {percent: _ms(latency[rank(tally.ok, percent)]) for percent in percents} if tally.ok else {},
        times,
        picked(service, percents, tally.n) if len(service) == tally.ok else {},
        picked(late, (99.0,), len(late)),
        picked(late_whole, LATE, len(late_whole)),
        int(np.count_nonzero(late > limit * 1e6)),
        limit,
        sketch,
        n_eff,
        ends and (_ms(latency[ends[0]]), math.inf if ends[1] is None else _ms(latency[ends[1]])),
    )


def _whole(pieces: list[Ints]) -> Ints:
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)


def _edges(ns: Ints) -> Ints:
    """Borders of bins at these ordered latencies; one that repeats has a bin to itself."""
    ns = ns[ns < FAILED]
    ties = ns[1:][np.diff(ns) == 0]
    edges: Ints = np.unique(np.concatenate([ns, ties - 1]))
    return edges


# ---- more values than are kept


class Select:
    """Order statistics of values (whole, not negative) that are shown twice and never held."""

    def __init__(self) -> None:
        self.counts = np.zeros((52 << _SPLIT) + 2, dtype=np.int64)
        self.wanted: list[int] = []
        self.found: dict[int, list[tuple[Ints, Ints]]] = {}

    @staticmethod
    def bins(values: Ints) -> Ints:
        """Monotone in the value, a thousandth wide: the first bits of it as a floating-point number."""
        found: Ints = (np.maximum(values, 0).astype(np.float64).view(np.int64) >> (52 - _SPLIT)) - (1023 << _SPLIT) + 1
        return np.maximum(found, 0, out=found)

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    def count(self, values: Ints) -> None:
        self.counts += np.bincount(self.bins(values), minlength=len(self.counts))

    def want(self, ranks: Iterable[int]) -> None:
        """After every value was counted: these will be asked for."""
        below = np.cumsum(self.counts)
        self.found = {int(np.searchsorted(below, wanted, side="right")): [] for wanted in ranks}
        self.wanted = sorted(self.found)

    def look(self, values: Ints) -> None:
        bins = self.bins(values)
        inside = np.isin(bins, self.wanted)
        values, bins = values[inside], bins[inside]
        for wanted in self.wanted:
            if len(mine := values[bins == wanted]):
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


def _ranks(n: int, percents: Iterable[float]) -> list[int]:
    return [rank(n, percent) for percent in percents if n]


def _values(select: Select, n: int, percents: Iterable[float]) -> dict[float, float]:
    return {percent: _ms(select.at(rank(n, percent))) for percent in percents if n}


class _Passes:
    """A step whose values are shown three times and never held: they are counted, looked at, added to the sketch."""

    def __init__(self, tally: Tally, percents: Sequence[float], limits: Sequence[float]) -> None:
        self.tally, self.percents, self.limits = tally, percents, limits
        self.latency, self.service, self.late, self.late_whole = Select(), Select(), Select(), Select()
        self.many_late = 0

    def _shown(self, piece: Tally) -> Iterator[tuple[Select, Ints]]:
        yield self.latency, _whole(piece.packed) >> SLICE_BITS
        yield self.service, _whole(piece.service)
        yield self.late, _whole(piece.late)
        yield self.late_whole, _whole([*piece.late, *piece.late_outside])

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
        self.late_limit_ms = late_limit_ms(self.limits, self.service_ms.get(50.0, 0.0))
        # the upper borders of the bins that hold the sketch's ranks will do for its edges
        places = np.ceil(probabilities(n) * (n - 1)).astype(np.int64)
        borders = np.unique(np.searchsorted(np.cumsum(self.latency.counts), places, side="right"))
        edges_ms = ((borders + (1023 << _SPLIT)) << (52 - _SPLIT)).view(np.float64) / 1e6
        # what is beyond an objective, or failed, can be counted exactly
        exact = [value for value in self.latency_ms.values() if math.isfinite(value)]
        exact += [*map(to_ns, self.limits), *filter(None, _values(self.latency, ok, (100.0,)).values())]
        self.sketch = Sketch.empty(np.unique([*edges_ms[edges_ms < FAILED / 1e6], *exact]))

    def add(self, piece: Tally) -> None:
        packed = _whole(piece.packed)
        latency = packed >> SLICE_BITS
        self.sketch.add(packed & ((1 << SLICE_BITS) - 1), np.where(latency < FAILED, latency / 1e6, math.inf))
        self.many_late += int(np.count_nonzero(_whole(piece.late) > self.late_limit_ms * 1e6))

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


def _passed(
    run: RecordedRun, tallies: Tallies, keys: Sequence[Key], percents: Sequence[float], limits: Sequence[float]
) -> dict[Key, OrderStatistics]:
    steps = {key: _Passes(tallies.groups[key], percents, limits) for key in keys}
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
