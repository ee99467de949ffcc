"""The time line: latency as a heat map with its percentiles, rates and devices under it, on one axis that zooms.

Owns how the lanes are drawn; what lies in the slices is `timeline`'s, the zoom is `zoom.js`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tailrate.analysis.pages.html.figure import Readout, figure, legend
from tailrate.analysis.pages.html.markup import Html, tag
from tailrate.analysis.pages.html.svg import Panel, Scale, linear, time_ticks
from tailrate.analysis.pages.report.charts.metric_lanes import MetricLane
from tailrate.analysis.pages.report.charts.time_slices import Slices, heat
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.stats.array_types import Floats
from tailrate.analysis.steps.curves import EDGES_MS
from tailrate.analysis.text import words

Row = Mapping[str, Any]

_BINARY_GIGA = 2.0**30
NEAR = 0.02
"""Of the width: events that are nearer to each other have one label."""


@dataclass(slots=True, eq=False)
class _Chart:
    """What all lanes share: the axis, the endpoints' numbers, and what is read at each slice."""

    line: Timeline
    series: Mapping[str, int]
    short: Mapping[str, str]
    readout: Readout = field(default_factory=Readout)
    values: dict[int, dict[int, str]] = field(default_factory=dict)

    def panel(self, y: Scale, height: int) -> Panel:
        return Panel(Scale(0, self.line.seconds), y, height, zooms=True)

    def say(self, part: int, series: int | None, label: str, value: str) -> None:
        self.values.setdefault(part, {})[self.readout.row(series, label)] = value

    def points(self, values: Sequence[float]) -> Iterator[tuple[float, float | None]]:
        """The middle of each slice and its value, None where there is none."""
        for part, value in enumerate(values):
            yield self.line.middle(part), None if math.isnan(value) else value


def time_line(
    line: Timeline,
    slices: Mapping[str, Slices],
    devices: Mapping[str, Floats],
    device_kind: str,
    steps: Sequence[Row],
    events: Sequence[Row],
    series: Mapping[str, int],
    metrics: Sequence[MetricLane] = (),
) -> Html:
    """Everything that has a time, in lanes over one axis."""
    chart = _Chart(line, series, words.short_names(list(series)))
    shown = {name: found for name, found in slices.items() if name in series}
    top, lanes = _latency(chart, shown), list(_rates(chart, shown))
    lanes += _devices(chart, devices, device_kind)
    lanes += _metrics(chart, metrics)
    height = _steps_above(top, line, steps, series)
    for number, panel in enumerate((top, *(panel for _, panel in lanes))):
        if number:
            for step in steps:
                panel.upright(line.at(step["start_ns"]), "boundary")
        _mark_events(panel, line, events, numbered=not number)
    last = lanes[-1][1] if lanes else top
    last.x_ticks([(t, moment(t)) for t in time_ticks(line.seconds, 10)])
    for part, said in sorted(chart.values.items()):
        begin = part * line.slice_s
        span = f"{moment(begin)}–{moment(begin + line.slice_s)}"
        chart.readout.place(line.middle(part) / line.seconds, span, said)

    alternative = f"Chart over {words.duration(line.seconds)}: latency by {line.slice_s} s" + (
        f", and below it {', '.join(name for name, _ in lanes)}." if lanes else "."
    )
    drawn: list[Html] = [
        tag("p", "latency", class_="unit"),
        top.svg(alternative, above=height + 18, below=4 if lanes else 26),
    ]
    for name, panel in lanes:
        drawn += [tag("p", name, class_="unit"), panel.svg(None, above=8, below=26 if panel is last else 4)]
    note = (
        "Time since the start; strips on top: the steps and what they asked for, pale while settling. "
        "Drag over a part to look closer, double-click for all of it."
    )
    return figure(
        "timeline",
        "Latency, rate and devices",
        note,
        tag("div", legend(series, _keys(line, shown, devices)), zoom_buttons(), class_="keys"),
        drawn,
        chart.readout,
        seconds=line.seconds,
        slice=line.slice_s,
    )


