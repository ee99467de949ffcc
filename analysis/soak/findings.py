"""What hours of traffic brought to light: jumps, drifts, leaks, stalls, clocks held down, compilation, each as a row.

What was looked at is corrected for as a whole (Holm's procedure), so that a soak in which nothing happened shows a
finding in at most one case of twenty. A change must also be large enough to be worth a sentence (`series.QUANTITIES`).
Clocks held down and counters that moved are facts and have no p-value. Beside each finding stands what else changed at
its instant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.run.device_tracks import THROTTLED, THROTTLES
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.soak.growth import FREEDOM, TotalGrowth, growth
from tailrate.analysis.soak.periodic_stalls import longest, peaks, smallest, stalls
from tailrate.analysis.soak.series import COUNTERS, MEMORY, Series, loads, series
from tailrate.analysis.stats.array_types import Floats
from tailrate.analysis.stats.changepoints import Drift, drift
from tailrate.analysis.stats.distributions import normal_quantile, student_quantile
from tailrate.analysis.stats.ratio import LEVEL
from tailrate.analysis.steps import fault_windows
from tailrate.analysis.steps.fault_windows import Spans, lost_s
from tailrate.analysis.text import words
from tailrate.analysis.verdicts.conclusion import to_uncertainty

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

BESIDE_NS = 120 * 10**9
HELD_PCT = 5.0
"""Share of a cell in which clocks are held down that is worth a finding."""
REACH = 2.4
"""Standard errors either way: 1.96, and more for the noise being known from the same hours."""
AROUND = 10
"""Cells before and after an instant that are compared to see what else changed."""
_ORDER = ("p99_ms", "ttft_p99_ms", "tpot_p99_ms", "error_share", *MEMORY, "p50_ms", "achieved_rps", "throttled_pct")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that changed."""

    kind: str
    """step, spell, trend, growth, stall, throttle or recompile"""
    series: str
    subject: str
    start_ns: int
    end_ns: int | None
    """When it was over; None where it lasted to the end, or is of an instant."""
    size: float
    unit: str
    low: float | None
    high: float | None
    p: float | None
    """How often chance shows as much in any of all that was looked at; None of a fact."""
    period_s: float | None
    beside: tuple[str, ...]
    sentence: str
    fails: bool = False
    """Whether it is more than the limits of the soak allow."""


@dataclass(frozen=True, slots=True, eq=False)
class SoakEvidence:
    """Everything that was looked at."""

    line: Timeline
    series: tuple[Series, ...]
    drifts: Mapping[tuple[str, str], Drift]
    """By name and subject of the series, of those that can be judged."""
    grown: Mapping[tuple[str, str], TotalGrowth]
    """Likewise, of memory and P99."""
    findings: tuple[Finding, ...]
    doubtful: tuple[Finding, ...]
    """What may be chance, and may be none."""
    looks: int
    """At so many series, endpoints and further changes."""
    stalls_visible: Mapping[str, tuple[float, float]]
    """By endpoint: by how many ms a stall must hold requests up to show, at periods of up to so many seconds."""
    taken: Spans
    """The time of planned faults, of which nothing here was looked at."""

    def slope_visible(self, one: Series) -> float | None:
        """The smallest slope by hour, as a share of the level, that would have shown in four of five such soaks."""
        return self._visible(one, one.slope, lambda found: found.slope_error * 3600 / self.line.slice_s)

    def step_visible(self, one: Series) -> float | None:
        """The smallest step in the middle of the soak, as a share of the level."""
        return self._visible(one, one.change, lambda found: found.step_error)

    def growth_visible(self, one: Series) -> float | None:
        """The smallest growth in all by hour, as a share of the level, that would have shown in four of five."""
        found = self.grown.get((one.name, one.subject))
        if found is None:
            return None
        least = (-student_quantile(FREEDOM, LEVEL / self.looks / 2) + 0.84) * found.error
        return abs(one.change(found.begin, least)) * 3600 / (found.cells * self.line.slice_s)

    def _visible(self, one: Series, told: Any, error: Any) -> float | None:
        found = self.drifts.get((one.name, one.subject))
        if found is None:
            return None
        return abs(float(told(found.level, (_clear(LEVEL / self.looks) + 0.84) * error(found))))


def _clear(level: float) -> float:
    """How many standard errors a two-sided test at this level takes."""
    return -normal_quantile(level / 2)


