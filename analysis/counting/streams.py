"""The rows of streams, counted part by part: a `StreamTally` for each endpoint in each step, an `AnswerShape` by load.

Like slices, streams are no part of the one pass: a run without them pays nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.counting import stream_loop as loop
from tailrate.analysis.counting.answer_shape import (
    GAP_BINS,
    POSITIONS,
    TIME_BINS,
    TURNS,
    AnswerShape,
    Level,
    by_class,
    by_length,
)
from tailrate.analysis.counting.counts import Grid, Key, too_early
from tailrate.analysis.counting.stream_tally import StreamTally
from tailrate.analysis.records.folder import REQUESTS
from tailrate.analysis.records.objective import STREAM_FIGURES, Slo
from tailrate.analysis.run.arrays import Chunk, fixed, scan
from tailrate.analysis.run.bins import BINS, FAILED, NEVER, SLICE_BITS, latency_bins
from tailrate.analysis.run.columns import WHOLE
from tailrate.analysis.run.outcomes import NONE, STREAM_COLUMNS, StreamTimes, succeeded
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.stats import compiled
from tailrate.analysis.stats.array_types import Bools, Floats, Ints
from tailrate.analysis.stats.select import COARSE, Select, bins
from tailrate.analysis.stats.sketch import SLICES

if TYPE_CHECKING:
    from tailrate.analysis.run.recorded_run import RecordedRun

COLUMNS = (
    "step",
    "endpoint",
    "sent_ns",
    WHOLE,
    "status",
    "error",
    *STREAM_COLUMNS,
    "tokens_in",
    "cached_tokens",
    "gaps_us",
    "turn",
)
NOBODY: Ints = np.zeros(0, np.int64)


@dataclass(slots=True, eq=False)
class CountedStreams:
    """Of a part or of all."""

    tallies: dict[Key, StreamTally] = field(default_factory=dict)
    shapes: dict[Level, AnswerShape] = field(default_factory=dict)
    arrived: dict[Key, Floats] = field(default_factory=lambda: defaultdict(lambda: np.zeros(2)))
    """In the window of a step: prompt tokens of the answers that began in it, and tokens that came."""
    impossible: int = 0
    """Answers whose first token came before they were due, or sent, or after their last."""

    def add(self, other: CountedStreams) -> None:
        _add_to(self.tallies, other.tallies)
        _add_to(self.shapes, other.shapes)
        for key, tokens in other.arrived.items():
            self.arrived[key] += tokens
        self.impossible += other.impossible


def _add_to(mine: dict[Any, Any], its: Mapping[Any, Any]) -> None:
    for key, found in its.items():
        if key in mine:
            mine[key].add(found)
        else:
            mine[key] = found


def count_streams(run: RecordedRun) -> CountedStreams:
    found, plan = CountedStreams(), _Plan(run)
    for part in scan(run.tables[REQUESTS], COLUMNS, plan.count):
        found.add(part)
    for key, tokens in found.arrived.items():
        if key not in found.tallies:
            found.tallies[key] = plan.nothing(key[0])
        found.tallies[key].arrived_in, found.tallies[key].arrived_out = tokens.tolist()
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Answers:
    """Rows as arrays; an instant that was not is `NEVER`."""

    intended_ns: Ints
    sent_ns: Ints
    first_ns: Ints
    ok: Bools
    events: Ints
    tokens_in: Ints
    tokens_out: Ints
    counted: Ints
    cached: Ints
    turn: Ints
    streamed_ns: Ints
    ttft_ns: Ints
    tpot_ns: Ints
    latency_ns: Ints

    @classmethod
    def of(cls, chunk: Chunk) -> _Answers:
        intended, sent, tokens_in = (chunk.whole(name) for name in ("intended_ns", "sent_ns", "tokens_in"))
        ok = succeeded(chunk)
        times = StreamTimes.of(chunk, ok)
        return cls(
            intended, sent, times.first_ns, ok, times.events, np.maximum(tokens_in, 0), times.tokens, times.counted,
            chunk.whole("cached_tokens"), chunk.whole("turn"), times.last_ns - times.first_ns, times.ttft_ns,
            times.tpot_ns, np.where(ok, chunk.whole(WHOLE) - intended, FAILED),
        )  # fmt: skip

    def of_rows(self, rows: Ints) -> _Answers:
        return _Answers(*(getattr(self, each.name)[rows] for each in fields(self)))


class _Plan:
    """What the rows of a part are sorted into."""

    def __init__(self, run: RecordedRun) -> None:
        steps = run.manifest.scenario["steps"]
        self.planned = {int(step["index"]): str(step["endpoint"]) for step in steps}
        self.grids = {int(step["index"]): Grid.of(step, run.ended_ns) for step in steps}
        self.slos, self.line = run.manifest.slos, Timeline.of(run)
        self.spans = {int(step["index"]): self.line.span(step) for step in steps}
        self.asked: dict[int, tuple[float, int]] = {}
        for step in steps:
            concurrency = int(step.get("concurrency") or 0)
            self.asked[int(step["index"])] = (0.0 if concurrency else float(step["rate"]), concurrency)
        self.windows = sorted(self.planned, key=lambda step: (self.planned[step], self.grids[step].start_ns))

    def nothing(self, step: int) -> StreamTally:
        first, slices = self.spans[step]
        ttft, tpot = (_by_time(NOBODY, slices, NOBODY) for _ in STREAM_FIGURES)
        return StreamTally(
            self.grids[step],
            missed=np.zeros((len(self.slos), SLICES), np.int64),
            tokens_by_time=np.zeros(self.line.slices),
            first=first,
            ttft_by_time=ttft,
            tpot_by_time=tpot,
        )

    def count(self, chunk: Chunk) -> CountedStreams:
        found = CountedStreams()
        keys, group = self._groups(chunk)
        if not keys:
            return found
        intended, sent, first, last = (chunk.whole(f"{name}_ns") for name in ("intended", "sent", "first", "last"))
        found.impossible = int(np.count_nonzero(too_early(first, intended, sent) | too_early(last, first)))
        answers, grids = _Answers.of(chunk), [self.grids[step] for step, _ in keys]
        begin, end, slice_ns = np.array([(grid.start_ns, grid.end_ns, grid.slice_ns) for grid in grids]).T[:, group]
        inside = (group >= 0) & (begin <= answers.intended_ns) & (answers.intended_ns < end)
        at = np.minimum((answers.intended_ns - begin) // slice_ns, SLICES - 1)
        levels = {(name, *self.asked[step]): 0 for step, name in keys}
        level = np.array([list(levels).index((name, *self.asked[step])) for step, name in keys])
        sums = self._walk(chunk, answers, keys, group, inside & answers.ok, level, len(levels))

        for number, (key, grid) in enumerate(zip(keys, grids, strict=True)):
            rows = np.flatnonzero(inside & (group == number))
            found.tallies[key] = tally = _tally(grid, answers.of_rows(rows), at[rows], self.slos)
            stall = sums.stall_us[rows]
            tally.stall.append(1000 * stall[stall >= 0])
            tally.gaps.counts += sums.gaps[number]
            tally.tokens_by_time = sums.tokens_by_time[number, :-1]
            whole = np.flatnonzero(group == number)
            tally.first, slices = self.spans[key[0]]
            places = np.clip(self.line.numbers(answers.intended_ns[whole]) - tally.first, 0, slices - 1)
            tally.ttft_by_time = _by_time(places, slices, answers.ttft_ns[whole])
            tally.tpot_by_time = _by_time(places, slices, answers.tpot_ns[whole])
        for number, step in enumerate(self.windows):
            if sums.arrived[number].any():
                found.arrived[step, self.planned[step]] += sums.arrived[number]
        good = np.flatnonzero(inside & answers.ok)
        mine, its = answers.of_rows(good), level[group[good]]
        for number, asked in enumerate(levels):
            found.shapes[asked] = _shape(mine.of_rows(np.flatnonzero(its == number)), sums.by_position[number])
        return found

    def _groups(self, chunk: Chunk) -> tuple[list[Key], Ints]:
        """The steps and endpoints of a part, and which of them each row is of; −1 of none."""
        codes, names = chunk.text("endpoint")
        width = len(names) + 1
        pairs, place = np.unique(chunk.whole("step") * width + codes + 1, return_inverse=True)
        keys: dict[Key, int] = {}
        group = np.full(len(pairs), -1)
        for number, pair in enumerate(pairs.tolist()):
            step, code = divmod(pair, width)
            if step in self.planned:  # a row without endpoint is its step's
                group[number] = keys.setdefault((step, (self.planned[step], *names)[code]), len(keys))
        return list(keys), group[place]

    def _walk(
        self, chunk: Chunk, answers: _Answers, keys: Sequence[Key], group: Ints, good: Ints, level: Ints, levels: int
    ) -> loop.Sums:
        gap_ends, gaps_us = chunk.lists("gaps_us")
        of = [self.planned[step] for step in self.windows]
        spans = [(of.index(name), of.index(name) + of.count(name)) if name in of else (0, 0) for _, name in keys]
        first, last = fixed(spans, np.int64).T
        sums = loop.Sums(
            np.zeros((len(keys), len(Select().counts)), np.int64),
            fixed(level, np.int64),
            np.zeros((levels, POSITIONS, GAP_BINS), np.int64),
            np.zeros((len(keys), self.line.slices + 1)),
            np.zeros((len(self.windows), 2)),
            np.full(len(group), NONE),
        )
        events = loop.Events(
            fixed(group, np.int64), fixed(good, np.bool_), fixed(answers.first_ns, np.int64),
            fixed(answers.tokens_out, np.int64), fixed(answers.tokens_in, np.int64), fixed(gap_ends, np.int64),
            fixed(gaps_us, np.uint32),
        )  # fmt: skip
        starts, ends = ([getattr(self.grids[step], f"{edge}_ns") for step in self.windows] for edge in ("start", "end"))
        windows = loop.Windows(
            fixed(starts, np.int64), fixed(ends, np.int64), fixed(first, np.int64), fixed(last, np.int64),
            first.copy(), self.line.zero_ns, self.line.slice_ns,
        )  # fmt: skip
        compiled.run(loop.walk, len(group) + len(gaps_us), events, windows, sums)
        return sums


def _tally(grid: Grid, answers: _Answers, at: Ints, slos: Sequence[Slo]) -> StreamTally:
    """Of the arrivals of a window; `at`: their slices."""
    ok = answers.ok
    known = ok & (answers.cached != NEVER)
    ttft, tpot = answers.ttft_ns, answers.tpot_ns
    begun = (answers.first_ns != NEVER) & (answers.sent_ns != NEVER)
    return StreamTally(
        grid,
        n=len(ok),
        ok=int(ok.sum()),
        single=int(np.count_nonzero(tpot[ok] == NONE)),
        uncounted=int(np.count_nonzero(answers.counted[ok] == 0)),
        counted_here=int(np.count_nonzero(answers.counted[ok] == 1)),
        events=int(answers.events[ok].sum()),
        tokens_out=int(answers.tokens_out[ok].sum()),
        streamed=np.bincount(bins(answers.streamed_ns[ok], COARSE), minlength=TIME_BINS),
        prompt_tokens=int(answers.tokens_in[known].sum()),
        cached_tokens=int(answers.cached[known].sum()),
        ttft=[(ttft << SLICE_BITS) | at],
        tpot=[((tpot << SLICE_BITS) | at)[tpot != NONE]],
        ttft_sent=[(answers.first_ns - answers.sent_ns)[begun]],
        missed=_missed(answers, at, slos),
    )


def _by_time(places: Ints, slices: int, ns: Ints) -> Ints:
    cells = (places * (BINS + 1) + latency_bins(ns))[ns != NONE]
    return np.bincount(cells, minlength=slices * (BINS + 1)).reshape(slices, BINS + 1).astype(np.int32)


def _missed(answers: _Answers, at: Ints, slos: Sequence[Slo]) -> Ints:
    found = np.zeros((len(slos), SLICES), np.int64)
    figures = {"": answers.latency_ns, **{name: getattr(answers, f"{name}_ns") for name in STREAM_FIGURES}}
    for number, slo in enumerate(slos):
        if not slo.slice:
            beyond = ~answers.ok
            for name, bound in slo.bounds.items():
                beyond = beyond | (figures[name] > round(bound.ms * 1e6))
            found[number] = np.bincount(at[beyond], minlength=SLICES)
    return found


def _shape(answers: _Answers, gaps_us: Ints) -> AnswerShape:
    """Of successes."""
    prompt, several, turns = answers.tokens_in > 0, answers.tpot_ns != NONE, np.flatnonzero(answers.turn >= 0)
    return AnswerShape(
        gaps_us,
        by_length(answers.tokens_in[prompt], answers.ttft_ns[prompt]),
        by_length(answers.tokens_out[several], answers.tpot_ns[several]),
        by_length(answers.tokens_out, answers.latency_ns),
        by_class(answers.turn[turns], TURNS, answers.ttft_ns[turns]),
        _turns_tokens(answers, turns),
    )


def _turns_tokens(answers: _Answers, turns: Ints) -> Ints:
    turn = np.minimum(answers.turn[turns], TURNS - 1)
    tokens, cached = answers.tokens_in[turns], answers.cached[turns]
    known = cached != NEVER
    sums = (tokens > 0, tokens, np.where(known, tokens, 0), np.where(known, cached, 0))
    return np.array([np.bincount(turn, weights, TURNS) for weights in sums]).T.round().astype(np.int64)
