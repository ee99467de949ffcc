"""What the earlier runs of a lineage lead to expect of the newest one, and whether it is worse, better or neither.

The expected range is where one more run of the same endpoint falls: Student's t of the last `MOST` earlier runs on the
figure's scale, as wide as they differ from run to run. It holds all figures of a run together: where nothing changed,
any of them is called worse in 5 of 100 runs at most, and any better in as many. What the run itself leaves open is a
floor. After a change of level only the runs since then count, once there are `LEAST` of them, until then only those
before. With fewer in all nobody knows what runs differ by: it is said that it cannot be judged, beside the ratio to the
run before with its interval.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis import words
from analysis.entry import Entry
from analysis.history import Key, key_of
from analysis.lineage import KINDS, Kind, Lineage, Reading, Track
from analysis.shift import shifts
from analysis.sketch import LEVEL

Floats = npt.NDArray[np.float64]

LEAST, MOST = 5, 30
"""Earlier runs that the expected range is learned from."""
ENOUGH = 10
"""Runs from which on one that is far off is set aside: of fewer nobody knows what far is."""
FAR = 5.0
"""Median absolute deviations, as standard deviations, at which that is."""
FINEST = 0.002
"""No figure is known better than this, on its scale, however alike a few runs are."""

WORSE, BETTER, SAME, UNKNOWN = "worse", "better", "no change", "cannot be judged"


@dataclass(frozen=True, slots=True)
class Shift:
    """A change of level."""

    place: int
    """Of the first run with the new one."""
    ratio: float
    """Median since ÷ median before, for shares the difference."""
    call: str


@dataclass(frozen=True, slots=True)
class Judged:
    """One figure of the newest run of a lineage."""

    track: Track
    call: str
    against: str
    """What it is held against."""
    low: float | None = None
    high: float | None = None
    """The expected range."""
    usual: float | None = None
    """Its middle, or the one value that it is compared with."""
    ratio: float | None = None
    """Newest ÷ usual; of shares there is none."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    """Of the two runs alone, where it cannot be judged."""
    why: str = ""
    shifts: tuple[Shift, ...] = ()

    @property
    def newest(self) -> Reading | None:
        return self.track.readings[-1]

    @property
    def written(self) -> str:
        """The newest value."""
        return written(self.track.kind, self.newest)

    @property
    def expected(self) -> str:
        if self.low is None or self.high is None or not self.track.kind.share:
            return words.interval(self.low, self.high)
        return f"{words.interval(100 * self.low, 100 * self.high)} %"

    @property
    def change(self) -> str:
        """`×1.10`, for a share `+0.5 points`."""
        if self.track.kind.share and self.usual is not None and self.newest is not None:
            points = 100 * (self.newest.value - self.usual)
            return f"{'+' if points >= 0 else ''}{words.significant(round(points, 3))} points"
        return words.ABSENT if self.ratio is None else f"×{words.significant(self.ratio)}"


def written(kind: Kind, reading: Reading | None) -> str:
    if reading is None:
        return words.ABSENT
    if kind.better > 0 and reading.low != reading.high:  # a capacity lies between
        if reading.high is None:
            return f"≥ {kind.written(reading.value)}"
        return f"{words.significant(reading.low)}–{kind.written(reading.high)}"
    return kind.written(reading.value)


def judge(
    found: Sequence[Lineage], pinned: tuple[str, Entry] | None = None, figures: Collection[str] = tuple(KINDS)
) -> list[tuple[Lineage, list[Judged]]]:
    """Figures of the newest run of every lineage; `pinned`, a name and its run, stands for the earlier runs."""
    tracks = [(one, [track for track in one.tracks() if track.key in figures]) for one in found]
    of_run: Counter[Key] = Counter()
    for one, mine in tracks:
        of_run[key_of(one.newest)] += len(mine)
    return [(one, [_judged(one, track, of_run[key_of(one.newest)], pinned) for track in mine]) for one, mine in tracks]


def usual(earlier: Floats) -> tuple[float, float, int]:
    """Mean, standard deviation and number of what runs were on the figure's scale, those that are far off set aside."""
    if len(earlier) >= ENOUGH:
        apart = np.abs(earlier - np.median(earlier))
        earlier = earlier[apart <= max(FAR * 1.4826 * float(np.median(apart)), FINEST)]
    return float(np.mean(earlier)), float(np.std(earlier, ddof=1)), len(earlier)


