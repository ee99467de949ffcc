"""Gaps between tokens by where in the answer they are: one figure for each load that was asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tailrate.analysis.pages.html.figure import Readout, figure, legend, one_of
from tailrate.analysis.pages.html.markup import Html
from tailrate.analysis.pages.html.svg import Panel, Scale, fitting
from tailrate.analysis.text import words

Row = Mapping[str, Any]


def gaps_by_position(asked: Mapping[str, Sequence[Row]], series: Mapping[str, int]) -> Html | None:
    """By what was asked for, lowest first; all share their scales. None where no answer has a gap."""
    every = [row for rows in asked.values() for row in rows]
    if not every:
        return None
    heights = [row[key] for row in every for key in ("p50_ms", "p99_ms") if row[key]]
    scales = Scale(1.0, max(2.0, *(row["last"] for row in every)), log=True), fitting(heights)
    drawn = {
        name: _figure(number, name, rows, Panel(*scales, 240), series)
        for number, (name, rows) in enumerate(asked.items())
    }
    return one_of(drawn, list(drawn)[-1], "Load to show")


def _figure(number: int, asked: str, rows: Sequence[Row], panel: Panel, series: Mapping[str, int]) -> Html:
    panel.grid(panel.y.labels(7, words.latency_tick))
    panel.x_ticks(panel.x.labels(9, words.count, whole=True))
    readout, told, ends = Readout(), [], []
    mine = {name: [row for row in rows if row["endpoint"] == name] for name in series}
    short = words.short_names(list(series))
    values: dict[tuple[int, int], dict[int, str]] = {}
    for name, found in mine.items():
        n = series[name]
        for key in ("p50_ms", "p99_ms") if found else ():
            kind = key.removesuffix("_ms")
            points = [(_middle(row), row[key]) for row in found]
            panel.line(points, f"{kind} s{n}", n)
            known = [y for _, y in points if y is not None]
            ends += [(known[-1], f"{short[name]} {kind.upper()}", f"s{n}", n)] if known else []
            label = readout.row(n, f"{short[name]} {kind.upper()}")
            for row in found:
                values.setdefault((row["first"], row["last"]), {})[label] = words.ms(row[key])
        if found:
            begin, end = (words.ms(found[place]["p50_ms"]) for place in (0, -1))
            told.append(f"{name}: P50 {begin} after the first token, {end} at the end")
    panel.end_labels(ends)
    for (first, last), said in sorted(values.items()):
        which = f"gap {words.count(first)}" if first == last else f"gaps {words.count(first)} to {words.count(last)}"
        readout.place(panel.x(math.sqrt(first * last)), which, said)
    return figure(
        f"positions-{number}",
        f"Gaps by their place in the answer at {asked}",
        "From one content event of an answer to the next, successes only; P99 where there are a hundred.",
        legend({name: series[name] for name, found in mine.items() if found}, [("p99", "P99"), ("p50", "P50")]),
        panel.svg(f"Chart at {asked}. {'. '.join(told)}.", above=14, below=26),
        readout,
        room=2 + min(24, max((len(label) for _, label, _, _ in ends), default=0)),
    )


def _middle(row: Row) -> float:
    return math.sqrt(row["first"] * row["last"])
