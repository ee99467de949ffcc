"""Memory, power and energy of the devices against offered rate: a small chart for each that was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailrate.analysis.pages.html.figure import Readout, figure, legend
from tailrate.analysis.pages.html.markup import Html, join, tag
from tailrate.analysis.pages.html.svg import Panel, Scale
from tailrate.analysis.pages.report.charts.by_rate import by_rate, doubts, middles
from tailrate.analysis.text import words

Row = Mapping[str, Any]

_NET = "net_joules_per_request"


@dataclass(frozen=True, slots=True)
class _Measure:
    id_: str
    title: str
    unit: str
    keys: tuple[str, ...]
    """The second one is drawn as a dotted line without marks."""
    of: float = 1.0


_MEASURES = (
    _Measure("memory", "Peak memory", "GiB", ("mem_peak_bytes",), 2.0**30),
    _Measure("power", "Mean power", "W", ("power_w",)),
    _Measure("joules", "Energy per success", "J", ("joules_per_request", _NET)),
)


def energy_charts(steps: Sequence[Row], series: Mapping[str, int]) -> Html | None:
    """None where no device was measured."""
    small = [_chart(measure, rows, series) for measure in _MEASURES if (rows := _known(measure, steps))]
    keys = [("p50", "energy above idle")] if any(row[_NET] is not None for row in steps) else []
    return join([legend(series, keys), tag("div", small, class_="multiples")]) if small else None


def _known(measure: _Measure, steps: Sequence[Row]) -> list[Row]:
    """The steps that tell it, in its unit."""
    kept = [row for row in steps if row[measure.keys[0]] is not None]
    return [{**row, **{key: row[key] / measure.of for key in measure.keys if row[key] is not None}} for row in kept]


def _chart(measure: _Measure, rows: Sequence[Row], series: Mapping[str, int]) -> Html:
    values = [float(row[key]) for row in rows for key in measure.keys if row[key] is not None]
    y = Scale(min(0.0, 1.06 * min(values)), 1.06 * max(values) if max(values) > 0 else 1.0)
    panel = Panel(Scale(0, max(float(row["offered_rps"]) for row in rows) * 1.04), y, 150)
    panel.grid(y.labels(4))
    panel.x_ticks(panel.x.labels(5, words.rate_tick))
    for name, n in series.items():
        mine = [row for row in rows if row["endpoint"] == name]
        for key, kind in zip(measure.keys, ("p99", "p50"), strict=False):
            panel.line(middles(mine, key), f"{kind} s{n}", n)
        for row in mine:
            hollow = " hollow" if doubts(row) else ""
            panel.dot(float(row["offered_rps"]), row[measure.keys[0]], f"dot s{n}{hollow}", n, radius=3)
    title = f"{measure.title}, {measure.unit}"
    label = f"Chart. {title}: from {words.significant(min(values))} to {words.significant(max(values))}."
    readout = _readout(measure, rows, series, panel.x)
    return figure(measure.id_, title, "", Html(""), panel.svg(label, above=8, below=26), readout)


def _readout(measure: _Measure, rows: Sequence[Row], series: Mapping[str, int], x: Callable[[float], float]) -> Readout:
    readout, short = Readout(), words.short_names(list(series))
    written = words.with_unit(f" {measure.unit}")
    for rate, same in by_rate(rows).items():
        said: dict[int, list[str]] = {}
        for row in same:
            for key in measure.keys:
                label = readout.row(series[row["endpoint"]], short[row["endpoint"]] + " above idle" * (key == _NET))
                said.setdefault(label, []).extend([written(row[key])] if row[key] is not None else [])
        at = math.fsum(float(row["offered_rps"]) for row in same) / len(same)
        readout.place(x(at), f"{words.rate(rate)} offered", {k: ", ".join(found) for k, found in said.items() if found})
    return readout