def _judged(one: Lineage, track: Track, figures: int, pinned: tuple[str, Entry] | None) -> Judged:
    kind, newest = track.kind, track.readings[-1]
    known = [(k, r) for k, r in enumerate(track.readings) if r is not None and kind.has(r.value)]
    values = np.asarray([kind.scaled(r.value) for _, r in known], np.float64)
    starts = shifts(values)
    told = tuple(_shift(kind, values, starts, n, known[at][0]) for n, at in enumerate(starts))
    judged = Judged(track, UNKNOWN, "", shifts=told)
    if newest is None:
        return replace(judged, why=f"{one.newest.name} has none that can be trusted")
    earlier = values[:-1] if kind.has(newest.value) else values
    begun, ended = _level(starts, len(earlier))
    recent = earlier[begun:ended][-MOST:]
    since = f"runs since {one.entries[known[begun][0]].name}" if begun else "earlier runs"
    until = f" before {one.entries[known[ended][0]].name}" if ended < len(earlier) else ""
    judged = replace(judged, against=f"{len(recent)} {since}{until}")
    beside: Reading | None = None
    if pinned is not None:
        name, base = pinned
        judged, beside = replace(judged, against=f"{name} ({base.name})"), track.of(base, one.endpoint)
        if beside is None or not kind.has(beside.value):
            return replace(judged, why=f"{name} has no such figure")
        if key_of(base) == key_of(one.newest):
            return replace(judged, why=f"it is {name} itself")
    if len(recent) >= LEAST:
        return _held(judged, recent, figures, beside)
    if beside is None and not len(recent):
        return replace(judged, why=f"there is no earlier run of the {LEAST} that it takes")
    if beside is None:
        place, beside = known[len(earlier) - 1]
        judged = replace(judged, against=f"the run before, {one.entries[place].name}")
    there = f"there {'is' if len(recent) == 1 else 'are'} {len(recent)} of the {LEAST} earlier runs that it takes"
    return replace(judged, usual=beside.value, why=there, **_alone(kind, newest, beside))


def _level(starts: Sequence[int], runs: int) -> tuple[int, int]:
    """The latest level that enough of so many runs know, else all of them."""
    spans = [(begun, ended) for begun, ended in pairwise([0, *starts, runs]) if ended - begun >= LEAST]
    return spans[-1] if spans else (0, runs)


def _held(judged: Judged, recent: Floats, figures: int, pinned: Reading | None) -> Judged:
    """The newest run against earlier ones, or against one of them."""
    from scipy import special

    kind, newest = judged.track.kind, judged.newest
    assert newest is not None
    if not kind.has(newest.value):
        before = sum(r is not None and not kind.has(r.value) for r in judged.track.readings[:-1])
        if before:
            return replace(judged, why=f"{kind.lost}, as in {before} of the earlier runs")
        return replace(judged, call=WORSE, why=f"{kind.lost}, and was not in any earlier run")
    centre, spread, n = usual(recent)
    if pinned is not None:
        centre = kind.scaled(pinned.value)
    # one tail to either side, shared by the figures: what is called is outside the range, and nothing else
    tail = float(special.stdtrit(n - 1, 1 - LEVEL / figures)) * math.sqrt(1 + (1 / n if pinned is None else 1))
    reach = max(tail * max(spread, newest.error, FINEST), kind.least)
    off, middle = kind.scaled(newest.value) - centre, kind.value(centre)
    return replace(
        judged,
        call=SAME if abs(off) <= reach else BETTER if off * kind.better > 0 else WORSE,
        usual=middle,
        low=kind.value(centre - reach),
        high=kind.value(centre + reach),
        ratio=None if kind.share else newest.value / middle,
    )


def _alone(kind: Kind, newest: Reading, before: Reading) -> dict[str, Any]:
    """The ratio of two runs, with the interval of the two where both know their own."""
    if kind.share or not kind.has(newest.value):
        return {}
    ratio = newest.value / before.value
    if not newest.error or not before.error:
        return {"ratio": ratio}
    reach = 1.96 * math.hypot(newest.error, before.error)
    return {"ratio": ratio, "ratio_low": ratio * kind.value(-reach), "ratio_high": ratio * kind.value(reach)}


def _shift(kind: Kind, values: Floats, starts: Sequence[int], n: int, place: int) -> Shift:
    """The n-th, from the levels on both of its sides."""
    edges = [0, *starts, len(values)]
    before, since = (float(np.median(values[edges[k] : edges[k + 1]])) for k in (n, n + 1))
    by = kind.value(since) - kind.value(before) if kind.share else kind.value(since - before)
    call = SAME if abs(since - before) < kind.least else BETTER if (since - before) * kind.better > 0 else WORSE
    return Shift(place, by, call)
