"""Latency by percentile, one figure for each rate that was asked for, of which a reader chooses the one to see.

x is 1 ÷ (1 − p) on a logarithmic scale, so that 90, 99 and 99.9 per cent are as far apart as what lies above them is
rarer. All figures share their scales, and each shows the other rates pale behind its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tailrate.analysis.pages.html.figure import Readout, figure, legend, one_of
from tailrate.analysis.pages.html.markup import Html, tag
from tailrate.analysis.pages.html.svg import Panel, Point, Scale, fitting
from tailrate.analysis.pages.report.charts.by_rate import asked_for, middle
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.text import words

Row = Mapping[str, Any]
Curve = dict[float, float]
"""Percentile → latency in ms, infinite where failures are reached."""

_ROUND = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999)
_BEHIND = "percentiles-behind"
_TARGET = "M-7 -11H7L0 0Z"


def percentile_charts(
    steps: Sequence[Row], curves: Sequence[Row], series: Mapping[str, int], slos: Sequence[Slo]
) -> Html | None:
    """None where no step has a distribution."""
    found = {(row["index"], row["endpoint"]): curve for row in curves if (curve := _restored(row))}
    drawn = [row for row in steps if (row["index"], row["endpoint"]) in found]
    if not drawn:
        return None
    wanted = ((slo, slo.percentile or 0.0, slo.latency_ms or 0.0) for slo in slos)
    targets = {slo: (percentile, ms) for slo, percentile, ms in wanted if ms and 0 < percentile < 100}
    by_asked = asked_for(drawn)
    full = [asked for asked, rows in by_asked.items() if {row["endpoint"] for row in rows} == set(series)]
    first = (full or list(by_asked))[-1]

    rarest = max(_rarity(p) for p in (*map(max, found.values()), *(p for p, _ in targets.values())))
    heights = [ms for curve in found.values() for ms in curve.values()] + [1.1 * ms for _, ms in targets.values()]
    behind = Panel(Scale(1.0, max(rarest, 10.0) * 1.15, log=True), fitting(heights), 300)
    behind.grid(behind.y.labels(8, words.latency_tick))
    behind.x_ticks([(_rarity(p), f"{p:g}\u00a0%" if p else "0") for p in _ROUND if _rarity(p) <= behind.x.high])
    for row in drawn if len(by_asked) > 1 else ():
        _line(behind, found[row["index"], row["endpoint"]], "pale", series[row["endpoint"]])
    for percentile, ms in targets.values():
        behind.glyph(_rarity(percentile), behind.height * (1 - behind.y(ms)), _TARGET, "target")
    keys = [("pale", "the other rates")] if len(by_asked) > 1 else []
    keys += [("target", f"objective {slo}: to stay below") for slo in targets]

    figures = {}
    for number, (asked, rows) in enumerate(by_asked.items()):
        panel = Panel(behind.x, behind.y, behind.height)
        # written once, as it is the same for all
        same = tag("use", href=f"#{_BEHIND}") if number else tag("g", behind.marks, id=_BEHIND, class_="plot")
        panel.marks.append(same)
        each = {name: middle([row for row in rows if row["endpoint"] == name], "p99_ms") for name in series}
        chosen = {name: found[row["index"], row["endpoint"]] for name, row in each.items() if row}
        several = " Of several rounds, the one in the middle." if len(rows) > len(chosen) else ""
        figures[asked] = _figure(number, asked, chosen, panel, series, keys, several)
    return one_of(figures, first, "Rate to show")


def _restored(row: Row) -> Curve:
    """Null is infinite; the fastest arrival of all is no part of the curve."""
    points = zip(row["percentile"], row["latency_ms"], strict=True)
    return {float(p): math.inf if ms is None else float(ms) for p, ms in points if p > 0}


def _rarity(percentile: float) -> float:
    """One of so many is slower."""
    return 100 / (100 - percentile)


def _line(panel: Panel, curve: Curve, class_: str, n: int) -> None:
    """As far as it is finite, and from there to the top."""
    panel.line(_until_infinite(curve), f"{class_} s{n}", n)


def _until_infinite(curve: Curve) -> Iterator[Point]:
    for percentile, ms in curve.items():
        yield _rarity(percentile), ms
        if math.isinf(ms):
            return


def _figure(
    number: int,
    asked: str,
    chosen: Mapping[str, Curve],
    panel: Panel,
    series: Mapping[str, int],
    keys: Sequence[tuple[str, str]],
    several: str,
) -> Html:
    short = words.short_names(list(series))
    readout = Readout()
    labels = {name: readout.row(series[name], short[name]) for name in chosen}
    ends = []
    lost: list[tuple[str, str]] = []
    for name, curve in chosen.items():
        n = series[name]
        _line(panel, curve, "p99", n)
        at, ms = list(_until_infinite(curve))[-1]
        if ms == math.inf:
            panel.dot(at, math.inf, f"dot s{n}", n)
            lost = [("arrow", "infinite: failures are reached")]
        ends.append((ms or 0.0, short[name], f"s{n}", n))
    panel.end_labels(ends)
    for percentile in sorted({p for curve in chosen.values() for p in curve}):
        said = {labels[name]: words.ms(curve[percentile]) for name, curve in chosen.items() if percentile in curve}
        share = f"{percentile:.{4 if percentile < 99 else 6}g} %"
        title = f"{share} are faster, 1 of {words.significant(_rarity(percentile))} slower"
        readout.place(panel.x(_rarity(percentile)), title, said)
    told = (
        f"{name}: " + ", ".join(f"P{p:g} {words.ms(curve[p])}" for p in _ROUND[1:] if p in curve)
        for name, curve in chosen.items()
    )
    return figure(
        f"percentiles-{number}",
        f"Latency by percentile at {asked}",
        f"Share of arrivals that were faster; each step to the right is ten times as rare.{several}",
        legend({name: series[name] for name in chosen}, [*keys, *lost]),
        panel.svg(f"Chart at {asked}. {'. '.join(told)}.", above=14, below=26),
        readout,
        room=2 + min(24, max(len(short[name]) for name in chosen)),
    )