def look(run: Run) -> SoakEvidence:
    """Everything at once: corrections need the number of all looks."""
    line, shown = series(run)
    load, taken = loads(run, line), fault_windows.spans(run)
    judged = [
        replace(one, values=_emptied(one.values, taken, line, line.slice_ns))
        for one in shown
        if one.quantity.matters is not None
    ]
    drifts = {
        (one.name, one.subject): found
        for one in judged
        if (found := drift(one.scaled, by=one.quantity.by, floor=_floor(one), load=load)) is not None
    }
    # where the load followed a curve, P99 follows it, and would be taken to grow
    grows = MEMORY if load is not None else (*MEMORY, "p99_ms")
    grown = {
        (one.name, one.subject): grew
        for one in judged
        if one.name in grows and (grew := _growth(one, drifts.get((one.name, one.subject)))) is not None
    }
    tried = [
        row for one in judged if (found := drifts.get((one.name, one.subject))) for row in _changes(one, found, line)
    ]
    tried += [row for one in judged if (grew := grown.get((one.name, one.subject))) for row in _grew(one, grew, line)]
    slowest = {endpoint: _emptied(peak, taken, line, 10**8) for endpoint, peak in peaks(run, line).items()}
    held = {endpoint: stalls(peak) for endpoint, peak in slowest.items()}
    tried += [row for endpoint, found in held.items() for row in _stalls(endpoint, found, line)]
    looks = len(drifts) + len(grown) + len(held) + sum(max(0, len(found.changes) - 1) for found in drifts.values())
    facts = [*_throttles(run, line), *_compiled(run.events, taken)]
    sure = _holm(tried, max(1, looks))
    called = sorted([*sure, *facts], key=_rank)
    doubtful = tuple(row for row in tried if not any(row.sentence == one.sentence for one in sure))
    told = tuple(_beside(called, run.events, shown, line, taken))
    visible = {endpoint: least for endpoint, peak in slowest.items() if (least := smallest(peak)) is not None}
    return SoakEvidence(line, tuple(shown), drifts, grown, told, doubtful, max(1, looks), visible, taken)


def _growth(one: Series, found: Drift | None) -> TotalGrowth | None:
    """Of memory all of it; of latency what no change explains, as a jump has a limit of its own."""
    if found is None:
        return growth(one.scaled, _floor(one))
    if one.name in MEMORY:
        return growth(one.scaled, _floor(one), found.fitted)
    return growth(one.scaled - found.fitted + found.level, _floor(one))


