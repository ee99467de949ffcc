"""The pictures: hockey stick, achieved against offered rate, and the time line.

Each function turns rows of the report or slices of a `Timeline` into one `figure`. The values that a figure
shows on hover are written here, by `words`, so what a hover shows is what the tables show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import words
from analysis.records import Slo
from analysis.report.axes import Panel, Scale, fitting, linear, time_ticks
from analysis.report.figure import Readout, figure, legend
from analysis.report.markup import Html, tag
from analysis.report.timeline import Timeline

Row = Mapping[str, Any]


def doubts(row: Row) -> list[str]:
    """Why a step is drawn hollow; empty for a step that can be taken as it is."""
    if row["trusted"] and not row["overloaded"]:
        return []
    return [str(reason) for reason in row["reasons"]] or ["overloaded" if row["overloaded"] else "not trusted"]


def _by_rate(rows: Sequence[Row]) -> dict[float, list[Row]]:
    found: dict[float, list[Row]] = {}
    for row in sorted(rows, key=lambda r: float(r["rate"])):
        found.setdefault(float(row["rate"]), []).append(row)
    return found


def _middle(rows: Sequence[Row], key: str) -> tuple[float, float | None]:
    """The median step of one rate, where rounds have repeated it; infinity counts as large."""
    known = sorted((row for row in rows if row[key] is not None), key=lambda r: float(r[key]))
    if not known:
        return float(rows[0]["offered_rps"]), None
    row = known[len(known) // 2]
    return float(row["offered_rps"]), float(row[key])


def hockey_stick(steps: Sequence[Row], series: Mapping[str, int], slos: Sequence[Slo]) -> Html:
    """Offered rate against P50 and P99, with the interval of P99 and the objective."""
    limits = [slo for slo in slos if slo.latency_ms is not None]
    heights = [
        float(row[key]) for row in steps for key in ("p50_ms", "p99_ms", "p99_low_ms", "p99_high_ms") if row[key]
    ]
    heights += [slo.latency_ms * 1.1 for slo in limits if slo.latency_ms]
    panel = Panel(Scale(0, max(float(row["offered_rps"]) for row in steps) * 1.04), fitting(heights), 340)
    _latency_grid(panel, 9)
    panel.x_ticks([(v, f"{words.tick(v)}/s") for v in panel.x.ticks(9)])
    short = words.short_names(list(series))
    ends: list[tuple[float, str, str, int | None]] = []
    for slo in limits:
        panel.rule(slo.latency_ms or 0.0, "slo")
        ends.append((slo.latency_ms or 0.0, "objective", "slo", None))
    for endpoint, n in series.items():
        mine = [row for row in steps if row["endpoint"] == endpoint]
        rates = _by_rate(mine)
        for key, kind in (("p50_ms", "p50"), ("p99_ms", "p99")):
            points = [_middle(rows, key) for rows in rates.values()]
            panel.line(points, f"{kind} s{n}", n)
            if known := [y for _, y in points if y is not None]:
                ends.append((known[-1], f"{short[endpoint]} {kind.upper()}", f"s{n}", n))
        for row in mine:
            x, hollow = float(row["offered_rps"]), " hollow" if doubts(row) else ""
            if row["p99_low_ms"] is not None and row["p99_high_ms"] is not None:
                panel.whisker(x, row["p99_low_ms"], row["p99_high_ms"], f"whisker s{n}", n)
            if row["p50_ms"] is not None:
                panel.dot(x, row["p50_ms"], f"dot s{n}{hollow}", n, radius=2.5)
            if row["p99_ms"] is not None:
                panel.dot(x, row["p99_ms"], f"dot s{n}{hollow}", n)
    panel.end_labels(ends)
    keys = [("p99", "P99, bar: its interval"), ("p50", "P50")]
    keys += [("slo", f"objective: {slo}") for slo in limits]
    if any(doubts(row) for row in steps):
        keys.append(("hollow", "overloaded or not trusted"))
    if any(row[key] == math.inf for row in steps for key in ("p50_ms", "p99_ms")):
        keys.append(("arrow", "infinite: lost to failures"))
    note = "Latency from the intended start over requests offered per second; a failure is infinitely late."
    return figure(
        "hockey",
        "Latency against offered rate",
        note,
        legend(series, keys),
        panel.svg(_in_words(steps, series), above=26, below=26),
        _readout(panel, steps, series, short, ("p99_ms", "p50_ms", "achieved_rps", "errors")),
        room=2 + min(24, max(len(label) for _, label, _, _ in ends)),
    )


def _latency_grid(panel: Panel, most: int) -> None:
    panel.grid(
        (v, f"{words.tick(v)}\u00a0ms" if v < 1000 else f"{words.tick(v / 1000)}\u00a0s") for v in panel.y.ticks(most)
    )


def _in_words(steps: Sequence[Row], series: Mapping[str, int]) -> str:
    """The text alternative of the hockey stick."""
    parts = []
    for endpoint in series:
        rates = _by_rate([row for row in steps if row["endpoint"] == endpoint])
        said = [f"{words.ms(_middle(rows, 'p99_ms')[1])} at {words.rate(rate)}" for rate, rows in rates.items()]
        if said:
            parts.append(f"P99 of {endpoint}: {', '.join(said)}")
    return "Chart. " + ". ".join(parts) + "."


def _cell(row: Row, key: str) -> str:
    if key == "p99_ms":
        known = row["p99_low_ms"] is not None and row["p99_high_ms"] is not None
        span = f" ({words.interval(row['p99_low_ms'], row['p99_high_ms'])})" if known else ""
        return words.ms(row[key]) + span
    if key == "errors":
        return f"{words.count(row['errors'])} of {words.count(row['n'])}"
    return words.ms(row[key]) if key.endswith("_ms") else words.rate(row[key])


_SAID = {"p99_ms": "P99", "p50_ms": "P50", "achieved_rps": "achieved", "goodput_rps": "goodput", "errors": "failed"}


def _readout(
    panel: Panel, steps: Sequence[Row], series: Mapping[str, int], short: Mapping[str, str], keys: Sequence[str]
) -> Readout:
    readout = Readout()
    labels = {(n, key): readout.row(n, f"{short[name]} {_SAID[key]}") for name, n in series.items() for key in keys}
    for rate, rows in _by_rate(steps).items():
        values: dict[int, str] = {}
        for endpoint, n in series.items():
            mine = [row for row in rows if row["endpoint"] == endpoint]
            for key in keys if mine else ():
                if key != "errors" or any(row["errors"] for row in mine):
                    values[labels[n, key]] = ", ".join(_cell(row, key) for row in mine)
        x = sum(float(row["offered_rps"]) for row in rows) / len(rows)
        readout.place(panel.x(x), f"{words.rate(rate)} offered", values)
    return readout


def achieved(steps: Sequence[Row], series: Mapping[str, int]) -> Html:
    """Achieved against offered rate: below the diagonal the endpoint (or the generator) is saturated."""
    scale = linear(float(row[key]) for row in steps for key in ("offered_rps", "achieved_rps"))
    panel = Panel(scale, scale, 220)
    panel.grid((v, f"{words.tick(v)}/s") for v in scale.ticks(5))
    panel.x_ticks([(v, f"{words.tick(v)}/s") for v in scale.ticks(6)])
    panel.line([(0, 0), (scale.high, scale.high)], "diagonal")
    for endpoint, n in series.items():
        mine = [row for row in steps if row["endpoint"] == endpoint]
        panel.line([_middle(rows, "achieved_rps") for rows in _by_rate(mine).values()], f"p99 s{n}", n)
        for row in mine:
            hollow = " hollow" if doubts(row) else ""
            panel.dot(float(row["offered_rps"]), float(row["achieved_rps"]), f"dot s{n}{hollow}", n, radius=3.5)
    worst = min(steps, key=lambda row: float(row["achieved_rps"]) / max(float(row["offered_rps"]), 1e-9))
    label = (
        f"Chart. Lowest share achieved: {words.rate(worst['achieved_rps'])} of {words.rate(worst['offered_rps'])} "
        f"offered to {worst['endpoint']}."
    )
    return figure(
        "achieved",
        "Achieved against offered rate",
        "Successes per second; on the diagonal everything that was offered was answered.",
        legend(series),
        panel.svg(label, below=26, above=8),
        _readout(panel, steps, series, words.short_names(list(series)), ("achieved_rps", "goodput_rps")),
    )


def time_line(
    line: Timeline,
    slices: pd.DataFrame,
    devices: pd.DataFrame,
    device_kind: str,
    steps: Sequence[Row],
    events: Sequence[Mapping[str, Any]],
    series: Mapping[str, int],
) -> Html:
    """Latency over time with the devices under it; steps and events on the one axis that all share."""
    x, short, readout = Scale(0, line.seconds), words.short_names(list(series)), Readout()
    ticks = [(t, moment(t)) for t in time_ticks(line.seconds, 10)]
    values: dict[int, dict[int, str]] = {}
    latency = Panel(x, fitting([*slices["p50_ms"], *slices["p99_ms"]]), 240)
    if np.isfinite(slices["p50_ms"]).any():
        _latency_grid(latency, 7)
    lanes = _steps_above(latency, line, steps, series)
    for endpoint, n in series.items():
        mine = slices[slices["endpoint"] == endpoint]
        rows = [readout.row(n, f"{short[endpoint]} {word}") for word in ("P99", "P50", "failed")]
        p50: list[tuple[float, float | None]] = []
        p99: list[tuple[float, float | None]] = []
        before = -1
        for part, count, failed, low, high in zip(
            *(mine[c].tolist() for c in ("slice", "n", "failed", "p50_ms", "p99_ms")), strict=True
        ):
            at = line.middle(part)
            if part != before + 1:
                p50.append((at, None))
                p99.append((at, None))
            p50.append((at, low))
            p99.append((at, high))
            said = values.setdefault(part, {})
            said |= {rows[0]: words.ms(high), rows[1]: words.ms(low)}
            if failed:
                said[rows[2]] = f"{failed} of {count}"
                latency.glyph(at, 7, "M-3-3L3 3M-3 3L3-3", "failure", n)
            before = part
        latency.line(p50, f"p50 thin s{n}", n)
        latency.line(p99, f"p99 thin s{n}", n)

    lower = list(_device_panels(x, devices, device_kind, line, readout, values))
    _mark_events(latency, line, events, numbered=True)
    for _, panel in lower:
        for step in steps:
            panel.upright(line.at(step["start_ns"]), "boundary")
        _mark_events(panel, line, events, numbered=False)
    last = lower[-1][1] if lower else latency
    last.x_ticks(ticks)
    for part in sorted(values):
        at = line.middle(part)
        begin = part * line.slice_s
        readout.place(x(at), f"{moment(begin)}–{moment(begin + line.slice_s)}", values[part])

    drawn: list[Html] = [tag("p", "latency", class_="unit")]
    alternative = f"Chart over {words.duration(line.seconds)}: P50 and P99 by {line.slice_s} s" + (
        f", and below them {', '.join(name for name, _ in lower)}." if lower else "."
    )
    drawn.append(latency.svg(alternative, above=lanes + 18, below=4 if lower else 26))
    for name, panel in lower:
        drawn += [tag("p", name, class_="unit"), panel.svg(None, above=8, below=26 if panel is last else 4)]
    keys = [("p99", f"P99 of each {line.slice_s} s"), ("p50", "P50")]
    if slices["failed"].any():
        keys.append(("failure", "failed requests"))
    note = "Minutes and seconds since the start; strips on top: the steps and their offered rate, pale while settling."
    return figure("timeline", "Latency and devices", note, legend(series, keys), drawn, readout)


def moment(seconds: float) -> str:
    """Time since the start as 1:05 or 1:02:05."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def _steps_above(panel: Panel, line: Timeline, steps: Sequence[Row], series: Mapping[str, int]) -> int:
    """A strip per endpoint above the panel, a stripe per step; returns the height that they take."""
    height = 7 * len(series)
    for number, step in enumerate(steps):
        start, end = line.at(step["start_ns"]), min(line.seconds, line.at(step["end_ns"]))
        panel.upright(start, "boundary")
        n = series.get(str(step["endpoint"]))
        if n is None:
            continue
        y, settled = 7.0 * n - height - 4, min(end, start + float(step.get("settle_s") or 0.0))
        panel.stripe(start, settled, y, 5, f"step settling s{n}")
        panel.stripe(settled, end, y, 5, f"step s{n}")
        if (end - start) / line.seconds > 0.035:
            panel.text(
                (start + end) / 2,
                -height - 8,
                words.load(step["rate"], step.get("concurrency") or 0),
                "odd rate" if number % 2 else "rate",
            )
    return height


