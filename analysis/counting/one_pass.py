"""The pass over the rows of requests: parts are read and added up side by side, their tallies put together in order.

Owns what the columns of a part mean to the compiled loop (`kernel`), and what concerns a run as a whole: numbers that
were given twice, rows of no step, requests that have a sample of their device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.counting.counts import BY_SLICE, SEEN, Grid, Key, Tallies, Tally
from tailrate.analysis.records import REQUESTS, is_success
from tailrate.analysis.run.arrays import Chunk, scan
from tailrate.analysis.run.bins import BINS, BY_BATCH, FIGURES, MOST_ROWS, NEVER, PARTS
from tailrate.analysis.run.device_tracks import THROTTLED
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.stats.array_types import Floats, Ints
from tailrate.analysis.stats.sketch import SLICES

if TYPE_CHECKING:
    from tailrate.analysis.run.device_tracks import DeviceTrack
    from tailrate.analysis.run.recorded_run import RecordedRun

COLUMNS = (
    "seq", "step", "endpoint", "intended_ns", "sent_ns", "done_ns", "status", "error", "device", "rows", *FIGURES,
)  # fmt: skip
"""What the pass reads."""


def tally(run: RecordedRun, closed: Callable[[Key, Tally], None]) -> Tallies:
    """One pass over all rows; `closed` is called for each tally that will not grow any more."""
    stored = run.tables[REQUESTS]
    whole, numbers, plan = Tallies(), _Numbers(len(stored)), _Plan(run)
    spans = [stored.span(part, "step") for part in stored.parts]
    last = {
        step: max((n for n, span in enumerate(spans) if span[0] <= step <= span[1]), default=0) for step in plan.planned
    }
    open_: list[Key] = []
    for number, part in enumerate(scan(stored, COLUMNS, plan.gather)):
        for name in ("rows", "strangers", "with_device", "joined", "near_boundary"):
            setattr(whole, name, getattr(whole, name) + getattr(part.own, name))
        ends = [end for end in (whole.first_ns, part.own.first_ns) if end is not None]
        whole.first_ns = min(ends, default=None)
        whole.carried += part.own.carried
        whole.last_ns = max((end for end in (whole.last_ns, part.own.last_ns) if end is not None), default=None)
        numbers.add(part.step, part.seq)
        for key, found in part.own.groups.items():
            if key in whole.groups:
                whole.groups[key].add(found)
            else:
                whole.groups[key] = found
                open_.append(key)
        for key in [key for key in open_ if last[key[0]] <= number]:
            closed(key, whole.groups[key])
            open_.remove(key)
    whole.doubled = numbers.doubled()
    return whole


def pieces(run: RecordedRun, keys: Sequence[Key]) -> Iterator[tuple[Key, Tally]]:
    """These tallies again, part by part and with every latency, service time and lateness."""
    for part in scan(
        run.tables[REQUESTS], [name for name in COLUMNS if name not in (*FIGURES, "rows")], _Plan(run).gather
    ):
        for key in keys:
            if key in part.own.groups:
                yield key, part.own.groups[key]


@dataclass(frozen=True, slots=True)
class _Part:
    own: Tallies
    step: Any
    seq: Ints


class _Numbers:
    """Whether a number was given to two arrivals of one step."""

    def __init__(self, rows: int) -> None:
        self.most = 4 * rows + 1024
        self.count = 0
        self.given: dict[int, Any] = {}
        self.odd: dict[int, list[Ints]] = {}

    def add(self, step: Any, numbers: Ints) -> None:
        if not len(step):
            return
        if step.min() == step.max():
            self._add(int(step[0]), numbers)
            return
        for index in np.unique(step).tolist():
            self._add(index, numbers[step == index])

    def _add(self, step: int, numbers: Ints) -> None:
        if len(numbers) and numbers.min() == NEVER:
            numbers = numbers[numbers != NEVER]
        if not len(numbers):
            return
        self.count += len(numbers)
        high = int(numbers.max())
        if high >= self.most or numbers.min() < 0:
            self.odd.setdefault(step, []).append(numbers)
            return
        given = self.given.setdefault(step, np.zeros(0, dtype=np.bool_))
        if high >= len(given):
            given = self.given[step] = np.concatenate([given, np.zeros(high + 1 + len(numbers), dtype=np.bool_)])
        given[numbers] = True

    def doubled(self) -> int:
        different = sum(int(given.sum()) for given in self.given.values())
        different += sum(len(np.unique(np.concatenate(numbers))) for numbers in self.odd.values())
        return self.count - different


class _Plan:
    """What the rows of a part are sorted into."""

    def __init__(self, run: RecordedRun) -> None:
        steps = run.manifest.scenario["steps"]
        self.planned = {int(step["index"]): str(step["endpoint"]) for step in steps}
        self.grids = {int(step["index"]): Grid.of(step, run.ended_ns) for step in steps}
        self.windows = {name: self._windows(name) for name in set(self.planned.values())}
        self.line = Timeline.of(run)
        self.spans = {int(step["index"]): self.line.span(step) for step in steps}
        tracks = [track for track in run.tracks.values() if track.period_ns is not None]
        self.track = {track.device: number for number, track in enumerate(tracks)}
        self.times = _fixed(np.concatenate([np.zeros(0, np.int64), *(track.time_ns for track in tracks)]), np.int64)
        self.starts = _fixed(np.cumsum([0, *(len(track.time_ns) for track in tracks)]), np.int64)
        self.reach = _fixed([(track.period_ns, track.error_ns or 0) for track in tracks], np.int64).reshape(-1, 2)
        states = [np.zeros((0, 2 * len(SEEN))), *map(_state, tracks)]
        self.state = _fixed(np.concatenate(states), np.float64)

    def _windows(self, endpoint: str) -> tuple[Sequence[int], Ints, Ints]:
        """Numbers, starts and ends of an endpoint's steps, in order."""
        mine = sorted((self.grids[step].start_ns, step) for step, name in self.planned.items() if name == endpoint)
        ends = np.array([self.grids[step].end_ns for _, step in mine])
        return [step for _, step in mine], np.array([start for start, _ in mine]), ends

    def gather(self, chunk: Chunk) -> _Part:
        from tailrate.analysis.counting import loop  # takes a third of a second: not for who only reads rows

        n = len(chunk)
        own = Tallies(rows=n)
        step, seq = chunk.whole("step"), chunk.whole("seq")
        part = _Part(own, step, seq)
        if not n:
            return part
        intended, sent, done = (chunk.whole(f"{name}_ns") for name in ("intended", "sent", "done"))
        (endpoint, names), (status, words), (error, errors), (device, devices) = (
            chunk.text(name) for name in ("endpoint", "status", "error", "device")
        )
        own.first_ns = int(intended.min())
        own.last_ns = max(int(values.max()) for values in (intended, sent, done))
        own.with_device = int(np.count_nonzero(device >= 0))
        if int(step.max()) - int(step.min()) <= 4 * len(self.planned) + 1024:
            lowest, present = int(step.min()), range(int(step.min()), int(step.max()) + 1)
            places = step
        else:  # numbers of steps from elsewhere may be anything
            different, places = np.unique(step, return_inverse=True)
            lowest, present = 0, different.tolist()
            places = places.astype(np.int32)
        table, keys = self._table(present, names)
        grids = [self.grids[key[0]] for key in keys]
        groups, slices = len(keys), max((grid.before + SLICES + 1 for grid in grids), default=1)
        statuses = np.zeros((groups, 2, len(words) + 1), dtype=np.int64)
        counts, missing = np.zeros((groups, 5), dtype=np.int64), np.zeros((groups, len(PARTS)), dtype=np.int64)
        by_slice, by_latency = np.zeros((groups, slices, BY_SLICE)), np.zeros((groups, BINS, 1 + len(PARTS)))
        spans = [self.spans[key[0]] for key in keys]
        rows_of = np.cumsum([0, *(count for _, count in spans)]).tolist()
        by_batch, by_time = np.zeros((groups, MOST_ROWS + 1, BY_BATCH)), np.zeros((rows_of[-1], BINS + 1), np.int32)
        answered_by_time = np.zeros((groups, self.line.slices), np.int32)
        seen, used = np.zeros((groups, 2 * len(SEEN))), np.zeros((groups, len(devices) + 1), dtype=np.bool_)
        joins, kept = np.zeros(2, dtype=np.int64), np.zeros((groups, 5), dtype=np.int64)
        *singles, done_after = (np.empty(n, dtype=np.int64) for _ in range(5))
        track_of = _fixed([*(self.track.get(name, -1) for name in devices), -1], np.int64)
        looking = [
            start + max(0, int(np.searchsorted(self.times[start:end], intended[0])) - 2)
            for start, end in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)
        ]
        figures = tuple(_number(chunk, name) for name in FIGURES)
        good = _fixed([*map(is_success, words), False], np.bool_)
        clean = _fixed([*(not text for text in errors), True], np.bool_)
        windows = _fixed(
            [(*_numbers_of(grid), row, *span) for grid, row, span in zip(grids, rows_of, spans, strict=False)], np.int64
        ).reshape(-1, 8)
        compiled: Any = loop.gather
        compiled(
            *(_fixed(codes, np.int32) for codes in (places, endpoint)),
            *(_fixed(at, np.int64) for at in (intended, sent, done)),
            *(_fixed(codes, np.int32) for codes in (status, error, device)),
            figures, _number(chunk, "rows"),
            good, clean, table, lowest, windows, SLICES,
            self.line.zero_ns, self.line.slice_ns,
            track_of, self.starts, _fixed(looking, np.int64), self.times, self.reach, self.state,
            statuses, counts, missing, by_slice, by_latency, by_batch, by_time, answered_by_time, seen, used,
            joins, kept, *singles, done_after,
        )  # fmt: skip
        own.joined, own.near_boundary = joins.tolist()
        for part_number, values in enumerate(figures, start=len(PARTS) - len(FIGURES)):
            if not len(values):  # a column without any value
                missing[:, part_number] = counts[:, 3]
        rows = statuses[:, 0].sum(axis=1)
        begins = (np.cumsum(rows) - rows).tolist()
        for g, (key, grid) in enumerate(zip(keys, grids, strict=True)):
            if rows[g]:
                whole, inside = (Counter(dict(_words(each, words))) for each in statuses[g])
                *ends, last = kept[g].tolist()
                each = zip(singles, ends, strict=True)
                held: Any = [[found[begins[g] : end]] if end > begins[g] else [] for found, end in each]
                own.groups[key] = Tally(
                    grid, whole, inside, {name for name, was in zip(devices, used[g, 1:], strict=True) if was},
                    counts[g], missing[g], by_slice[g, : grid.before + SLICES + 1], by_latency[g],
                    by_batch[g], by_time[rows_of[g] : rows_of[g + 1]], spans[g][0], answered_by_time[g], seen[g],
                    *held,
                )  # fmt: skip
                own.carried += self._carried(key[1], done_after[begins[g] : last])
        own.strangers = n - int(rows.sum())
        return part

    def _carried(self, endpoint: str, done_ns: Ints) -> Counter[Key]:
        """In whose windows answers came that were due in an earlier step."""
        steps, starts, ends = self.windows.get(endpoint, ((), (), ()))
        if not len(done_ns) or not len(steps):
            return Counter()
        at = np.searchsorted(starts, done_ns, side="right") - 1
        counts = np.bincount(at[(at >= 0) & (done_ns < ends[at])], minlength=len(steps)).tolist()
        return Counter({(step, endpoint): count for step, count in zip(steps, counts, strict=True) if count})

    def _table(self, steps: Sequence[int], names: Sequence[str]) -> tuple[Any, list[Key]]:
        """The number of each step's and endpoint's group (a row without endpoint is its step's), and the groups."""
        keys: dict[Key, int] = {}
        table = np.full((len(steps), len(names) + 1), -1, dtype=np.int32)
        for row, index in enumerate(steps):
            if index in self.planned:
                for column, name in enumerate((self.planned[index], *names)):
                    table[row, column] = keys.setdefault((index, name), len(keys))
        return _fixed(table, np.int32), list(keys)


def _numbers_of(grid: Grid) -> tuple[int, ...]:
    return grid.start_ns, grid.end_ns, grid.first_ns, grid.slice_ns, grid.before


def _words(counted: Ints, words: Sequence[str]) -> Iterator[tuple[str, int]]:
    for word, count in zip(["", *words], counted.tolist(), strict=True):
        if count:
            yield word, count


def _fixed(values: Any, kind: Any) -> Any:
    """As an array that the compiled loop takes: of this kind, in one piece, not to be written."""
    found = np.ascontiguousarray(values, dtype=kind).view()
    found.flags.writeable = False
    return found


def _number(chunk: Chunk, name: str) -> Any:
    found = chunk.number(name)
    return _fixed(() if found is None else found, np.float64)


def _state(track: DeviceTrack) -> Floats:
    """By sample: each of `SEEN`, 0 where it is not known, and whether it is."""
    bits = track.state["throttle_bits"]
    held = np.where(np.isnan(bits), np.nan, 100.0 * ((np.nan_to_num(bits).astype(np.int64) & THROTTLED) != 0))
    values = np.array([*(track.state[name] for name in SEEN[:-1]), held])
    return np.concatenate([np.nan_to_num(values), ~np.isnan(values)]).T
