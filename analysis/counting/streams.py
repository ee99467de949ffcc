"""What the streams of each step did: first tokens, time per token, gaps and tokens, counted part by part.

t0 is the intended instant, N the tokens of an answer as the server counted them, n those in its first content event:
TTFT is first content event − t0, TPOT is (last − first content event) ÷ (N − n), for each answer. A failure has neither
in time; one that broke off after its first token has the TTFT that its user saw. An answer in a single event has no
TPOT and is judged by the rest. Gaps are counted in bins a thousandth wide, so that billions take the memory of a few.
Like slices, streams are no part of the one pass: a run without them pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tailrate.analysis.counting.counts import Grid, Key
from tailrate.analysis.counting.order_statistics import MEDIAN_AND_TAIL, PERCENTS, Ordered, ordered, whole
from tailrate.analysis.counting.select import Select
from tailrate.analysis.records.folder import REQUESTS
from tailrate.analysis.records.objective import STREAM_FIGURES, Slo
from tailrate.analysis.records.rows import is_success
from tailrate.analysis.run.arrays import Chunk, scan
from tailrate.analysis.run.bins import FAILED, NEVER, SLICE_BITS
from tailrate.analysis.run.columns import WHOLE
from tailrate.analysis.stats.array_types import Ints
from tailrate.analysis.stats.sketch import SLICES, Sketch
from tailrate.analysis.stats.trend import rank

if TYPE_CHECKING:
    from tailrate.analysis.run.recorded_run import RecordedRun

COLUMNS = (
    "step", "endpoint", "intended_ns", "sent_ns", WHOLE, "status", "error", "first_ns", "last_ns", "events",
    "tokens_in", "tokens_out", "first_tokens", "cached_tokens", "gaps_us",
)  # fmt: skip
NONE = -1
"""Of a row that has no such figure."""


@dataclass(slots=True, eq=False)
class StreamTally:
    """One endpoint in one step; arrivals are those of its window."""

    grid: Grid
    n: int = 0
    ok: int = 0
    single: int = 0
    """Successes whose answer came in one event."""
    uncounted: int = 0
    """Successes of which the server did not say how many tokens they have: each event counts as one."""
    events: int = 0
    """Of successes."""
    tokens_out: int = 0
    """Of successes."""
    prompt_tokens: int = 0
    """Of successes whose server said how many of them it had read before; and those."""
    cached_tokens: int = 0
    arrived_in: float = 0.0
    """Prompt tokens of answers, whatever arrival's, whose first token came in the window; and tokens that did."""
    arrived_out: float = 0.0
    gaps: Select = field(default_factory=Select)
    """Of successes, in us."""
    ttft: list[Ints] = field(default_factory=list)
    """In ns with the slice of time, one integer per arrival."""
    tpot: list[Ints] = field(default_factory=list)
    """Of those that have one, and of failures."""
    ttft_sent: list[Ints] = field(default_factory=list)
    """From the sending, in ns, of those that had a first token."""
    stall: list[Ints] = field(default_factory=list)
    """The longest gap of each success that has any, in ns."""
    missed: Ints = field(default_factory=lambda: np.zeros((0, SLICES), np.int64))
    """By objective and slice: arrivals that missed any of its limits."""

    def add(self, other: StreamTally) -> None:
        self.gaps.counts += other.gaps.counts
        for each in fields(self):
            if each.name not in ("grid", "gaps"):
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def stream_tallies(run: RecordedRun) -> dict[Key, StreamTally]:
    steps = run.manifest.scenario["steps"]
    plan = {int(step["index"]): (str(step["endpoint"]), Grid.of(step, run.ended_ns)) for step in steps}
    found: dict[Key, StreamTally] = {}
    for part in scan(run.tables[REQUESTS], COLUMNS, partial(_counted, plan, run.manifest.slos)):
        for key, tally in part.items():
            if key in found:
                found[key].add(tally)
            else:
                found[key] = tally
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Streams:
    """Rows as arrays; an instant that was not is `NEVER`."""

    intended_ns: Ints
    sent_ns: Ints
    first_ns: Ints
    last_ns: Ints
    ok: Ints
    events: Ints
    tokens_in: Ints
    tokens_out: Ints
    """As the server counted, else as there were events."""
    counted: Ints
    cached: Ints
    ttft_ns: Ints
    tpot_ns: Ints
    latency_ns: Ints
    gap_ends: Ints
    gaps_us: Ints

    @classmethod
    def of(cls, chunk: Chunk) -> _Streams:
        names = ("intended_ns", "sent_ns", "first_ns", "last_ns", "events", "tokens_in", "tokens_out", "first_tokens")
        intended, sent, first, last, events, tokens_in, said, head = (chunk.whole(name) for name in names)
        status, words = chunk.text("status")
        error, _ = chunk.text("error")
        done = chunk.whole(WHOLE)
        good = np.array([*map(is_success, words), False])
        ok = good[status] & (error < 0) & (done != NEVER)
        events, tokens_in = np.maximum(events, 0), np.maximum(tokens_in, 0)
        tokens, head = np.where(said == NEVER, events, said), np.where(head == NEVER, 1, head)
        several = ok & (events > 1) & (tokens > head)
        per_token = np.where(several, (last - first) // np.maximum(tokens - head, 1), NONE)
        lengths, gaps = chunk.lists("gaps_us")
        return cls(
            intended, sent, first, last, ok, events, tokens_in, tokens, said != NEVER, chunk.whole("cached_tokens"),
            np.where(first == NEVER, FAILED, first - intended), np.where(ok, per_token, FAILED),
            np.where(ok, done - intended, FAILED), np.cumsum(lengths), gaps,
        )  # fmt: skip

    def gaps_of(self, row: int) -> Ints:
        return self.gaps_us[self.gap_ends[row - 1] if row else 0 : self.gap_ends[row]]

    def where(self, name: str, rows: Ints) -> Ints:
        found: Ints = getattr(self, name)[rows]
        return found


def _counted(plan: Mapping[int, tuple[str, Grid]], slos: Sequence[Slo], chunk: Chunk) -> dict[Key, StreamTally]:
    if not len(chunk):
        return {}
    streams, steps = _Streams.of(chunk), chunk.whole("step")
    codes, names = chunk.text("endpoint")
    found: dict[Key, StreamTally] = {}
    for index in np.unique(steps).tolist():
        if index not in plan:
            continue
        planned, grid = plan[index]
        for code in np.unique(codes[steps == index]).tolist():
            mine = (steps == index) & (codes == code)
            inside = mine & (streams.intended_ns >= grid.start_ns) & (streams.intended_ns < grid.end_ns)
            key = index, names[code] if code >= 0 else planned
            found[key] = _tally(streams, np.flatnonzero(inside), grid, slos)
    for index, (planned, grid) in plan.items():  # tokens come when they come, whatever step their arrival is of
        for code, name in enumerate(names):
            if name == planned and (rows := _overlapping(streams, codes == code, grid)).size:
                tally = found.setdefault(
                    (index, name), StreamTally(grid, missed=np.zeros((len(slos), SLICES), np.int64))
                )
                tally.arrived_in += float(streams.tokens_in[rows[streams.first_ns[rows] >= grid.start_ns]].sum())
                tally.arrived_out += sum(_within(streams, rows, grid))
    return found


def _overlapping(streams: _Streams, mine: Ints, grid: Grid) -> Ints:
    """Rows of which any token may have come in the window."""
    came = mine & (streams.first_ns != NEVER)
    return np.flatnonzero(came & (streams.first_ns < grid.end_ns) & (streams.last_ns >= grid.start_ns))


def _within(streams: _Streams, rows: Ints, grid: Grid) -> Iterator[float]:
    """Their tokens that came in the window; those of streams across its edges by the events that are inside."""
    first, last = streams.first_ns[rows], streams.last_ns[rows]
    whole = (first >= grid.start_ns) & (last < grid.end_ns)
    yield float(streams.tokens_out[rows[whole]].sum())
    for row in rows[~whole].tolist():
        at = streams.first_ns[row] + 1000 * np.concatenate([[0], np.cumsum(streams.gaps_of(row))])
        share = np.count_nonzero((at >= grid.start_ns) & (at < grid.end_ns)) / len(at)
        yield float(streams.tokens_out[row]) * share


def _tally(streams: _Streams, rows: Ints, grid: Grid, slos: Sequence[Slo]) -> StreamTally:
    at = np.minimum((streams.intended_ns[rows] - grid.start_ns) // grid.slice_ns, SLICES - 1)
    ok = streams.ok[rows]
    good = rows[ok]
    known = good[streams.cached[good] != NEVER]
    ttft, tpot, sent = (streams.where(name, rows) for name in ("ttft_ns", "tpot_ns", "sent_ns"))
    first = streams.first_ns[rows]
    begun = (first != NEVER) & (sent != NEVER)
    stall = [int(gaps.max()) * 1000 for row in good.tolist() if (gaps := streams.gaps_of(row)).size]
    found = StreamTally(
        grid,
        n=len(rows),
        ok=len(good),
        single=int(np.count_nonzero(tpot[ok] == NONE)),
        uncounted=int(np.count_nonzero(~streams.counted[good])),
        events=int(streams.events[good].sum()),
        tokens_out=int(streams.tokens_out[good].sum()),
        prompt_tokens=int(streams.tokens_in[known].sum()),
        cached_tokens=int(streams.cached[known].sum()),
        ttft=[(ttft << SLICE_BITS) | at],
        tpot=[((tpot << SLICE_BITS) | at)[tpot != NONE]],
        ttft_sent=[(first - sent)[begun]],
        stall=[np.array(stall, np.int64)],
        missed=_missed(streams, rows, at, slos),
    )
    if len(good):
        found.gaps.count(np.concatenate([streams.gaps_of(row) for row in good.tolist()]))
    return found


def _missed(streams: _Streams, rows: Ints, at: Ints, slos: Sequence[Slo]) -> Ints:
    found = np.zeros((len(slos), SLICES), np.int64)
    figures = {"": streams.latency_ns, **{name: getattr(streams, f"{name}_ns") for name in STREAM_FIGURES}}
    for number, slo in enumerate(slos):
        if not slo.slice:
            beyond = ~streams.ok[rows]
            for name, bound in slo.bounds.items():
                beyond = beyond | (figures[name][rows] > round(bound.ms * 1e6))
            found[number] = np.bincount(at[beyond], minlength=SLICES)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class StreamFigures:
    """What follows from a tally; of nothing there is None."""

    tally: StreamTally
    ttft: Ordered
    tpot: Ordered
    ttft_ms: Mapping[float, float]
    tpot_ms: Mapping[float, float]
    ttft_sent_p99_ms: float | None
    gap_ms: Mapping[float, float]
    stall_p99_ms: float | None

    @property
    def sketches(self) -> dict[str, Sketch]:
        """By what an objective limits."""
        return {"ttft": self.ttft.sketch, "tpot": self.tpot.sketch}

    def met(self, number: int) -> Sketch:
        """Arrivals by slice, those that kept all limits of an objective below the one edge, the others above it."""
        arrived = self.ttft.sketch.counts.sum(axis=1)
        found = Sketch.empty(np.zeros(1))
        found.counts[:, 1] = self.tally.missed[number]
        found.counts[:, 0] = arrived - self.tally.missed[number]
        return found


def figures(tally: StreamTally, slos: Sequence[Slo]) -> StreamFigures:
    limits = {name: [bound.ms for slo in slos if (bound := getattr(slo, name))] for name in STREAM_FIGURES}
    ttft, tpot = (ordered(whole(getattr(tally, name)), limits[name]) for name in STREAM_FIGURES)
    sent, stall = (np.sort(whole(values)) for values in (tally.ttft_sent, tally.stall))
    return StreamFigures(
        tally,
        ttft,
        tpot,
        ttft.percentiles(PERCENTS),
        tpot.percentiles(PERCENTS),
        _p99_ms(sent),
        {percent: tally.gaps.near(percent) / 1e3 for percent in MEDIAN_AND_TAIL} if tally.gaps.n else {},
        _p99_ms(stall),
    )


def _p99_ms(ns: Ints) -> float | None:
    return float(ns[rank(len(ns), 99)]) / 1e6 if len(ns) else None
