"""The rows of one part counted: `Plan` says what they are sorted into, `loop` adds them up, each group gets a tally.

Owns what the columns of a part mean to the compiled loop: every text is a number there, every step and endpoint the
number of a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.counting import loop
from tailrate.analysis.counting.counts import BY_SLICE, SEEN, Grid, Key, Tallies, Tally, too_early
from tailrate.analysis.run.arrays import Chunk, fixed
from tailrate.analysis.run.bins import BINS, BY_BATCH, FIGURES, MOST_ROWS, PARTS
from tailrate.analysis.run.columns import WHOLE
from tailrate.analysis.run.device_tracks import throttled_pct
from tailrate.analysis.run.join import OwnDevices
from tailrate.analysis.run.outcomes import clean, good
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.stats import compiled
from tailrate.analysis.stats.array_types import Floats, Ints
from tailrate.analysis.stats.sketch import SLICES

if TYPE_CHECKING:
    from tailrate.analysis.run.device_tracks import DeviceTrack
    from tailrate.analysis.run.recorded_run import RecordedRun

TEXTS = ("endpoint", "status", "error", "device")
COLUMNS = (
    "seq", "step", "endpoint", "intended_ns", "sent_ns", WHOLE, "status", "error", "device", "rows", *FIGURES,
)  # fmt: skip
"""What the pass reads."""


@dataclass(frozen=True, slots=True)
class CountedPart:
    own: Tallies
    step: Any
    seq: Ints


@dataclass(frozen=True, slots=True)
class Groups:
    """The steps and endpoints of a part, in order."""

    keys: list[Key]
    grids: list[Grid]
    line: list[tuple[int, int]]
    """Of each: its first slice of the run's time line, and how many."""

    @property
    def line_rows(self) -> list[int]:
        """Where the slices of each begin, if they lie one behind the other; at last the end of all."""
        found: list[int] = np.cumsum([0, *(count for _, count in self.line)]).tolist()
        return found


