"""What a step's window shows while it runs, as the report would have it: what its arrivals say to the objectives,
whether the queue grew, and what speaks against the load generator.

Arrivals are counted by slice of time: those beyond each limit, and by value, in bins 1 % wide. Slices double as time
goes on, so that there are a hundred of them or more, and in the end they are the report's. The rules are those of
`analysis.judging`; whether the window was steady is asked of the rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tailrate.analysis.judging.evidence import SHOWN_AT, counts
from tailrate.analysis.judging.judge import Window
from tailrate.analysis.judging.share import ALL, Count, terms
from tailrate.analysis.judging.trust import FILLED, FIRST, SPARE, doubts, late_limit_ms, lateness, overload
from tailrate.analysis.records.manifest import in_ns
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.run.arrays import Chunk
from tailrate.analysis.run.bins import NEVER
from tailrate.analysis.run.columns import WHOLE
from tailrate.analysis.stats.array_types import Bools, Floats, Ints
from tailrate.analysis.stats.dependence import LEAST_BEYOND
from tailrate.analysis.stats.sketch import SLICES, Sketch
from tailrate.analysis.stats.trend import NO_GROWTH, Growth, queue_growth
from tailrate.loadtest.engine.live.histogram import Histogram
from tailrate.loadtest.engine.live.limit_counts import held_to, limits_of
from tailrate.loadtest.engine.scenario.knee_search import Limits
from tailrate.loadtest.engine.scenario.steps import LoadStep

HALVINGS = 12
"""So many times shorter than the report's are the first slices."""
EDGES_MS = np.geomspace(1e-2, 1e6, 1850)
DROPPED, GIVEN_UP = "dropped", ("dropped", "timeout")
DONE = "done"
SETTLED_S = 1.0
"""What was answered so long ago has its row here, from whichever process."""
LEAST_S, SEGMENTS = 4.0, 10
"""A queue is not seen to grow before that, nor where a tenth of the time is shorter than its first answers took."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveSketch(Sketch):
    """Of a figure, with those beyond each limit counted by themselves; every edge has some beyond it."""

    over: Mapping[float, Ints]

    def beyond(self, limit: float) -> Ints:
        return self.over[limit]


class LiveWindow:
    """`see` rows as they come; `shown` is what the judge is told of them, with `counts` for each objective.

    `due` gives the number of arrivals that were due by instants since the step's start.
    """

    def __init__(self, step: LoadStep, start_ns: int, slos: Sequence[Slo], streams: bool) -> None:
        self.streams = streams
        """Whether its answers come token by token."""
        self.n = 0
        self.cpu_pct: float | None = None
        """Of the busiest load process, where that is known."""
        self.short = False
        """A load process was lost."""
        self._step, self._slos = step, slos
        self._start_ns = start_ns + in_ns(step.settle_s)
        self._length_ns = step.length_ns - in_ns(step.settle_s)
        self._slice_ns = max(1, -(-self._length_ns // SLICES)) / 2**HALVINGS
        self._limits = {limits_of(term) for slo in slos for term in terms(slo)}
        self._figures = {"", *(name for slo in slos for name in slo.bounds)}
        columns: dict[Any, int] = dict.fromkeys((DONE, *self._limits), 1)
        columns |= dict.fromkeys(self._figures, len(EDGES_MS) + 1)
        self._counts = {name: np.zeros((SLICES, width), np.int32) for name, width in columns.items()}
        self._last_ns = self._seen_ns = self._before = 0
        """Of arrivals, when the last was due and the last was answered; how many were answered before the window."""
        self._lateness, self._service, self._streamed, self._ok = (Histogram() for _ in range(4))
        self._late = self._dropped = self._given_up = 0
        self._first_ms, self._ok_ms = np.empty(0), 0.0
        self._failed = np.empty(0, np.int64)
        """The numbers of the first that failed."""

    # ---- rows

    def see(self, rows: Chunk, ok: Bools, figures_ms: dict[str, Floats]) -> None:
        intended, sent, done, seq = (rows.whole(name) for name in ("intended_ns", "sent_ns", WHOLE, "seq"))
        due_ns, over_ns = intended - self._start_ns, np.where(done == NEVER, intended, done) - self._start_ns
        inside, latency_ms = (due_ns >= 0) & (due_ns < self._length_ns), (done - intended) / 1e6
        self._first_ms = np.concatenate([self._first_ms, latency_ms[ok][: FIRST - len(self._first_ms)]])
        self._before += int((over_ns < 0).sum())
        self._seen_ns = max(self._seen_ns, int(over_ns.max(initial=0)))
        within = (over_ns >= 0) & (over_ns < self._length_ns)
        self._add(DONE, over_ns[within])
        if not inside.any():
            return
        due_ns, ok, latency_ms = due_ns[inside], ok[inside], latency_ms[inside]
        figures_ms = {name: values[inside] for name, values in figures_ms.items()}
        self.n += len(due_ns)
        self._last_ns = max(self._last_ns, int(due_ns.max()))
        for name in self._figures:
            known = ~np.isnan(figures_ms[name])
            self._add(name, due_ns[known], np.searchsorted(EDGES_MS, figures_ms[name][known]))
        for limits in self._limits:
            self._add(limits, due_ns[held_to(figures_ms, limits)[1]])
        self._ok.add(latency_ms[ok])
        self._ok_ms += float(latency_ms[ok].sum())
        self._failed = np.concatenate([self._failed, seq[inside][~ok]])[:LEAST_BEYOND]
        self._service.add((done - sent)[inside][ok & (sent[inside] != NEVER)] / 1e6)
        if self.streams:
            first, last = (rows.whole(name)[inside] for name in ("first_ns", "last_ns"))
            self._streamed.add((last - first)[ok & (first != NEVER)] / 1e6)
        self._see_sending(rows, inside, (sent - intended) / 1e6)

    def _see_sending(self, rows: Chunk, inside: Bools, late_ms: Floats) -> None:
        codes, names = rows.text("status")
        times = np.bincount(codes[inside & (codes >= 0)], minlength=len(names)).tolist()
        became = dict(zip(names, times, strict=True))
        self._dropped += became.get(DROPPED, 0)
        self._given_up += sum(became.get(name, 0) for name in GIVEN_UP)
        late_ms = late_ms[inside & (rows.whole("sent_ns") != NEVER)]
        self._lateness.add(late_ms)
        self._late += int((late_ms > self.late_limit_ms).sum())

    def _add(self, name: Any, at_ns: Ints, columns: Ints | int = 0) -> None:
        while at_ns.max(initial=0) >= SLICES * self._slice_ns:
            self._slice_ns *= 2
            for found in self._counts.values():
                found[: SLICES // 2] = found[::2] + found[1::2]
                found[SLICES // 2 :] = 0
        places: Any = (at_ns // self._slice_ns).astype(np.int64), columns
        np.add.at(self._counts[name], places, 1)

    def forget(self) -> None:
        """Nobody will ask what they say any more."""
        self._counts.clear()

    # ---- what they say

    @property
    def late_limit_ms(self) -> float:
        """From where on lateness is held against the load generator."""
        return late_limit_ms(self._slos, self._service.quantile(0.5) or 0.0, streams=self.streams)

    def shown(self, due: Callable[[Floats], Ints]) -> Window:
        """Without counts."""
        if not self.n:
            return Window(())
        mean_ms = self._ok_ms / self._ok.finite if self._ok.finite else math.inf
        early_ms = float(self._first_ms.mean()) if len(self._first_ms) else math.inf
        growth = self._growth(due, early_ms / 1e3)
        grew = overload(growth, self.n, self._given_up, self._dropped, early_ms, mean_ms)
        late = lateness(self._lateness.quantile(0.99) or 0.0, self._late, self.late_limit_ms)
        would_do = SPARE * self.n / self._seconds * (self._ok.quantile(0.99) or 0.0) / 1e3
        why = doubts(0 if grew else self._dropped, self.n, would_do, self.cpu_pct)
        if self.short:
            why.append("a load process was lost, and its share of the arrivals with it")
        return Window((), grew, late, tuple(why))

    def windows(self, due: Callable[[Floats], Ints]) -> list[Window]:
        """For each objective."""
        shown = self.shown(due)
        return [replace(shown, counts=self._said(slo)) for slo in self._slos]

    @property
    def _slices(self) -> int:
        """Up to the last arrival."""
        return int(self._last_ns // self._slice_ns) + 1

    @property
    def _seconds(self) -> float:
        return float(self._slices * self._slice_ns / 1e9)

    def _said(self, slo: Slo) -> tuple[Count, ...]:
        found = {name: self._sketch(name) for name in {"", *slo.bounds} if self.streams or not name}
        for term in terms(slo) if self.streams else ():
            if term.figure == ALL:
                arrived = self._counts[""][: self._slices].sum(axis=1)
                found[ALL] = Sketch.of_two(arrived, self._over(limits_of(term)))
        return counts(slo, found.pop(""), self._seconds, self._burst, found)

    def _over(self, limits: Limits) -> Ints:
        return self._counts[limits][: self._slices, 0].astype(np.int64)

    def _sketch(self, name: str) -> Sketch:
        """With edges where dependence is looked for, as near as bins allow."""
        found = self._counts[name][: self._slices]
        below = np.cumsum(found.sum(axis=0))
        _, edges = np.unique(below[:-1], return_index=True)
        edges = edges[(below[edges] > 0) & (below[edges] <= below[-1] - LEAST_BEYOND)]
        if len(edges):
            wanted = np.minimum(np.array(SHOWN_AT) / 100 * below[-1], below[-1] - LEAST_BEYOND)
            edges = np.unique(edges[np.abs(below[edges] - wanted[:, None]).argmin(axis=1)])
        binned = np.add.reduceat(found, [0, *(edges + 1)], axis=1, dtype=np.int64)
        over = {one[0][1]: self._over(one) for one in self._limits if len(one) == 1 and one[0][0] == name}
        return LiveSketch(EDGES_MS[edges], binned, over)

    def _burst(self) -> float:
        """How many failures came in a row, in the mean, while there are few."""
        return len(self._failed) / max(1, 1 + int((np.diff(np.sort(self._failed)) > 1).sum()))

    def _growth(self, due: Callable[[Floats], Ints], early_s: float) -> Growth:
        """As long as arrivals have instants of their own, by those that were due and not answered."""
        slices = int(min(self._length_ns, self._seen_ns - SETTLED_S * 1e9) // self._slice_ns)
        if not self._step.scheduled or slices * self._slice_ns < 1e9 * max(LEAST_S, SEGMENTS * early_s):
            return NO_GROWTH
        # while the first answers come, more and more are under way without anything having to wait
        filled_ms = self._streamed.quantile(FILLED / 100) or 0.0
        edges = np.arange(int(filled_ms * 1e6 // self._slice_ns), slices + 1)
        arrived = due(self._step.settle_s + edges * self._slice_ns / 1e9)
        answered = self._before + np.concatenate([[0], np.cumsum(self._counts[DONE][:slices, 0])])[edges]
        level = (arrived - answered).astype(np.float64)
        seconds = (len(edges) - 1) * self._slice_ns / 1e9
        return queue_growth((level[1:] + level[:-1]) / 2, np.diff(arrived).astype(np.float64), seconds)
