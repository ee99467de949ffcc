"""What hours of traffic brought to light: every series on one axis with its findings marked, and these in sentences.

Lanes are as high as their values differ, not from zero: what is looked for is change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tailrate.analysis.pages.html.figure import Readout, figure, legend
from tailrate.analysis.pages.html.markup import Html, join, tag
from tailrate.analysis.pages.html.svg import Panel, Scale, time_ticks
from tailrate.analysis.pages.html.table import table
from tailrate.analysis.pages.report.charts.time_chart import moment, zoom_buttons
from tailrate.analysis.pages.report.sections.section import Section, bullets
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.soak.findings import short
from tailrate.analysis.soak.series import QUANTITIES, Series, series
from tailrate.analysis.steps.fault_windows import spans
from tailrate.analysis.text import markdown, words

Row = Mapping[str, Any]

_LANES = (
    "p99_ms", "p50_ms", "ttft_p99_ms", "tpot_p99_ms", "error_share", "achieved_rps", "memory_bytes",
    "own_memory_bytes", "host_memory_bytes", "power_w", "sm_mhz", "throttled_pct", "rss_bytes", "open_files",
    "recompiles",
)  # fmt: skip
_WHOSE = {"rss_bytes": "memory of the load generator", "open_files": "open files of the load generator"}
_IF_ANY = ("error_share", "throttled_pct", "recompiles")
"""Nothing to see where it is zero throughout."""
_PLACES = 240
"""Instants that can be read."""
_GIGA = 2.0**30

_VISIBLE_HEADS = ("figure", "of", "limit", "smallest drift that would have shown", "smallest jump", "smallest stall")
_PROCESS_HEADS = (
    "process",
    "memory at first",
    "last",
    "most",
    "grew by hour",
    "CPU",
    "CPU at most",
    "open files at most",
)


def _html(view: View) -> Html | None:
    """None for a run that is no soak."""
    told = view.report.get("soak")
    if told is None:
        return None
    line, shown = series(view.run)
    listed = (
        tag("li", tag("b", moment(line.at(row["start_ns"]))), f" {row['sentence']}", _beside(row, told["findings"]))
        for row in told["findings"]
    )
    lanes = [(name, mine) for name in _LANES if (mine := _mine(shown, name))]
    return join(
        [
            tag("ol", listed, class_="events") if told["findings"] else tag("p", "Nothing drifted, jumped or stalled."),
            tag("p", left) if (left := _left_out(told)) else None,
            _drawn(view, line, lanes, told["findings"]) if lanes else None,
            table(
                _VISIBLE_HEADS, _visible_rows(view), "What would have shown in four of five such soaks", numbers_from=2
            ),
            table(_PROCESS_HEADS, _process_rows(view), "The load generator itself") if told["processes"] else None,
            tag("ul", (tag("li", sentence) for sentence in _gaps(view))) if told["gaps"] else None,
        ]
    )


def _sentences(view: View) -> list[str]:
    """The findings and the gaps, each with what changed beside it."""
    told = view.report.get("soak")
    if told is None:
        return []
    found = [
        f"{row['sentence']}" + (f" (beside it: {'; '.join(row['beside'])})" if row["beside"] else "")
        for row in told["findings"]
    ]
    left = _left_out(told)
    return (found or ["Nothing drifted, jumped or stalled."]) + ([left] if left else []) + _gaps(view)


def _lines(view: View) -> list[str]:
    said = _sentences(view)
    return [*bullets(said), *markdown.table(_VISIBLE_HEADS, _visible_rows(view), texts=2)] if said else []


def _left_out(told: Row) -> str:
    seconds = told["verdict"].get("faults_s")
    return f"{words.significant(seconds)} s of planned faults were not looked at here." if seconds else ""


def _visible_rows(view: View) -> list[list[str]]:
    """Under `_VISIBLE_HEADS`."""
    verdict = (view.report.get("soak") or {}).get("verdict") or {"limits": {}, "visible": ()}
    limits = verdict["limits"]
    by_hour, percent, ms = words.with_unit(" %/h"), words.with_unit(" %"), words.ms

    def limit(row: Row) -> str:
        if row["series"] != "p99_ms":
            return by_hour(limits["memory_pct_h"])
        most = limits.get("stall_ms")
        stall = [] if most is None else [ms(most)]
        return ", ".join([by_hour(limits["p99_trend_pct_h"]), percent(limits["p99_step_pct"]), *stall])

    return [
        [
            QUANTITIES[row["series"]].said,
            short(row["subject"]),
            limit(row),
            by_hour(_least(row["slope_pct_h"], row.get("growth_pct_h"))),
            percent(row["step_pct"]),
            words.ABSENT if row.get("stall_ms") is None else f"{ms(row['stall_ms'])} each {row['stall_s']:g} s or less",
        ]
        for row in verdict["visible"]
    ]


def _least(*rises: float | None) -> float | None:
    return min((rise for rise in rises if rise is not None), default=None)


def _process_rows(view: View) -> list[list[str]]:
    """Under `_PROCESS_HEADS`."""
    percent = words.with_unit(" %")
    return [
        [
            row["role"],
            *(words.size(row[f"rss_{when}_bytes"]) for when in ("first", "last", "most")),
            _grew(*(row[f"grew_{end}bytes_h"] for end in ("", "low_", "high_"))),
            percent(row["cpu_mean_pct"]),
            percent(row["cpu_most_pct"]),
            words.count(row["open_files_most"]),
        ]
        for row in (view.report.get("soak") or {"processes": ()})["processes"]
    ]


def _grew(by: float | None, low: float | None, high: float | None) -> str:
    """Megabytes, whose interval holds 0 where nothing shows that it grew."""
    if by is None or low is None or high is None:
        return words.ABSENT
    middle, *ends = (f"{value / 1e6:.1f}".replace("-", "−") for value in (by, low, high))
    return f"{middle} MB ({ends[0]} to {ends[1]})"


def _gaps(view: View) -> list[str]:
    zero = view.run.manifest.started_ns
    return [
        f"Nothing was sent from {moment((row['start_ns'] - zero) / 1e9)} to {moment((row['end_ns'] - zero) / 1e9)}, "
        f"where {words.count(row['scheduled'])} arrivals were planned."
        for row in (view.report.get("soak") or {"gaps": ()})["gaps"]
    ]


def _beside(row: Row, findings: Sequence[Row]) -> str:
    """What else changed, other findings by their numbers."""
    numbers = {one["sentence"]: number for number, one in enumerate(findings, start=1)}
    known = ", ".join(map(str, sorted(numbers[one] for one in row["beside"] if one in numbers)))
    rest = [*([f"with {known}"] if known else []), *(one for one in row["beside"] if one not in numbers)]
    return f" ({words.sentence_list(rest)})" if rest else ""


def _mine(shown: Sequence[Series], name: str) -> list[Series]:
    mine = [one for one in shown if one.name == name and not np.isnan(one.values).all()]
    return [] if name in _IF_ANY and not any(np.nansum(one.values) for one in mine) else mine


def _drawn(view: View, line: Timeline, lanes: Sequence[tuple[str, list[Series]]], findings: Sequence[Row]) -> Html:
    readout, values = Readout(), dict[int, dict[int, str]]()
    drawn: list[Html] = []
    every = -(-line.slices // _PLACES)
    for place, (name, mine) in enumerate(lanes):
        unit, of = _unit(mine)
        panel = Panel(Scale(0, line.seconds), _fitting(mine, of), 120 if not place else 76, zooms=True)
        for span in spans(view.run):
            start, end = (min(max(0.0, line.at(edge)), line.seconds) for edge in span)
            panel.stripe(start, end, 0, panel.height, "apart")
        panel.grid(panel.y.labels(6 if not place else 4))
        for one in mine:
            number = view.series.get(one.subject)
            points = [
                (line.middle(cell), None if math.isnan(v) else v / of) for cell, v in enumerate(one.values.tolist())
            ]
            panel.line(points, "device" if number is None else f"p99 thin s{number}", number)
            label = readout.row(number, f"{short(one.subject)} {QUANTITIES[name].said}")
            for cell in range(0, line.slices, every):
                if not math.isnan(v := float(one.values[cell])):
                    values.setdefault(cell, {})[label] = f"{words.significant(v / of)} {unit}".strip()
        _mark(panel, line, findings, name)
        last = place == len(lanes) - 1
        if last:
            panel.x_ticks([(t, moment(t)) for t in time_ticks(line.seconds, 10)])
        drawn.append(tag("p", f"{_WHOSE.get(name, QUANTITIES[name].said)}{unit and f', {unit}'}", class_="unit"))
        drawn.append(panel.svg(None if place else _in_words(lanes, line), above=14, below=26 if last else 4))
    for cell, said in sorted(values.items()):
        readout.place(line.middle(cell) / line.seconds, moment(line.middle(cell)), said)
    note = (
        f"Cells of {line.slice_s} s; an axis begins where its values do. "
        "A number is where a finding of the list begins, a bar how long it lasts."
        f"{' Shaded: planned faults, not looked at.' if spans(view.run) else ''}"
    )
    return figure(
        "soak-series", "Every series over the soak", note,
        tag("div", legend(view.series), zoom_buttons(), class_="keys"), drawn, readout,
        seconds=line.seconds, slice=line.slice_s,
    )  # fmt: skip


def _unit(mine: Sequence[Series]) -> tuple[str, float]:
    """Of what the values are shown in."""
    name = mine[0].name
    if QUANTITIES[name].unit == "bytes":
        most = max(float(np.nanmax(one.values)) for one in mine)
        return ("GiB", _GIGA) if most >= _GIGA else ("MiB", 2.0**20)
    return QUANTITIES[name].unit, 0.01 if name == "error_share" else 1.0


def _fitting(mine: Sequence[Series], of: float) -> Scale:
    low, high = (
        found(float(pick(one.values)) for one in mine) / of for found, pick in ((min, np.nanmin), (max, np.nanmax))
    )
    room = 0.12 * (high - low) or 0.05 * abs(high) or 1.0
    return Scale(max(0.0, low - room) if low >= 0 else low - room, high + room)


def _mark(panel: Panel, line: Timeline, findings: Sequence[Row], name: str) -> None:
    begun: dict[float, list[str]] = {}
    for number, row in enumerate(findings, start=1):
        if row["series"] != name and not (row["kind"] == "stall" and name == "p99_ms"):
            continue
        start = min(max(0.0, line.at(row["start_ns"])), line.seconds)
        end = line.seconds if row["end_ns"] is None else min(line.at(row["end_ns"]), line.seconds)
        panel.upright(start, "event")
        near = next((at for at in begun if abs(at - start) < 0.02 * line.seconds), start)
        begun.setdefault(near, []).append(str(number))
        if row["kind"] not in ("step", "recompile"):
            panel.stripe(start, end, panel.height - 3, 3, "lasting")
    for at, numbers in begun.items():
        panel.text(at, -3, ", ".join(numbers), "event")


def _in_words(lanes: Sequence[tuple[str, list[Series]]], line: Timeline) -> str:
    names: Iterator[str] = (QUANTITIES[name].said for name, _ in lanes)
    return (
        f"Chart over {words.duration(line.seconds)}: {', '.join(dict.fromkeys(names))}; the findings are listed above."
    )


SOAK = Section("soak", "What hours brought to light", _html, _lines)