class Plan:
    """What the rows of a part are sorted into."""

    def __init__(self, run: RecordedRun) -> None:
        steps = run.manifest.scenario["steps"]
        self.planned = {int(step["index"]): str(step["endpoint"]) for step in steps}
        self.grids = {int(step["index"]): Grid.of(step, run.ended_ns) for step in steps}
        self.windows = {name: self._windows(name) for name in set(self.planned.values())}
        self.own_devices = OwnDevices.said_by(run.manifest)
        self.line = Timeline.of(run)
        self.spans = {int(step["index"]): self.line.span(step) for step in steps}
        tracks = [track for track in run.tracks.values() if track.period_ns is not None]
        self.track = {track.device: number for number, track in enumerate(tracks)}
        self.times = fixed(np.concatenate([np.zeros(0, np.int64), *(track.time_ns for track in tracks)]), np.int64)
        self.starts = fixed(np.cumsum([0, *(len(track.time_ns) for track in tracks)]), np.int64)
        self.reach = fixed([(track.period_ns, track.error_ns or 0) for track in tracks], np.int64).reshape(-1, 2)
        states = [np.zeros((0, 2 * len(SEEN))), *map(_state, tracks)]
        self.state = fixed(np.concatenate(states), np.float64)

    def _windows(self, endpoint: str) -> tuple[Sequence[int], Ints, Ints]:
        """Numbers, starts and ends of an endpoint's steps, in order."""
        mine = sorted((self.grids[step].start_ns, step) for step, name in self.planned.items() if name == endpoint)
        ends = np.array([self.grids[step].end_ns for _, step in mine])
        return [step for _, step in mine], np.array([start for start, _ in mine]), ends

    def count(self, chunk: Chunk) -> CountedPart:
        own = Tallies(rows=len(chunk))
        part = CountedPart(own, chunk.whole("step"), chunk.whole("seq"))
        if not len(chunk):
            return part
        texts = {name: chunk.text(name) for name in TEXTS}
        texts["device"] = self.own_devices.codes(texts)
        words = {name: found for name, (_, found) in texts.items()}
        places, lowest, present = self._places(part.step)
        table, keys = self._table(present, words["endpoint"])
        groups = Groups(keys, [self.grids[step] for step, _ in keys], [self.spans[step] for step, _ in keys])
        rows = loop.Rows(
            step=fixed(places, np.int32),
            intended_ns=fixed(chunk.whole("intended_ns"), np.int64),
            sent_ns=fixed(chunk.whole("sent_ns"), np.int64),
            done_ns=fixed(chunk.whole(WHOLE), np.int64),
            figures=tuple(_number(chunk, name) for name in FIGURES),
            own_rows=_number(chunk, "rows"),
            **{name: fixed(codes, np.int32) for name, (codes, _) in texts.items()},
        )
        own.first_ns = int(rows.intended_ns.min())
        own.last_ns = max(int(values.max()) for values in (rows.intended_ns, rows.sent_ns, rows.done_ns))
        own.impossible = int(np.count_nonzero(too_early(rows.done_ns, rows.intended_ns, rows.sent_ns)))
        own.with_device = int(np.count_nonzero(rows.device >= 0))
        meaning = loop.Meaning(
            fixed(good(words["status"]), np.bool_),
            fixed(clean(words["error"]), np.bool_),
            table, lowest, _numbers_of(groups), SLICES, self.line.zero_ns, self.line.slice_ns,
        )  # fmt: skip
        sums = loop.Sums(*self._zeros(groups, len(words["status"]), len(words["device"])))
        kept = loop.Kept(np.zeros((len(keys), 5), dtype=np.int64), *(np.empty(len(chunk), np.int64) for _ in range(5)))
        devices = loop.Devices(*self._devices(words["device"], int(rows.intended_ns[0])))
        compiled.run(loop.gather, len(chunk), rows, meaning, devices, sums, kept)
        own.joined, own.near_boundary = sums.joins.tolist()
        for number, values in enumerate(rows.figures, start=len(PARTS) - len(FIGURES)):
            if not len(values):  # a column without any value
                sums.missing[:, number] = sums.counts[:, 3]
        self._add_tallies(own, groups, words, sums, kept)
        return part

    def _places(self, step: Any) -> tuple[Any, int, Sequence[int]]:
        """Of each row a place in the list of steps, where the list begins, and the list."""
        lowest, highest = int(step.min()), int(step.max())
        if highest - lowest <= 4 * len(self.planned) + 1024:
            return step, lowest, range(lowest, highest + 1)
        # numbers of steps from elsewhere may be anything
        different, places = np.unique(step, return_inverse=True)
        return places, 0, different.tolist()

    def _table(self, steps: Sequence[int], names: Sequence[str]) -> tuple[Any, list[Key]]:
        """The number of each step's and endpoint's group (a row without endpoint is its step's), and the groups."""
        keys: dict[Key, int] = {}
        table = np.full((len(steps), len(names) + 1), -1, dtype=np.int32)
        for row, index in enumerate(steps):
            if index in self.planned:
                for column, name in enumerate((self.planned[index], *names)):
                    table[row, column] = keys.setdefault((index, name), len(keys))
        return fixed(table, np.int32), list(keys)

    def _devices(self, names: Sequence[str], first_ns: int) -> tuple[Any, ...]:
        """`loop.Devices`: every track is looked at from the first arrival on."""
        track_of = fixed([*(self.track.get(name, -1) for name in names), -1], np.int64)
        nearest = [
            start + max(0, int(np.searchsorted(self.times[start:end], first_ns)) - 2)
            for start, end in pairwise(self.starts.tolist())
        ]
        return track_of, self.starts, np.array(nearest, dtype=np.int64), self.times, self.reach, self.state

    def _zeros(self, groups: Groups, words: int, devices: int) -> tuple[Any, ...]:
        """`loop.Sums` of nothing."""
        n, slices = len(groups.keys), max((grid.before + SLICES + 1 for grid in groups.grids), default=1)
        return (
            np.zeros((n, 2, words + 1), dtype=np.int64),
            np.zeros((n, 5), dtype=np.int64),
            np.zeros((n, len(PARTS)), dtype=np.int64),
            np.zeros((n, slices, BY_SLICE)),
            np.zeros((n, BINS, 1 + len(PARTS))),
            np.zeros((n, MOST_ROWS + 1, BY_BATCH)),
            np.zeros((groups.line_rows[-1], BINS + 1), np.int32),
            np.zeros((n, self.line.slices), np.int32),
            np.zeros((n, 2 * len(SEEN))),
            np.zeros((n, devices + 1), dtype=np.bool_),
            np.zeros(2, dtype=np.int64),
        )

    def _add_tallies(
        self, own: Tallies, groups: Groups, words: Mapping[str, list[str]], sums: loop.Sums, kept: loop.Kept
    ) -> None:
        rows = sums.statuses[:, 0].sum(axis=1)
        begins, line_rows = (np.cumsum(rows) - rows).tolist(), groups.line_rows
        for g, (key, grid) in enumerate(zip(groups.keys, groups.grids, strict=True)):
            if not rows[g]:
                continue
            whole, inside = (Counter(dict(_words(counted, words["status"]))) for counted in sums.statuses[g])
            mine = zip(kept[1:], kept.ends[g].tolist(), strict=True)
            *singles, done_after = (values[begins[g] : end] for values, end in mine)
            packed, service, late, late_outside = ([values] if len(values) else [] for values in singles)
            own.groups[key] = Tally(
                grid,
                whole,
                inside,
                {name for name, was in zip(words["device"], sums.used[g, 1:], strict=True) if was}
                or set(self.own_devices.of.get(key[1], ())),
                sums.counts[g],
                sums.missing[g],
                sums.by_slice[g, : grid.before + SLICES + 1],
                sums.by_latency[g],
                sums.by_batch[g],
                sums.by_time[line_rows[g] : line_rows[g + 1]],
                groups.line[g][0],
                sums.answered_by_time[g],
                sums.seen[g],
                packed,
                service,
                late,
                late_outside,
            )
            own.carried += self._carried(key[1], done_after)
        own.strangers = own.rows - int(rows.sum())

    def _carried(self, endpoint: str, done_ns: Ints) -> Counter[Key]:
        """In whose windows answers came that were due in an earlier step."""
        steps, starts, ends = self.windows.get(endpoint, ((), (), ()))
        if not len(done_ns) or not len(steps):
            return Counter()
        at = np.searchsorted(starts, done_ns, side="right") - 1
        counts = np.bincount(at[(at >= 0) & (done_ns < ends[at])], minlength=len(steps)).tolist()
        return Counter({(step, endpoint): count for step, count in zip(steps, counts, strict=True) if count})


def _numbers_of(groups: Groups) -> Any:
    """`loop`'s GRID of each group."""
    found = [
        (grid.start_ns, grid.end_ns, grid.first_ns, grid.slice_ns, grid.before, row, *line)
        for grid, row, line in zip(groups.grids, groups.line_rows, groups.line, strict=False)
    ]
    return fixed(found, np.int64).reshape(-1, 8)


def _words(counted: Ints, words: Sequence[str]) -> Iterator[tuple[str, int]]:
    for word, count in zip(["", *words], counted.tolist(), strict=True):
        if count:
            yield word, count


def _number(chunk: Chunk, name: str) -> Any:
    found = chunk.number(name)
    return fixed(() if found is None else found, np.float64)


def _state(track: DeviceTrack) -> Floats:
    """By sample: each of `SEEN`, 0 where it is not known, and whether it is."""
    values = np.array([*(track.state[name] for name in SEEN[:-1]), throttled_pct(track.state["throttle_bits"])])
    return np.concatenate([np.nan_to_num(values), ~np.isnan(values)]).T
