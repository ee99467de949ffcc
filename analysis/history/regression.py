"""What the earlier runs of a lineage lead to expect of the newest one, and whether it is worse, better or neither.

The expected range is where one more run of the same endpoint falls: Student's t of the last `MOST` earlier runs on the
figure's scale, as wide as they differ from run to run; of fewer than `ENOUGH` from their median, with the one that is
farthest from it set aside, so that one run moves neither. It holds all figures of a run together: where nothing
changed, any of them is called worse in 5 of 100 runs at most, and any better in as many. What the run itself leaves
open is a floor. With fewer than `LEAST` in all nobody knows what runs differ by: it is said that it cannot be judged,
beside the ratio to the run before with its interval.

What was worse is not what is usual: runs that were called so, but for a lone one, teach nothing, until `LEAST` in a
row were, or `shift` sees another level from there on, or somebody accepts one (`history --accept`). After a change of
level only the runs since then count, once there are `LEAST` of them, until then only those before.

A capacity that was not found, because no rate that was tried missed the objective, is a bound: it can be better than
was expected, and never worse.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from tailrate.analysis.history.figure_series import KINDS, FigureKind, FigureReading, FigureTrack, Lineage
from tailrate.analysis.history.log import Key, key_of
from tailrate.analysis.history.run_summary import Entry
from tailrate.analysis.stats.array_types import Floats
from tailrate.analysis.stats.distributions import student_quantile
from tailrate.analysis.stats.level_shifts import shifts
from tailrate.analysis.stats.trend import median
from tailrate.analysis.text import words

LEAST, MOST = 5, 30
"""Earlier runs that the expected range is learned from."""
ENOUGH = 10
"""Runs from which on those that are far off are set aside: of fewer nobody knows what far is."""
ALARMS = 0.045
"""How often one of all figures of a new run is called worse where nothing changed: at most one time in twenty, of which
a tenth is for what is left out of the baseline by chance, as that narrows it."""
LARGE = 3.0
"""Standard errors of the newest run itself."""
FAR = 5.0
"""Median absolute deviations, as standard deviations, at which that is."""
CHANCES = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
WIDER = {
    5: (1.75, 1.87, 1.97, 2.08, 2.26, 2.39),
    6: (1.53, 1.59, 1.65, 1.70, 1.79, 1.85),
    7: (1.43, 1.46, 1.49, 1.53, 1.57, 1.61),
    8: (1.36, 1.38, 1.40, 1.42, 1.45, 1.47),
    9: (1.31, 1.33, 1.34, 1.36, 1.38, 1.40),
    10: (1.03, 1.05, 1.07, 1.10, 1.17, 1.25),
    11: (1.03, 1.04, 1.06, 1.08, 1.13, 1.19),
    12: (1.02, 1.03, 1.04, 1.06, 1.08, 1.12),
    13: (1.02, 1.02, 1.04, 1.05, 1.06, 1.10),
    14: (1.01, 1.02, 1.02, 1.03, 1.04, 1.06),
    15: (1.01, 1.02, 1.02, 1.03, 1.04, 1.05),
    16: (1.01, 1.01, 1.02, 1.02, 1.03, 1.04),
}
"""By how many times Student's t one more run is off by chance, as runs were set aside: by number of runs, and at these
chances. Drawn a million times; the tests draw anew."""
FINEST = 0.002
"""No figure is known better than this, on its scale, however alike a few runs are."""

WORSE, BETTER, SAME, UNKNOWN = "worse", "better", "no change", "cannot be judged"
ACCEPTED = "worse, as accepted"


@dataclass(frozen=True, slots=True)
class Shift:
    """A change of level."""

    place: int
    """Of the first run with the new one."""
    ratio: float
    """Median since ÷ median before, for shares the difference."""
    call: str


@dataclass(frozen=True, slots=True)
class FigureVerdict:
    """One figure of the newest run of a lineage."""

    track: FigureTrack
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
    def newest(self) -> FigureReading | None:
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


def written(kind: FigureKind, reading: FigureReading | None) -> str:
    if reading is None:
        return words.ABSENT
    if kind.better > 0 and reading.low != reading.high:  # a capacity lies between
        if reading.high is None:
            return f"≥ {kind.written(reading.value)}"
        return f"{words.significant(reading.low)}–{kind.written(reading.high)}"
    return kind.written(reading.value)


def judge(
    found: Sequence[Lineage],
    pinned: tuple[str, Entry] | None = None,
    figures: Collection[str] = tuple(KINDS),
    accepted: Collection[Key] = (),
) -> list[tuple[Lineage, list[FigureVerdict]]]:
    """Figures of the newest run of every lineage; `pinned`, a name and its run, stands for the earlier runs.

    `accepted`: runs in which somebody accepted what is worse.
    """
    tracks = [(one, [track for track in one.tracks() if track.key in figures]) for one in found]
    of_run: Counter[Key] = Counter()
    for one, mine in tracks:
        of_run[key_of(one.newest)] += len(mine)
    return [
        (one, [_judged(one, track, of_run[key_of(one.newest)], pinned, accepted) for track in mine])
        for one, mine in tracks
    ]


@dataclass(frozen=True, slots=True)
class Usual:
    """What runs were, on a figure's scale."""

    centre: float
    spread: float
    spreads: float
    """By how many of them one more run is off by chance, in as many cases as were asked for."""
    runs: int

    @property
    def reach(self) -> float:
        """By how much that is; runs that agree by chance are held to differ a little."""
        return self.spreads * max(self.spread, FINEST)


