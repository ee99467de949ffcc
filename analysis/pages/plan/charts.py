"""The pictures of a plan: latency over rate, over replicas, cost over rate, and the model held against measurements.

`plan.js` draws the first three again for other circumstances, with the same marks and classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tailrate.analysis.pages.html.figure import Readout, figure, legend
from tailrate.analysis.pages.html.markup import Html, tag
from tailrate.analysis.pages.html.svg import Panel, Scale, fitting, linear
from tailrate.analysis.pages.plan.curves import Knees, needed
from tailrate.analysis.pages.plan.view import PlanView, VariantView
from tailrate.analysis.text import words

TALL, LOW = 340, 240
STEPS = 200
"""Rates at which costs are looked at."""
OFF = 0.10
"""What the band around equality shows."""


def hockey_stick(view: PlanView) -> Html:
    """Latency against rate of each variant's planned fleet."""
    drawn = [(one, view.curves[one.series].by_rate) for one in view.answered]
    ceiling = 2.5 * view.limit_ms
    lowest = min((p50 for _, points in drawn for _, p50, _ in points), default=view.limit_ms / 10)
    knees = [float((one.answer or {})["knee_rps"] or 0) for one in view.answered]
    panel = Panel(Scale(0, 1.15 * max(view.rate_rps, *knees)), fitting([lowest, ceiling]), TALL)
    readout = Readout()
    beyond = highest(view)
    if beyond is not None and beyond < panel.x.high:
        panel.stripe(beyond, panel.x.high, 0, TALL, "beyond")
    panel.grid(panel.y.labels(8, words.latency_tick))
    panel.x_ticks(panel.x.labels(8, words.rate_tick))
    panel.rule(view.limit_ms, "slo")
    panel.upright(view.rate_rps, "demand")
    panel.text(view.rate_rps, -8, words.rate(view.rate_rps), "demand")
    ends: list[tuple[float, str, str, int | None]] = [(view.limit_ms, "objective", "slo", None)]
    for one, points in drawn:
        n, inside = one.series, [point for point in points if point[0] <= panel.x.high]
        for place, kind in ((1, "p50"), (2, "p99")):
            line = [(point[0], below(point[place], ceiling)) for point in inside]
            panel.line(line, f"{kind} s{n}", n)
            if finite := [y for _, y in line if math.isfinite(y)]:
                ends.append((finite[-1], f"{one.short} {'P50' if place == 1 else view.percentile}", f"s{n}", n))
        answer = one.answer or {}
        if answer["knee_rps"]:
            panel.dot(float(answer["knee_rps"]), view.limit_ms, f"dot s{n}", n)
    rows = [
        (points, readout.row(one.series, f"{one.short} {name}"), place)
        for one, points in drawn
        for place, name in ((2, view.percentile), (1, "P50"))
    ]
    for rate in sorted(rate for _, points in drawn for rate, _, _ in points if rate <= panel.x.high):
        there = [row for row in rows if row[0][0][0] <= rate <= row[0][-1][0]]
        values = {label: words.ms(between(points, rate, place)) for points, label, place in there}
        readout.place(panel.x(rate), words.rate(rate), values)
    panel.end_labels(ends)
    keys = [
        ("p99", tag("span", view.percentile, data_fill="percentile")),
        ("p50", "P50"),
        ("slo", "objective"),
        ("dot", "knee"),
    ]
    keys += [("demand", "planned rate"), ("beyond", f"above the highest load measured{_of_best(view)}")]
    fleets = ", ".join(f"{words.count((one.answer or {})['replicas'])} of {one.short}" for one in view.answered)
    return figure(
        "latency",
        "Latency against rate",
        f"Simulated with every replica up: {fleets}.",
        legend(view.series, keys),
        panel.svg(_in_words(view), above=26, below=26),
        readout,
        room=2 + min(24, max(len(label) for _, label, _, _ in ends)),
    )


def highest(view: PlanView) -> float | None:
    """The highest rate per replica that was measured, for all that are planned of the best variant."""
    best = view.best
    if best is None or best.answer is None:
        return None
    return float(best.calibration["highest_rps"]) * int(best.answer["replicas"])