def _emptied(values: Floats, taken: Spans, line: Timeline, cell_ns: int) -> Floats:
    """With a hole wherever a planned fault was felt."""
    found = values.copy() if taken else values
    for start, end in taken:
        found[max(0, (start - line.zero_ns) // cell_ns) : max(0, -((line.zero_ns - end) // cell_ns))] = math.nan
    return found


def _floor(one: Series) -> float:
    """What is known of its noise, or a tenth of what matters: less than this makes no difference surer."""
    if one.floor:
        return one.floor
    known = one.scaled[~np.isnan(one.scaled)]
    scale = abs(float(np.median(known))) if one.quantity.relative and not one.quantity.factor and len(known) else 1.0
    return 0.1 * (one.quantity.matters or 0.0) * scale


def _holm(tried: Sequence[Finding], looks: int) -> list[Finding]:
    """Those that are no chance, with their p-values corrected."""
    found, before = [], 0.0
    for rank, row in enumerate(sorted(tried, key=lambda row: row.p or 0.0)):
        before = min(1.0, max(before, (row.p or 0.0) * max(1, looks - rank)))
        if before < LEVEL:
            found.append(replace(row, p=before))
    return found


def _rank(row: Finding) -> tuple[int, int]:
    return _ORDER.index(row.series) if row.series in _ORDER else len(_ORDER), row.start_ns


# ---- changes of level and slope


def _changes(one: Series, found: Drift, line: Timeline) -> Iterator[Finding]:
    quantity, cells = one.quantity, len(found.fitted)
    p_value = 0.0
    for change in found.changes:
        p_value = max(p_value, change.p_value)  # what comes later counts only after what came before
        drifts = change.kind == "trend"
        base = float(found.fitted[max(0, change.start - 1)])
        after = base + change.size * (cells - change.start if drifts else 1)
        by = 3600 / line.slice_s if drifts else 1.0
        reach = REACH * change.error
        told = one.slope if drifts else one.change
        size, low, high = (told(base, by * (change.size + far)) for far in (0.0, -reach, reach))
        if abs(one.change(base, after - base)) < (quantity.matters or 0.0):
            continue
        share = 100 if quantity.relative or one.name == "error_share" else 1
        unit = ("%" if quantity.relative else "points" if quantity.unit == "%" else quantity.unit) + "/h" * drifts
        start = line.zero_ns + change.start * line.slice_ns
        end = None if change.end is None else line.zero_ns + change.end * line.slice_ns
        row = Finding(
            change.kind, one.name, one.subject, start, end, share * size, unit, share * low, share * high, p_value,
            None, (), "",
        )  # fmt: skip
        yield replace(row, sentence=_said(row, one, one.plain(base), one.plain(after), line))


def _grew(one: Series, found: TotalGrowth, line: Timeline) -> Iterator[Finding]:
    """From the beginning to the end, in percent by hour, as on a straight line."""
    if found.by <= 0 or one.change(found.begin, found.by) < (one.quantity.matters or 0.0):
        return
    hours, reach = found.cells * line.slice_s / 3600, REACH * found.error
    size, low, high = (100 * one.change(found.begin, found.by + far) / hours for far in (0.0, -reach, reach))
    row = Finding(
        "growth", one.name, one.subject, line.zero_ns, None, size, "%/h", low, high, found.p_value, None, (), ""
    )
    value, between = _in_its_direction(row)
    levels = f"from {_level(one, one.plain(found.begin))} to {_level(one, one.plain(found.end))}"
    yield replace(row, sentence=f"{_what(one)} grew {levels} in all, which is {value} %/h{between}")


def _said(row: Finding, one: Series, before: float, after: float, line: Timeline) -> str:
    what, at = _what(one), moment(row.start_ns, line)
    value, between = _in_its_direction(row)
    by = f"{value} {row.unit}"
    levels = f"from {_level(one, before)} to {_level(one, after)}"
    if row.kind == "trend":
        way = "grows" if row.size > 0 else "falls"
        since = "" if row.start_ns <= line.zero_ns + line.slice_ns else f" from {at} on"
        return f"{what} {way} by {by}{between}{since}, {levels}"
    if row.kind == "spell" and row.end_ns:
        way = "higher" if row.size > 0 else "lower"
        return f"{what} was {by}{between} {way} from {at} to {moment(row.end_ns, line)}"
    return f"{what} {'rose' if row.size > 0 else 'fell'} by {by}{between} at {at}, {levels}"


def _in_its_direction(row: Finding) -> tuple[str, str]:
    """The size without its sign, and its interval, which begins with a minus where it may be the other way round."""
    ends = sorted((end or 0.0) * (1 if row.size > 0 else -1) for end in (row.low, row.high))
    value, low, high = to_uncertainty(abs(row.size), *ends)
    to = " to " if ends[0] < 0 else "–"
    return value, f" ({low}{to}{high})".replace("-", "−") if low != high else ""


def _what(one: Series) -> str:
    return f"{one.quantity.said} of {short(one.subject)}"


def short(subject: str) -> str:
    """A GPU by the first part of its long name."""
    return "-".join(subject.split("-")[:2]) if subject.startswith("GPU-") else subject


def _level(one: Series, value: float) -> str:
    if one.quantity.unit == "bytes":
        return words.size(value)
    value, unit = (100 * value, "%") if one.name == "error_share" else (value, one.quantity.unit)
    return f"{words.significant(value)} {unit}".strip()


def moment(time_ns: int, line: Timeline) -> str:
    """Since the start: 3:10 is three hours and ten minutes; of less than two hours also with seconds, 0:12:30."""
    seconds = max(0, round(line.at(time_ns)))
    minutes, rest = divmod(seconds, 60)
    return f"{minutes // 60}:{minutes % 60:02}" + (f":{rest:02}" if line.seconds < 7200 else "")


# ---- stalls, clocks, compilation


def _stalls(endpoint: str, found: Sequence[Any], line: Timeline) -> Iterator[Finding]:
    for stall in found:
        start = line.zero_ns + round(stall.start_s * 1e9)
        end = None if stall.end_s is None else line.zero_ns + round(stall.end_s * 1e9)
        when = f"first at {moment(start, line)}" + (f", last at {moment(end, line)}" if end else "")
        sentence = (
            f"every {words.significant(stall.period_s)} s the slowest requests of {endpoint} take "
            f"{words.ms(stall.size_ms)} longer ({when})"
        )
        yield Finding(
            "stall", "latency_ms", endpoint, start, end, stall.size_ms, "ms", stall.low_ms, stall.high_ms,
            stall.p_value, stall.period_s, (), sentence,
        )  # fmt: skip


def _throttles(run: Run, line: Timeline) -> Iterator[Finding]:
    """The longest time in which a device's clocks were held down again and again."""
    for track in run.tracks.values():
        told = track.state["throttle_bits"]
        inside = ~np.isnan(told) & (track.time_ns >= line.zero_ns)
        bits, at = told[inside].astype(np.int64), np.minimum(line.numbers(track.time_ns[inside]), line.slices - 1)
        held = np.bincount(at, (bits & THROTTLED) != 0, line.slices)
        share = 100 * held / np.maximum(1, np.bincount(at, minlength=line.slices))
        first, last, _ = longest((share - HELD_PCT)[:, None])
        mine = bits[(at >= first) & (at < last)]
        if last - first < min(3, line.slices) or not len(mine):
            continue
        size = 100 * float(np.mean((mine & THROTTLED) != 0))
        reasons = [name for bit, name in THROTTLES.items() if np.mean((mine & bit) != 0) > 0.1 * size / 100]
        start, end = (line.zero_ns + cell * line.slice_ns for cell in (first, last))
        ended = None if last >= line.slices - 1 else end
        when = f"from {moment(start, line)} " + ("on" if ended is None else f"to {moment(end, line)}")
        sentence = (
            f"the clocks of {short(track.device)} were held down for {words.significant(size, 2)} % of the time {when} "
            f"({', '.join(reasons)})"
        )
        yield Finding(
            "throttle", "throttled_pct", track.device, start, ended, size, "%", None, None, None, None, (), sentence
        )


def _compiled(events: Sequence[Mapping[str, Any]], taken: Spans) -> Iterator[Finding]:
    """Counters of the server that moved, one finding as long as they keep moving; a planned fault moves them too."""
    told: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        if event["event"] == "server":
            told.setdefault(str(event.get("endpoint")), []).append(event)
    for endpoint, mine in told.items():
        for name in COUNTERS:
            known = [(int(event["time_ns"]), int(event[name])) for event in mine if isinstance(event.get(name), int)]
            moved = [(a[0], b[0], b[1] - a[1]) for a, b in pairwise(known) if b[1] > a[1]]
            moved = [one for one in moved if not lost_s(taken, *one[:2])]
            while moved:
                run = 1
                while run < len(moved) and moved[run][0] - moved[run - 1][1] < BESIDE_NS:
                    run += 1
                count = sum(more for _, _, more in moved[:run])
                sentence = f"torch.compile was at work for {endpoint}: {count} {name.replace('_', ' ')}"
                end = moved[run - 1][1] if run > 1 else None
                yield Finding(
                    "recompile", name, endpoint, moved[0][0], end, count, "", None, None, None, None, (), sentence
                )
                moved = moved[run:]


# ---- what else changed


def _beside(
    found: Sequence[Finding], events: Sequence[Mapping[str, Any]], shown: Sequence[Series], line: Timeline,
    taken: Spans,
) -> Iterator[Finding]:  # fmt: skip
    near = max(BESIDE_NS, 2 * line.slice_ns)
    for row in found:
        # what comes out of a planned fault begins where that was over
        begun = min([start for start, end in taken if start <= row.start_ns <= end + near], default=row.start_ns)
        said = [
            _event(event) for event in events
            if _notable(event) and begun - near <= int(event["time_ns"]) <= row.start_ns + near
        ]  # fmt: skip
        others = [other for other in found if other is not row and abs(other.start_ns - row.start_ns) <= near]
        # what may be why before what is the same once more
        said += [other.sentence for other in sorted(others, key=lambda other: other.subject == row.subject)]
        told = {(other.series, other.subject) for other in (*others, row)}
        if row.kind in ("step", "spell"):
            cell = int(line.numbers(np.array(row.start_ns + line.slice_ns // 2)))
            said += [
                sentence
                for one in shown
                if (one.name, one.subject) not in told and one.of == "device" and (sentence := _jump(one, cell))
            ]
        yield replace(row, beside=tuple(dict.fromkeys(said)))


def _notable(event: Mapping[str, Any]) -> bool:
    kinds = ("fault", "gap", "replica_lost", "worker_lost", "restart", "warning")
    there = str(event["event"]).startswith(kinds) and event.get("phase") != "refused"
    return there and isinstance(event.get("time_ns"), int)


def _event(event: Mapping[str, Any]) -> str:
    if event["event"] == "fault":
        what = " ".join(str(event[key]) for key in ("fault", "target") if event.get(key))
        return f"{what.replace('_', ' ')} {'was over' if event.get('phase') == 'end' else 'was injected'}"
    if event.get("sentence"):
        return str(event["sentence"])
    name = event.get("replica") or event.get("worker") or ""
    return f"{str(event['event']).replace('_', ' ')} {name}".strip()


def _jump(one: Series, cell: int) -> str | None:
    """Whether it stood at another level in the cells after than in those before, by far more than it varies."""
    before, after = one.values[max(0, cell - AROUND) : cell], one.values[cell + 1 : cell + 1 + AROUND]
    before, after = before[~np.isnan(before)], after[~np.isnan(after)]
    if min(len(before), len(after)) < AROUND // 2:
        return None
    one_level, other = float(np.median(before)), float(np.median(after))
    spread = 1.4826 * float(np.median(np.abs(np.concatenate([before - one_level, after - other]))))
    least = 0.02 * abs(one_level) if one.quantity.relative else 2.0
    if abs(other - one_level) <= max(4 * spread, least) or math.isnan(spread):
        return None
    way = "rose" if other > one_level else "fell"
    return f"{_what(one)} {way} from {_level(one, one_level)} to {_level(one, other)}"