def usual(earlier: Floats, chance: float) -> Usual:
    """`chance`: how often one more run may be off by more, to one side."""
    apart = np.abs(earlier - median(earlier))
    if len(earlier) < ENOUGH:
        centre, kept = median(earlier), np.delete(earlier, np.argmax(apart))
    else:
        kept = earlier[apart <= max(FAR * 1.4826 * median(apart), FINEST)]
        centre = float(np.mean(kept))
    return Usual(centre, float(np.std(kept, ddof=1)), far(len(earlier), chance), len(earlier))


@cache
def far(runs: int, chance: float) -> float:
    """By how many spreads of so many runs one more is off, to one side, in so many cases."""
    wider = np.interp(-math.log(chance), -np.log(CHANCES), WIDER[runs]) if runs in WIDER else 1.0
    return wider * student_quantile(runs - 1, 1 - chance) * math.sqrt(1 + 1 / runs)


def baseline(
    kind: FigureKind, values: Floats, errors: Floats, chance: float, accepted: Collection[int] = ()
) -> tuple[Floats, int]:
    """What the next run is held against, and from where on: of those that were called worse only enough in a row are.

    Where somebody accepted one, those before it say no more than what runs differ by, around it.
    """
    learned: list[float] = []
    worse: list[float] = []
    begun = 0
    for place, (value, error) in enumerate(zip(values.tolist(), errors.tolist(), strict=True)):
        known = usual(np.asarray(learned[-MOST:]), chance) if len(learned) >= LEAST else None
        if known is None or (known.centre - value) * kind.better <= _reach(kind, known, error):
            alone = worse if len(worse) == 1 else []  # one bad run is no regression, and what is far off is set aside
            learned, worse = [*learned, *alone, value], []
        else:
            worse.append(value)
            if place in accepted:
                learned, worse = [*(one + value - known.centre for one in learned), value], []
            elif len(worse) == LEAST:
                learned, worse, begun = worse, [], place + 1 - LEAST
    return np.asarray(learned[-MOST:], np.float64), begun


def _reach(kind: FigureKind, known: Usual, error: float) -> float:
    """By how much one more run is off by chance; `error`: what it leaves open itself."""
    return max(known.reach, LARGE * error, kind.least)


def _judged(
    one: Lineage, track: FigureTrack, figures: int, pinned: tuple[str, Entry] | None, accepted: Collection[Key]
) -> FigureVerdict:
    kind, newest = track.kind, track.readings[-1]
    known = [(k, r) for k, r in enumerate(track.readings) if r is not None and kind.has(r.value)]
    found = [(k, r) for k, r in known if not r.bound or r is newest]
    known = found if len(found) > LEAST else known  # what was found says more than that it is no less
    values = np.asarray([kind.scaled(r.value) for _, r in known], np.float64)
    starts = shifts(values)
    judged = FigureVerdict(track, UNKNOWN, "", shifts=_shifts(kind, values, starts, known))
    errors = np.asarray([r.error for _, r in known], np.float64)
    if newest is None:
        return replace(judged, why=f"{one.newest.name} has none that can be trusted")
    earlier = values[:-1] if kind.has(newest.value) else values
    taken = [n for n, (place, _) in enumerate(known) if key_of(one.entries[place]) in accepted]
    begun, ended = _level(starts, len(earlier))
    ended = len(earlier) if any(n >= ended for n in taken) else ended
    recent, lasts = baseline(
        kind, earlier[begun:ended], errors[begun:ended], ALARMS / figures, [n - begun for n in taken]
    )
    if lasts:
        begun += lasts
        judged = replace(judged, shifts=_shifts(kind, values, [*starts, begun], known))
    since = f"runs since {one.entries[known[begun][0]].name}" if begun else "earlier runs"
    until = f" before {one.entries[known[ended][0]].name}" if ended < len(earlier) else ""
    left = len(earlier[begun:ended][-MOST:]) - len(recent)
    but = f", {left} worse ones left out" if left > 0 else ""
    judged = replace(judged, against=f"{len(recent)} {since}{until}{but}")
    beside: FigureReading | None = None
    if pinned is not None:
        name, base = pinned
        judged, beside = replace(judged, against=f"{name} ({base.name})"), track.of(base, one.endpoint)
        if beside is None or not kind.has(beside.value):
            return replace(judged, why=f"{name} has no such figure")
        if key_of(base) == key_of(one.newest):
            return replace(judged, why=f"it is {name} itself")
    if len(recent) >= LEAST:
        judged = _held(judged, recent, figures, beside)
        agreed = judged.call == WORSE and key_of(one.newest) in accepted
        return replace(judged, call=ACCEPTED) if agreed else judged
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


