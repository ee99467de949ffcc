"""What happened to the requests of every step, in sums: what `passes` gathers without holding the rows.

A `Tally` belongs to one endpoint in one step: counts by what became of the arrivals, sums by slice of time and by
latency, the state of the devices that the requests ran on, and the latencies themselves as one integer each, as long
as there are not too many. Tallies of parts add up to that of the whole, whatever the order of the rows.
Owns what is known of a step; what the figures mean is said in `steps`, `ledger` and `breakdown`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tailrate.analysis.judging.trust import early_ms
from tailrate.analysis.records.manifest import settled_ns
from tailrate.analysis.run.bins import BINS, BY_BATCH, MOST_ROWS, NEVER, PARTS
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.stats.array_types import Bools, Floats, Ints
from tailrate.analysis.stats.sketch import SLICES

SEEN = ("util_pct", "power_w", "sm_mhz", "throttled_pct")
"""Of the device at the time of each request; the last is 100 while its clocks were held down, else 0."""
MOST_KEPT = 20_000_000
"""Latencies of one step that are kept in memory; those of more are found by further passes."""

BY_SLICE = 8
"""Sums of each slice: arrivals, successes, their latency, sent (count, when), done (count, when), time computed."""


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
        return cls(begin, settled_ns(step), end if stop_ns is None else min(end, stop_ns))

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
    by_slice: Floats
    by_latency: Floats
    by_batch: Floats
    """By rows of the batch: sums over the successes of the window."""
    by_time: Ints
    """Arrivals of the whole step by slice of the run's time line, from `first` on, and by latency; failures last."""
    first: int
    answered_by_time: Ints
    """Successes by the slice of the whole time line in which their answer came."""
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
    def empty(cls, step: Mapping[str, Any], stop_ns: int | None, line: Timeline) -> Tally:
        """Of a step that had no arrivals."""
        grid = Grid.of(step, stop_ns)
        counts, missing = (np.zeros(size, dtype=np.int64) for size in (5, len(PARTS)))
        by_slice, by_latency = np.zeros((grid.before + SLICES + 1, BY_SLICE)), np.zeros((BINS, 1 + len(PARTS)))
        first, slices = line.span(step)
        return cls(
            grid, Counter(), Counter(), set(), counts, missing, by_slice, by_latency,
            np.zeros((MOST_ROWS + 1, BY_BATCH)), np.zeros((slices, BINS + 1), dtype=np.int32), first,
            np.zeros(line.slices, dtype=np.int32), np.zeros(2 * len(SEEN)), [], [], [], [],
        )  # fmt: skip

    def add(self, other: Tally) -> None:
        self.statuses += other.statuses
        self.inside += other.inside
        self.devices |= other.devices
        for name in (
            "counts", "missing", "by_slice", "by_latency", "by_batch", "by_time", "answered_by_time", "seen",
        ):  # fmt: skip
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

    @property
    def done(self) -> int:
        """Successes of the whole step that were answered in the window."""
        return int(self.counts[4])

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

    def early_ms(self) -> float:
        """Mean latency of the first successes of the step, settle time included."""
        return early_ms(self.answered, self.by_slice[:-1, 2])

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


def too_early(at_ns: Ints, *after_ns: Ints) -> Bools:
    """Which instants lie before one that they must follow, as far as these are known."""
    # `NEVER` is less than any
    found: Bools = (at_ns != NEVER) & (at_ns < np.maximum.reduce(after_ns))
    return found


Key = tuple[int, str]


@dataclass(slots=True, eq=False)
class Tallies:
    """All tallies of a run, and what concerns it as a whole."""

    groups: dict[Key, Tally] = field(default_factory=dict)
    """By step and endpoint."""
    rows: int = 0
    strangers: int = 0
    """Arrivals of no step of the manifest, or to an endpoint that none has."""
    impossible: int = 0
    """Arrivals that were answered before they were due, or sent."""
    doubled: int = 0
    unnumbered: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    """First and last known instant of any arrival."""
    with_device: int = 0
    """Requests that name the device that ran them."""
    joined: int = 0
    """Of these, requests that have a sample within one period."""
    carried: Counter[Key] = field(default_factory=Counter)
    """Successes of other steps that were answered in the window of one."""
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
