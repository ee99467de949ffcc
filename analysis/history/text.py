"""One lineage in words: its table, its runs, a bar per run, and a sentence for each figure that stands out.

Names in a history are whatever folders and servers are called, so texts are made safe for a terminal here, once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tailrate.analysis.history.figure_series import FigureReading, FigureTrack, Lineage
from tailrate.analysis.history.log import History
from tailrate.analysis.history.regression import SAME, UNKNOWN, FigureVerdict, Shift, written
from tailrate.analysis.history.run_summary import Entry
from tailrate.analysis.text import words
from tailrate.analysis.text.table import Table, safe

_BARS = "▁▂▃▄▅▆▇█"
_SPARKS = 24
_LISTED = 30
_CALM = math.log(1.2)
"""A range that is drawn over the full height at least, so that mere noise looks calm."""
_TITLE_FACTS = ("device", "torch", "mode", "objective")
_SHIFTS = 5


def table(lineage: Lineage, found: Sequence[FigureVerdict], before: Lineage | None) -> Table:
    """Newest last in the small drawing."""
    over = f"last {_SPARKS} of {_count(lineage)}" if len(lineage.entries) > _SPARKS else f"over {_count(lineage)}"
    heads = ("figure", "newest", "÷ usual", "expected", over, "")
    rows = [
        [
            one.track.title,
            one.written,
            one.change + (f" ({words.interval(one.ratio_low, one.ratio_high)})" if one.ratio_low else ""),
            one.expected,
            spark(one.track),
            one.call,
        ]
        for one in found
    ]
    environment = lineage.environment
    facts = [
        environment[name] if name != "torch" else f"torch {environment[name]}"
        for name in _TITLE_FACTS
        if name in environment
    ]
    since = "" if before is None else f"; other than above: {words.sentence_list(_changed(before, lineage))}"
    when = f"{_day(lineage.entries[0])} to {_day(lineage.newest)}"
    return safe(Table(f"{lineage.endpoint}, {', '.join(facts)}: {_count(lineage)}, {when}{since}", heads, rows))


def run_by_run(history: History, lineage: Lineage, track: FigureTrack) -> Table:
    """The value of each run, newest last."""
    rows = [
        [
            entry.name,
            entry.when,
            entry.origin.get(("version", "git"), words.ABSENT),
            ", ".join(history.names_of(entry)),
            written(track.kind, reading),
            words.interval(reading.low, reading.high) if reading else words.ABSENT,
        ]
        for entry, reading in list(zip(lineage.entries, track.readings, strict=True))[-_LISTED:]
    ]
    heads = ("run", "when", "git", "pinned as", track.title, "95 % interval")
    return safe(Table(f"{lineage.endpoint}, run by run", heads, rows, texts=4))


def _count(lineage: Lineage) -> str:
    runs = len(lineage.entries)
    return f"{runs} {'run' if runs == 1 else 'runs'}"


def _day(entry: Entry) -> str:
    return entry.when[:10]


def _changed(before: Lineage, after: Lineage) -> list[str]:
    old, new = before.environment, after.environment
    names = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    return [f"{name} {old.get(name, words.ABSENT)} → {new.get(name, words.ABSENT)}" for name in names]


def spark(track: FigureTrack) -> str:
    """A bar per run, newest last: ∞ where it is infinite, a dot where there is none."""
    shown = track.readings[-_SPARKS:]
    known = [track.kind.scaled(reading.value) for reading in shown if reading and track.kind.has(reading.value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    spare = max(0.0, (0.05 if track.kind.share else _CALM) - (high - low)) / 2
    low, high = low - spare, high + spare

    def bar(reading: FigureReading | None) -> str:
        if reading is None:
            return "·"
        if not track.kind.has(reading.value):
            return "∞" if reading.value else "0"
        return _BARS[round((track.kind.scaled(reading.value) - low) / (high - low) * (len(_BARS) - 1))]

    return "".join(map(bar, shown))


def sentences(lineage: Lineage, found: Sequence[FigureVerdict]) -> Iterator[str]:
    unknown: dict[str, list[str]] = {}
    for one in found:
        if one.call == UNKNOWN:
            unknown.setdefault(one.why, []).append(one.track.title)
        elif one.call != SAME:
            yield f"{called(lineage, one)}."
    for why, figures in unknown.items():
        yield f"{lineage.endpoint} cannot be judged by {', '.join(figures)}: {why}."
    changes = [(shift, one) for one in found for shift in one.shifts if shift.call != SAME]
    for shift, one in sorted(changes, key=lambda change: change[0].place)[-_SHIFTS:]:
        yield f"{_shifted(lineage, one, shift)}."


def called(lineage: Lineage, one: FigureVerdict) -> str:
    """`P99 at 200/s of bert/eager is worse in NAME: 53.1 ms, ×1.10 of 20 earlier runs, expected 45.2–51.0`."""
    start = f"{one.track.title} of {lineage.endpoint} is {one.call} in {lineage.newest.name}"
    if one.why:
        return f"{start}: {one.why} ({one.against})"
    of = "from" if one.track.kind.share else "of"
    return f"{start}: {one.written}, {one.change} {of} {one.against}, expected {one.expected}"


def _shifted(lineage: Lineage, one: FigureVerdict, shift: Shift) -> str:
    entry, since = lineage.entries[shift.place], len(lineage.entries) - shift.place
    ratio = words.significant(shift.ratio)
    by = f"by {words.significant(100 * shift.ratio)} points" if one.track.kind.share else f"×{ratio}"
    start = f"{one.track.title} of {lineage.endpoint} changed for the {shift.call} with {entry.name}"
    return f"{start} ({_day(entry)}): {by}, for {since} runs now"