def _device_panels(
    x: Scale, devices: pd.DataFrame, kind: str, line: Timeline, readout: Readout, values: dict[int, dict[int, str]]
) -> Iterable[tuple[str, Panel]]:
    gib = 2.0**30
    wanted = (
        ("util_pct", f"{kind} use, %", 1.0),
        ("mem_bytes", f"{kind} memory, GiB", gib),
        ("power_w", "power, W", 1.0),
    )
    for column, name, unit in wanted:
        found = devices[devices[column].notna()]
        if found.empty:
            continue
        points = [
            (line.middle(k), v / unit) for k, v in zip(found["slice"].tolist(), found[column].tolist(), strict=True)
        ]
        peaks = (found["util_max_pct"] if column == "util_pct" else found[column] / unit).tolist()
        panel = Panel(x, Scale(0, 100) if column == "util_pct" else linear(peaks), 84)
        panel.grid((v, words.tick(v)) for v in panel.y.ticks(3))
        if column == "util_pct":
            panel.area([(at, v, peak) for (at, v), peak in zip(points, peaks, strict=True)], "spread")
        panel.line(points, "device")
        row = readout.row(None, name.partition(",")[0])
        for k, (_, value), peak in zip(found["slice"].tolist(), points, peaks, strict=True):
            said = f"{words.significant(value)} {name.rpartition(' ')[2]}"
            values.setdefault(k, {})[row] = f"{said} (peak {words.significant(peak)})" if column == "util_pct" else said
        yield name, panel


def _mark_events(panel: Panel, line: Timeline, events: Sequence[Mapping[str, Any]], *, numbered: bool) -> None:
    for number, event in enumerate(events, start=1):
        at = line.at(event["time_ns"])
        panel.upright(min(max(at, 0.0), line.seconds), "event")
        if numbered:
            panel.text(min(max(at, 0.0), line.seconds), panel.height - 6, str(number), "event")