def _keys(line: Timeline, slices: Mapping[str, Slices], devices: Mapping[str, Floats]) -> list[tuple[str, str]]:
    keys = [
        ("p99", f"P99 of each {line.slice_s} s"),
        ("p50", "P50"),
        ("heat", "successes of a slice by latency: the fuller, the more"),
    ]
    if any(found.failed.any() for found in slices.values()):
        keys.append(("failure", "failed requests"))
    if devices and (devices["throttled_pct"] > 0).any():
        keys.append(("held", "clocks held down"))
    return keys


def zoom_buttons() -> Html:
    buttons = (
        tag("button", text, type="button", data_zoom=act, aria_label=label)
        for act, text, label in (("in", "+", "Zoom in"), ("out", "−", "Zoom out"), ("all", "All", "Show all"))
    )
    said = tag("span", class_="range", role="status")
    return tag("div", said, buttons, class_="zoom", role="group", aria_label="Zoom into time")


def moment(seconds: float) -> str:
    """Time since the start as 1:05 or 1:02:05."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def _latency(chart: _Chart, slices: Mapping[str, Slices]) -> Panel:
    spans = {name: span for name, found in slices.items() if (span := found.rows())}
    low = min((EDGES_MS[first] for first, _ in spans.values()), default=1.0)
    high = max((EDGES_MS[last] for _, last in spans.values()), default=10.0)
    panel = chart.panel(Scale(float(low), float(high), log=True), 260)
    if spans:
        panel.grid(panel.y.labels(8, words.latency_tick))
    end = chart.line.slices * chart.line.slice_s
    for name, (first, last) in spans.items():
        n = chart.series[name]
        picture = heat(slices[name].counts, first, last)
        panel.image(picture, end, float(EDGES_MS[first]), float(EDGES_MS[last]), f"heat s{n}", n)
    for name, found in slices.items():
        n, short = chart.series[name], chart.short[name]
        for part in np.flatnonzero(found.n).tolist():
            chart.say(part, n, f"{short} P99", words.ms(float(found.p99_ms[part])))
            chart.say(part, n, f"{short} P50", words.ms(float(found.p50_ms[part])))
            if failed := int(found.failed[part]):
                chart.say(part, n, f"{short} failed", f"{failed} of {int(found.n[part])}")
                panel.glyph(chart.line.middle(part), 7, "M-3-3L3 3M-3 3L3-3", "failure", n)
        panel.line(chart.points(found.p50_ms.tolist()), f"p50 thin s{n}", n)
        panel.line(chart.points(found.p99_ms.tolist()), f"p99 thin s{n}", n)
    return panel


def _rates(chart: _Chart, slices: Mapping[str, Slices]) -> Iterator[tuple[str, Panel]]:
    """Offered by intended time and achieved by time of the answer; tokens by when they came."""
    line = chart.line
    lengths = np.full(line.slices, float(line.slice_s))
    lengths[-1] = max(1e-9, line.seconds - (line.slices - 1) * line.slice_s)  # may be shorter than the others
    if lengths[-1] < 0.2 * line.slice_s:  # too short to speak of a rate
        lengths[-1] = math.nan
    if slices:
        of = {name: {"offered": found.n, "achieved": found.answered} for name, found in slices.items()}
        yield "offered (dotted) and achieved, requests/s", _lane(chart, of, lengths)
    if streams := {name: {"tokens": found.tokens} for name, found in slices.items() if found.tokens is not None}:
        yield "tokens/s", _lane(chart, streams, lengths)


def _lane(chart: _Chart, counted: Mapping[str, Mapping[str, Any]], lengths: Any) -> Panel:
    """By endpoint and what was counted: the last of these is drawn in full, one before it dotted."""
    rates = {name: {what: counts / lengths for what, counts in found.items()} for name, found in counted.items()}
    every = np.nan_to_num([values for found in rates.values() for values in found.values()])
    panel = chart.panel(linear(every.ravel().tolist()), 84)
    panel.grid(panel.y.labels(3, words.rate_tick))
    for name, found in rates.items():
        n, short = chart.series[name], chart.short[name]
        busy = np.any([values > 0 for values in found.values()], axis=0)
        for part in np.flatnonzero(busy).tolist():
            for what, values in found.items():
                chart.say(part, n, f"{short} {what}", words.rate(float(values[part])))
        for kind, values in zip(("p50", "p99")[-len(found) :], found.values(), strict=True):
            panel.line(chart.points(np.where(busy, values, math.nan).tolist()), f"{kind} thin s{n}", n)
    return panel


def _devices(chart: _Chart, devices: Mapping[str, Floats], kind: str) -> Iterator[tuple[str, Panel]]:
    wanted = (
        ("util_pct", f"{kind} use, %", 1.0),
        ("mem_bytes", f"{kind} memory, GiB", _BINARY_GIGA),
        ("power_w", "power, W", 1.0),
        ("sm_mhz", f"{kind} clock, MHz", 1.0),
        ("temp_c", "temperature, °C", 1.0),
    )
    line = chart.line
    for column, name, unit in wanted if devices else ():
        known = np.flatnonzero(~np.isnan(devices[column]))
        if not len(known):
            continue
        spread = f"{column}_most" in devices
        parts, values = known.tolist(), (devices[column][known] / unit).tolist()
        least, most = (
            (devices[f"{column}_{end}"][known] / unit).tolist() if spread else values for end in ("least", "most")
        )
        panel = chart.panel(Scale(0, 100) if column == "util_pct" else linear(most), 84)
        panel.grid(panel.y.labels(3))
        if spread:
            band = [(line.middle(k), a, b) for k, a, b in zip(parts, least, most, strict=True)]
            panel.area(band, "spread")
        row = [math.nan] * line.slices
        for part, value, a, b in zip(parts, values, least, most, strict=True):
            row[part] = value
            said = f"{words.significant(value)} {name.rpartition(' ')[2]}"
            ends = (words.significant(a), words.significant(b))
            several = spread and ends[0] != ends[1]
            chart.say(part, None, name.partition(",")[0], f"{said} ({ends[0]}–{ends[1]})" if several else said)
        panel.line(chart.points(row), "device")
        if column == "sm_mhz":
            _held_down(chart, panel, devices)
        yield name, panel


def _metrics(chart: _Chart, lanes: Sequence[MetricLane]) -> Iterator[tuple[str, Panel]]:
    for lane in lanes:
        panel = chart.panel(linear([value for each in lane.lines for value in each.values.tolist()]), 84)
        panel.grid(panel.y.labels(3))
        for each in lane.lines:
            names = [name for name, number in chart.series.items() if number == each.series]
            label = f"{chart.short[names[0]]} {each.label}" if names and len(chart.series) > 1 else each.label
            for part in np.flatnonzero(~np.isnan(each.values)).tolist():
                said = f"{words.significant(float(each.values[part]))} {lane.unit}".strip()
                chart.say(part, each.series if names else None, label, said)
            kind = f"p99 thin s{each.series}" if names else "device"
            panel.line(chart.points(each.values.tolist()), kind, each.series if names else None)
        yield f"server: {lane.name}", panel


def _held_down(chart: _Chart, panel: Panel, devices: Mapping[str, Floats]) -> None:
    """Stripes where clocks were throttled, the higher the larger the share of the time."""
    for part in np.flatnonzero(devices["throttled_pct"] > 0).tolist():
        share = float(devices["throttled_pct"][part])
        begin = part * chart.line.slice_s
        height = max(2.0, 0.08 * share)
        end = min(chart.line.seconds, begin + chart.line.slice_s)
        panel.stripe(begin, end, panel.height - height, height, "held")
        chart.say(part, None, "clocks held down", f"{words.significant(share)} % of the time")


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
            asked = words.load(step["rate"], step.get("concurrency") or 0)
            panel.text((start + end) / 2, -height - 8, asked, "odd rate" if number % 2 else "rate")
    return height


def _mark_events(panel: Panel, line: Timeline, events: Sequence[Row], *, numbered: bool) -> None:
    places: dict[float, list[str]] = {}
    for number, event in enumerate(events, start=1):
        at = min(max(line.at(event["time_ns"]), 0.0), line.seconds)
        panel.upright(at, "event")
        near = next((place for place in places if abs(place - at) < NEAR * line.seconds), at)
        places.setdefault(near, []).append(str(number))
    for at, numbers in places.items() if numbered else ():
        # of many, the first and the last
        panel.text(
            at, panel.height - 6, ", ".join(numbers) if len(numbers) < 3 else f"{numbers[0]}–{numbers[-1]}", "event"
        )