def _of_best(view: PlanView) -> str:
    return f" of {view.best.short}" if view.best and len(view.variants) > 1 else ""


def between(points: Sequence[tuple[float, ...]], x: float, place: int) -> float:
    """On the straight line between the two points around x."""
    k = min(len(points) - 1, next(k for k, point in enumerate(points) if point[0] >= x))
    (a, low), (b, high) = ((points[n][0], points[n][place]) for n in (max(0, k - 1), k))
    return high if a == b or math.isinf(high) else low + (high - low) * (x - a) / (b - a)


def below(value: float, ceiling: float) -> float:
    """What is above leaves at the top."""
    return value if value <= ceiling else math.inf


def _in_words(view: PlanView) -> str:
    said = [
        f"{one.endpoint}: {view.percentile} {words.ms((one.answer or {})['p99_ms'])} at {words.rate(view.rate_rps)}, "
        f"knee at {words.rate((one.answer or {})['knee_rps'])}"
        for one in view.answered
    ]
    return f"Chart. {'; '.join(said)}."


def by_replicas(view: PlanView) -> Html:
    """What a replica more or less does to latency at the planned rate."""
    drawn = [(one, view.curves[one.series].by_size) for one in view.answered]
    counts = [n for _, points in drawn for n, _ in points]
    highest_ms = max(y for _, points in drawn for _, y in points)
    ceiling = max(1.2 * view.limit_ms, min(2.5 * view.limit_ms, highest_ms))
    panel = Panel(Scale(min(counts) - 0.5, max(counts) + 0.5), linear([ceiling]), LOW)
    readout = Readout()
    panel.grid(panel.y.labels(5, words.latency_tick))
    panel.x_ticks(panel.x.labels(8, whole=True))
    panel.rule(view.limit_ms, "slo")
    for one, points in drawn:
        n, planned = one.series, (one.answer or {})["replicas"]
        panel.line([(k, below(y, ceiling)) for k, y in points], f"p99 s{n}", n)
        row = readout.row(n, f"{one.short} {view.percentile}")
        for k, y in points:
            panel.dot(
                k, below(y, ceiling), f"dot s{n}{'' if k == planned else ' hollow'}", n, radius=5 if k == planned else 3
            )
            readout.place(panel.x(k), f"{words.count(k)} replicas", {row: words.ms(y)})
    readout.places.sort(key=lambda place: place[0])
    lost = f"; with {view.n_plus} lost, read {view.n_plus} to the left" if view.n_plus else ""
    return figure(
        "replicas",
        f"{view.percentile} by replicas",
        f"At {words.rate(view.rate_rps)}; filled: planned{lost}.",
        legend(view.series, [("slo", "objective")]),
        panel.svg(
            f"Chart. {view.percentile} by number of replicas at {words.rate(view.rate_rps)}.", above=10, below=26
        ),
        readout,
    )


