"""What happened to the requests of every step, gathered in one pass over the rows without holding them.

A `Tally` belongs to one endpoint in one step: counts by what became of the arrivals, sums by slice of time and by
latency, the state of the devices that the requests ran on, and the latencies themselves as one integer each, as long
as there are not too many. Tallies of parts add up to that of the whole, whatever the order of the rows.
Owns what is gathered; the loop is `kernel`, and what the figures mean is said in `steps`, `ledger` and `breakdown`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.devices import THROTTLED
from analysis.layout import BINS, FIGURES, NEVER, PARTS
from analysis.records import REQUESTS
from analysis.scan import Chunk, Floats, Ints, scan
from analysis.sketch import SLICES
from analysis.store import is_success

if TYPE_CHECKING:
    from analysis.devices import Track
    from analysis.store import Run

COLUMNS = (
    "seq", "step", "endpoint", "intended_ns", "sent_ns", "done_ns", "status", "error", "device", "rows", *FIGURES,
)  # fmt: skip
"""What the pass reads."""
SEEN = ("util_pct", "power_w", "sm_mhz", "throttled_pct")
"""Of the device at the time of each request; the last is 100 while its clocks were held down, else 0."""
MOST_KEPT = 20_000_000
"""Latencies of one step that are kept in memory; those of more are found by further passes."""

_BY_SLICE = 8


@dataclass(frozen=True, slots=True)
class Grid:
    """A step's window [start, end) in equal slices of time, and as many before it as the settle time takes."""

    begin_ns: int
    start_ns: int
    end_ns: int

    @classmethod
    def of(cls, step: Mapping[str, Any], stop_ns: int | None) -> Grid:
        """The window of a step of the manifest, as long as the run lasted."""
        begin, end = int(step["start_ns"]), int(step["end_ns"])
        start = begin + int(float(step.get("settle_s") or 0) * 1e9)
        return cls(begin, start, end if stop_ns is None else min(end, stop_ns))

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def slice_ns(self) -> int:
        return max(1, -(-(self.end_ns - self.start_ns) // SLICES))

    @property
    def before(self) -> int:
        """Slices of settle time."""
        return min(20 * SLICES, -(-max(0, self.start_ns - self.begin_ns) // self.slice_ns))

    @property
    def first_ns(self) -> int:
        return self.start_ns - self.before * self.slice_ns


@dataclass(slots=True, eq=False)
class Tally:
    """One endpoint in one step; the window is without settle time."""

    grid: Grid
    statuses: Counter[str]
    """Of the whole step."""
    inside: Counter[str]
    """Of the window."""
    devices: set[str]
    counts: Ints
    missing: Ints
    """Successes of the window without each of `PARTS`."""
    over: Ints
    """Arrivals of the window over the latency of each objective."""
    by_slice: Floats
    by_latency: Floats
    seen: Floats
    """Sums of `SEEN` over the requests of the window, then how many have each."""
    packed: list[Ints]
    """Latency in ns and slice, one integer per arrival of the window."""
    service: list[Ints]
    """Of the window's successes that have a time of sending, in ns."""
    late: list[Ints]
    late_outside: list[Ints]
    """In settle time, or after the run's end."""
    kept: bool = True
    """These four hold every row."""

    @classmethod
    def empty(cls, step: Mapping[str, Any], stop_ns: int | None, limits: int) -> Tally:
        """Of a step that had no arrivals."""
        grid = Grid.of(step, stop_ns)
        counts, missing, over = (np.zeros(size, dtype=np.int64) for size in (4, len(PARTS), limits))
        by_slice, by_latency = np.zeros((grid.before + SLICES + 1, _BY_SLICE)), np.zeros((BINS, 1 + len(PARTS)))
        seen = np.zeros(2 * len(SEEN))
        return cls(grid, Counter(), Counter(), set(), counts, missing, over, by_slice, by_latency, seen, [], [], [], [])

    def add(self, other: Tally) -> None:
        self.statuses += other.statuses
        self.inside += other.inside
        self.devices |= other.devices
        for name in ("counts", "missing", "over", "by_slice", "by_latency", "seen"):
            mine = getattr(self, name)
            mine += getattr(other, name)
        self.kept = self.kept and self.n <= MOST_KEPT
        for name in ("packed", "service", "late", "late_outside"):
            mine = getattr(self, name)
            mine += getattr(other, name)
        if not self.kept:
            self.let_go()

    def let_go(self) -> None:
        """Of every single value."""
        for values in (self.packed, self.service, self.late, self.late_outside):
            values.clear()

    @property
    def succeeded(self) -> int:
        """In the whole step."""
        return int(self.counts[0])

    @property
    def sent(self) -> int:
        """In the whole step."""
        return int(self.counts[1])

    @property
    def n(self) -> int:
        """Arrivals of the window."""
        return int(self.counts[2])

    @property
    def ok(self) -> int:
        """Successes of the window."""
        return int(self.counts[3])

    def known(self, part: str) -> int:
        """Successes of the window that have this part."""
        return self.ok - int(self.missing[PARTS.index(part)])

    def mean(self, part: str) -> float | None:
        """Over the window's successes."""
        known = self.known(part)
        return float(self.by_latency[:, 1 + PARTS.index(part)].sum()) / known if known else None

    def saw(self, figure: str) -> float | None:
        """Of each request's own device at its time: the mean over the requests of the window."""
        total, count = self.seen[SEEN.index(figure)], self.seen[len(SEEN) + SEEN.index(figure)]
        return float(total / count) if count else None

    @property
    def arrived(self) -> Floats:
        """Arrivals by slice, settle time first."""
        return self.by_slice[:-1, 0]

    @property
    def answered(self) -> Floats:
        return self.by_slice[:-1, 1]

    @property
    def latency_ms(self) -> Floats:
        """Mean latency of successes by slice, NaN where there are none."""
        means: Floats = np.full(len(self.answered), np.nan)
        return np.divide(self.by_slice[:-1, 2], self.answered, out=means, where=self.answered > 0)

    def in_flight(self) -> Floats:
        """Mean number of requests under way in each slice, settle time first."""
        edges = np.arange(len(self.by_slice)) * float(self.grid.slice_ns)
        before = np.concatenate([np.zeros((1, 4)), np.cumsum(self.by_slice[:-1, 3:7], axis=0)])
        sent_n, sent_at, done_n, done_at = before.T
        means: Floats = np.diff((sent_n - done_n) * edges - (sent_at - done_at)) / self.grid.slice_ns
        return means

    def computed_ms(self, start_ns: int, end_ns: int) -> float:
        """Time for which the device computed for these, in the slices whose middle is in [start, end)."""
        middle = self.grid.first_ns + (np.arange(len(self.by_slice) - 1) + 0.5) * self.grid.slice_ns
        return float(self.by_slice[:-1, 7][(middle >= start_ns) & (middle < end_ns)].sum())


Key = tuple[int, str]


@dataclass(slots=True, eq=False)
class Tallies:
    """All tallies of a run, and what concerns it as a whole."""

    groups: dict[Key, Tally] = field(default_factory=dict)
    """By step and endpoint."""
    rows: int = 0
    strangers: int = 0
    """Arrivals of no step of the manifest."""
    doubled: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    """First and last known instant of any arrival."""
    with_device: int = 0
    """Requests that name the device that ran them."""
    joined: int = 0
    """Of these, requests that have a sample within one period."""
    near_boundary: int = 0
    """Of these, requests so near to the next sample's realm that the clock error could have mistaken it."""

    def of(self, step: int) -> dict[str, Tally]:
        """By endpoint."""
        return {endpoint: found for (index, endpoint), found in self.groups.items() if index == step}

    @property
    def statuses(self) -> Counter[str]:
        return sum((found.statuses for found in self.groups.values()), Counter())

    @property
    def succeeded(self) -> int:
        return sum(found.succeeded for found in self.groups.values())


def tally(run: Run, closed: Callable[[Key, Tally], None]) -> Tallies:
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


def pieces(run: Run, keys: Sequence[Key]) -> Iterator[tuple[Key, Tally]]:
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

    def __init__(self, run: Run) -> None:
        steps = run.manifest.scenario["steps"]
        self.planned = {int(step["index"]): str(step["endpoint"]) for step in steps}
        self.grids = {int(step["index"]): Grid.of(step, run.ended_ns) for step in steps}
        limits = [slo.latency_ms for slo in run.manifest.slos if slo.percentile and slo.latency_ms]
        self.limits = _fixed([math.floor(limit * 1e6) for limit in limits], np.int64)
        tracks = [track for track in run.tracks.values() if track.period_ns is not None]
        self.track = {track.device: number for number, track in enumerate(tracks)}
        self.times = _fixed(np.concatenate([np.zeros(0, np.int64), *(track.time_ns for track in tracks)]), np.int64)
        self.starts = _fixed(np.cumsum([0, *(len(track.time_ns) for track in tracks)]), np.int64)
        self.reach = _fixed([(track.period_ns, track.error_ns or 0) for track in tracks], np.int64).reshape(-1, 2)
        states = [np.zeros((0, 2 * len(SEEN))), *map(_state, tracks)]
        self.state = _fixed(np.concatenate(states), np.float64)

    def gather(self, chunk: Chunk) -> _Part:
        from analysis import kernel  # takes a third of a second: not for who only reads rows

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
        counts, missing = np.zeros((groups, 4), dtype=np.int64), np.zeros((groups, len(PARTS)), dtype=np.int64)
        over = np.zeros((groups, len(self.limits)), dtype=np.int64)
        by_slice, by_latency = np.zeros((groups, slices, _BY_SLICE)), np.zeros((groups, BINS, 1 + len(PARTS)))
        seen, used = np.zeros((groups, 2 * len(SEEN))), np.zeros((groups, len(devices) + 1), dtype=np.bool_)
        joins, kept = np.zeros(2, dtype=np.int64), np.zeros((groups, 4), dtype=np.int64)
        packed, service, late, outside = (np.empty(n, dtype=np.int64) for _ in range(4))
        track_of = _fixed([*(self.track.get(name, -1) for name in devices), -1], np.int64)
        looking = [
            start + max(0, int(np.searchsorted(self.times[start:end], intended[0])) - 2)
            for start, end in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)
        ]
        figures = tuple(_number(chunk, name) for name in FIGURES)
        good = _fixed([*map(is_success, words), False], np.bool_)
        clean = _fixed([*(not text for text in errors), True], np.bool_)
        windows = _fixed([_numbers_of(grid) for grid in grids], np.int64).reshape(-1, 5)
        compiled: Any = kernel.gather
        compiled(
            *(_fixed(codes, np.int32) for codes in (places, endpoint)),
            *(_fixed(at, np.int64) for at in (intended, sent, done)),
            *(_fixed(codes, np.int32) for codes in (status, error, device)),
            figures, _number(chunk, "rows"),
            good, clean, table, lowest, windows, SLICES, self.limits,
            track_of, self.starts, _fixed(looking, np.int64), self.times, self.reach, self.state,
            statuses, counts, missing, over, by_slice, by_latency, seen, used, joins,
            kept, packed, service, late, outside,
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
                each = zip((packed, service, late, outside), kept[g].tolist(), strict=True)
                held: Any = [[values[begins[g] : end]] if end > begins[g] else [] for values, end in each]
                own.groups[key] = Tally(
                    grid, whole, inside, {name for name, was in zip(devices, used[g, 1:], strict=True) if was},
                    counts[g], missing[g], over[g], by_slice[g, : grid.before + SLICES + 1], by_latency[g], seen[g],
                    *held,
                )  # fmt: skip
        own.strangers = n - int(rows.sum())
        return part

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


def _state(track: Track) -> Floats:
    """By sample: each of `SEEN`, 0 where it is not known, and whether it is."""
    bits = track.state["throttle_bits"]
    held = np.where(np.isnan(bits), np.nan, 100.0 * ((np.nan_to_num(bits).astype(np.int64) & THROTTLED) != 0))
    values = np.array([*(track.state[name] for name in SEEN[:-1]), held])
    return np.concatenate([np.nan_to_num(values), ~np.isnan(values)]).T