def _held(judged: FigureVerdict, recent: Floats, figures: int, pinned: FigureReading | None) -> FigureVerdict:
    """The newest run against earlier ones, or against one of them."""
    kind, newest = judged.track.kind, judged.newest
    assert newest is not None
    # one tail to either side, shared by the figures: what is called is outside the range, and nothing else
    known = usual(recent, ALARMS / figures)
    if pinned is not None:  # it is as far off as any other
        more = math.sqrt(2 / (1 + 1 / known.runs))
        known = replace(known, centre=kind.scaled(pinned.value), spreads=more * known.spreads)
    reach = _reach(kind, known, newest.error)
    if not kind.has(newest.value):
        before = sum(r is not None and not kind.has(r.value) for r in judged.track.readings[:-1])
        if newest.high and kind.scaled(newest.high) >= known.centre - reach:
            return replace(judged, why=f"{kind.lost} of those that were tried, from {kind.written(newest.high)} on")
        if before:
            return replace(judged, why=f"{kind.lost}, as in {before} of the earlier runs")
        return replace(judged, call=WORSE, why=f"{kind.lost}, and was not in any earlier run")
    off, middle = kind.scaled(newest.value) - known.centre, kind.value(known.centre)
    judged = replace(
        judged,
        call=SAME if abs(off) <= reach else BETTER if off * kind.better > 0 else WORSE,
        usual=middle,
        low=kind.value(known.centre - reach),
        high=kind.value(known.centre + reach),
        ratio=None if kind.share else newest.value / middle,
    )
    if newest.bound and judged.call == WORSE:
        return replace(judged, call=UNKNOWN, why=f"no rate that was tried missed the objective: it is {judged.written}")
    bounds = sum(r is not None and r.bound for r in judged.track.readings[:-1])
    if judged.call == BETTER and 2 * bounds > known.runs:  # than the highest rate that was tried then
        return replace(judged, call=SAME)
    return judged


def _alone(kind: FigureKind, newest: FigureReading, before: FigureReading) -> dict[str, Any]:
    """The ratio of two runs, with the interval of the two where both know their own."""
    if kind.share or not kind.has(newest.value):
        return {}
    ratio = newest.value / before.value
    if not newest.error or not before.error:
        return {"ratio": ratio}
    reach = 1.96 * math.hypot(newest.error, before.error)
    return {"ratio": ratio, "ratio_low": ratio * kind.value(-reach), "ratio_high": ratio * kind.value(reach)}


def _shifts(
    kind: FigureKind, values: Floats, starts: Sequence[int], known: Sequence[tuple[int, FigureReading]]
) -> tuple[Shift, ...]:
    starts = sorted(starts)
    return tuple(_shift(kind, values, starts, n, known[at][0]) for n, at in enumerate(starts))


def _shift(kind: FigureKind, values: Floats, starts: Sequence[int], n: int, place: int) -> Shift:
    """The n-th, from the levels on both of its sides."""
    edges = [0, *starts, len(values)]
    before, since = (float(np.median(values[edges[k] : edges[k + 1]])) for k in (n, n + 1))
    by = kind.value(since) - kind.value(before) if kind.share else kind.value(since - before)
    call = SAME if abs(since - before) < kind.least else BETTER if (since - before) * kind.better > 0 else WORSE
    return Shift(place, by, call)