def cost(view: PlanView) -> Html:
    """What each rate costs: stairs, a step for each device."""
    priced = view.found["prices"]["gpu_hour"] is not None
    unit = float(view.found["prices"]["gpu_hour"]) if priced else 1.0
    lines = [(one, list(_stairs(one, view.curves[one.series].knees, view))) for one in view.answered]
    top = linear([unit * devices for _, points in lines for _, devices in points])
    panel = Panel(Scale(0, view.most_rps), top, LOW)
    readout = Readout()
    panel.grid(panel.y.labels(5))
    panel.x_ticks(panel.x.labels(5, words.rate_tick))
    panel.upright(view.rate_rps, "demand")
    panel.text(view.rate_rps, -4, words.rate(view.rate_rps), "demand")
    for one, points in lines:
        corners = [corner for (a, y), (b, _) in pairwise(points) for corner in ((a, y), (b, y))]
        panel.line([(x, unit * y) for x, y in corners], f"p99 s{one.series}", one.series)
        row = readout.row(one.series, one.short)
        for rate, devices in points[:: STEPS // 40]:
            said = f"{words.count(devices)} {view.devices}" + (f", {view.money(unit * devices)}" if priced else "")
            readout.place(panel.x(rate), words.rate(rate), {row: said})
    readout.places = _merged(readout)
    what = f"{view.found['prices']['currency'] or 'Cost'} an hour" if priced else view.devices
    spare = f", {view.n_plus} of the replicas to spare" if view.n_plus else ""
    return figure(
        "cost",
        f"{what} against rate",
        f"As many {view.devices} as hold the objective{spare}" + ("; without electricity." if priced else "."),
        legend(view.series),
        panel.svg(f"Chart. {what} against rate, by variant.", above=16, below=26),
        readout,
    )


def _stairs(one: VariantView, knees: Knees, view: PlanView) -> Iterator[tuple[float, float]]:
    """(rate, devices) at many rates."""
    for k in range(STEPS + 1):
        rate = view.most_rps * k / STEPS
        replicas = needed(knees, max(rate, 1e-9))
        if replicas is not None:
            yield rate, math.ceil((replicas + view.n_plus) / one.per_gpu)


def _merged(readout: Readout) -> list[tuple[float, str, list[str | None]]]:
    """One place for each x, with the values of all variants there."""
    found: dict[float, tuple[float, str, list[str | None]]] = {}
    for x, title, values in readout.places:
        row = found.setdefault(x, (x, title, [None] * len(readout.labels)))[2]
        for k, value in enumerate(values):
            row[k] = value if value is not None else row[k]
    return sorted(found.values(), key=lambda place: place[0])


def predictions(view: PlanView) -> Html | None:
    """Predicted against measured, each rate by a model that had not seen it."""
    rows = [
        (one, row)
        for one in view.variants
        for row in one.validation["rows"]
        if (row["measured"]["p99_ms"] or 0) > 0 and (row["predicted"]["p99_ms"] or 0) > 0
    ]
    if not rows:
        return None
    values = [row[side][key] for _, row in rows for side in ("measured", "predicted") for key in ("p50_ms", "p99_ms")]
    known = [float(value) for value in values if value]
    scale = fitting(known)
    panel = Panel(scale, scale, 300)
    panel.grid(panel.y.labels(6, words.latency_tick))
    panel.x_ticks(scale.labels(6, words.latency_tick))
    ends = (scale.low * (1 + OFF), scale.high / (1 + OFF))
    panel.area([(x, x * (1 - OFF), x * (1 + OFF)) for x in ends], "spread")
    panel.line([(scale.low, scale.low), (scale.high, scale.high)], "diagonal")
    readout = Readout()
    labels = {one.series: readout.row(one.series, f"{one.short} P99") for one in view.variants}
    for one, row in rows:
        n, seen, said = one.series, row["measured"], row["predicted"]
        if seen["p50_ms"] and said["p50_ms"]:
            panel.dot(seen["p50_ms"], said["p50_ms"], f"dot s{n} hollow", n, radius=3)
        low, high = row["p99_predicted_ms"]
        if low is not None and high is not None:
            panel.whisker(seen["p99_ms"], low, min(high, scale.high), f"whisker s{n}", n)
        low, high = row["p99_measured_ms"] or (None, None)
        if low is not None:
            panel.lying(said["p99_ms"], max(low, scale.low), min(high or scale.high, scale.high), f"whisker s{n}", n)
        panel.dot(seen["p99_ms"], said["p99_ms"], f"dot s{n}", n)
        both = f"{words.ms(said['p99_ms'])} predicted, {words.ms(seen['p99_ms'])} measured"
        readout.place(panel.x(seen["p99_ms"]), words.rate(row["rate"]), {labels[n]: both})
    readout.places.sort(key=lambda place: place[0])
    return figure(
        "predictions",
        "Predicted against measured",
        f"Each rate by a model fitted without it; the band is ±{OFF:.0%}, bars are intervals of P99.".replace(
            "%", " %"
        ),
        legend(view.series, [("solid", "P99"), ("hollow", "P50")]),
        panel.svg("Chart. Predicted against measured latency; the table beside it has the values.", above=10, below=26),
        readout,
    )
