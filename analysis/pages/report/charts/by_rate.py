"""The pictures by rate: hockey stick, and achieved against offered rate.

Each function turns rows of the report into one `figure`. The values that a figure shows on hover are written here, by
`words`, so what a hover shows is what the tables show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailrate.analysis.pages.html.figure import Readout, figure, legend
from tailrate.analysis.pages.html.markup import Html
from tailrate.analysis.pages.html.svg import Panel, Scale, fitting, linear
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.text import words

Row = Mapping[str, Any]


def doubts(row: Row) -> list[str]:
    """Why a step is drawn hollow; empty for a step that can be taken as it is."""
    if row["trusted"] and not row["overloaded"]:
        return []
    return [str(reason) for reason in row["reasons"]] or ["overloaded" if row["overloaded"] else "not trusted"]


def by_rate(rows: Sequence[Row]) -> dict[float, list[Row]]:
    found: dict[float, list[Row]] = {}
    for row in sorted(rows, key=lambda r: float(r["rate"])):
        found.setdefault(float(row["rate"]), []).append(row)
    return found


def asked_for(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """What was asked for, as `200/s` or `16 under way`, and the steps that were; the lowest first."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda r: float(r["rate"])):
        found.setdefault(str(row["asked"]), []).append(row)
    return found


def middle(rows: Sequence[Row], key: str) -> Row | None:
    """The median step of those in which this is known, as rounds repeat a rate; infinity counts as large."""
    known = sorted((row for row in rows if row[key] is not None), key=lambda r: float(r[key]))
    return known[len(known) // 2] if known else None


def middles(rows: Sequence[Row], key: str) -> list[tuple[float, float | None]]:
    """A point for each rate."""
    found = []
    for same in by_rate(rows).values():
        row = middle(same, key)
        found.append((float((row or same[0])["offered_rps"]), float(row[key]) if row else None))
    return found


@dataclass(frozen=True, slots=True)
class Figure:
    """A time of which a step has P50 and P99, in columns that begin alike."""

    prefix: str
    name: str
    note: str
    limited: str | None = None
    """What an objective on it calls it."""

    def limits(self, slos: Sequence[Slo]) -> list[tuple[float, str]]:
        """(ms, what the objective says)"""
        if self.limited is None:
            return []
        found = [(slo.bounds[self.limited].ms, slo) for slo in slos if self.limited in slo.bounds]
        return [(ms, slo.bounds[self.limited].text(self.limited) if self.limited else str(slo)) for ms, slo in found]

    def interval(self, row: Row) -> tuple[float, float] | None:
        low, high = (row.get(f"{self.prefix}p99_{end}_ms") for end in ("low", "high"))
        return None if low is None or high is None else (low, high)


LATENCY = Figure("", "Latency", "Latency from the intended start over requests offered per second", "")


def hockey_stick(
    steps: Sequence[Row], series: Mapping[str, int], slos: Sequence[Slo], id_: str = "hockey", of: Figure = LATENCY
) -> Html:
    """Offered rate against P50 and P99, with the interval of P99 and the objective."""
    p50_ms, p99_ms = f"{of.prefix}p50_ms", f"{of.prefix}p99_ms"
    limits = of.limits(slos)
    heights = [float(row[key]) for row in steps for key in (p50_ms, p99_ms) if row[key]]
    heights += [end for row in steps for end in of.interval(row) or () if end]
    heights += [ms * 1.1 for ms, _ in limits]
    panel = Panel(Scale(0, max(float(row["offered_rps"]) for row in steps) * 1.04), fitting(heights), 340)
    panel.grid(panel.y.labels(9, words.latency_tick))
    panel.x_ticks(panel.x.labels(9, words.rate_tick))
    short = words.short_names(list(series))
    ends: list[tuple[float, str, str, int | None]] = []
    for ms, _ in limits:
        panel.rule(ms, "slo")
        ends.append((ms, "objective", "slo", None))
    for endpoint, n in series.items():
        mine = [row for row in steps if row["endpoint"] == endpoint]
        banded = bands(panel, mine, n, of)
        for key, kind in ((p50_ms, "p50"), (p99_ms, "p99")):
            points = middles(mine, key)
            panel.line(points, f"{kind} s{n}", n)
            if known := [y for _, y in points if y is not None]:
                ends.append((known[-1], f"{short[endpoint]} {kind.upper()}", f"s{n}", n))
        for row in mine:
            x, hollow = float(row["offered_rps"]), " hollow" if doubts(row) else ""
            if (span := of.interval(row)) and row["rate"] not in banded:
                panel.whisker(x, *span, f"whisker s{n}", n)
            if row[p50_ms] is not None:
                panel.dot(x, row[p50_ms], f"dot s{n}{hollow}", n, radius=2.5)
            if row[p99_ms] is not None:
                panel.dot(x, row[p99_ms], f"dot s{n}{hollow}", n)
    panel.end_labels(ends)
    keys = [("p99", "P99"), ("p50", "P50")]
    if any(map(of.interval, steps)):
        keys.append(("band", "interval of P99"))
    keys += [("slo", f"objective: {said}") for _, said in limits]
    if any(doubts(row) for row in steps):
        keys.append(("hollow", "overloaded or not trusted"))
    if any(row[key] == math.inf for row in steps for key in (p50_ms, p99_ms)):
        keys.append(("arrow", "infinite: lost to failures"))
    beside = ("achieved_rps", "errors") if of is LATENCY else ()
    return figure(
        id_,
        f"{of.name} against offered rate",
        f"{of.note}; a failure is infinitely late." if of.limited is not None else f"{of.note}.",
        legend(series, keys),
        panel.svg(_in_words(steps, series, of), above=26, below=26),
        _readout(panel, steps, series, short, (p99_ms, p50_ms, *beside), of),
        room=2 + min(24, max(len(label) for _, label, _, _ in ends)),
    )


def bands(panel: Panel, rows: Sequence[Row], n: int, of: Figure = LATENCY) -> set[float]:
    """The interval of P99 as an area where neighbouring rates have one; returns these rates."""
    runs: list[list[tuple[Row, float, float]]] = [[]]
    for same in by_rate(rows).values():
        row = middle(same, f"{of.prefix}p99_ms")
        if row and (span := of.interval(row)) and math.isfinite(span[1]):
            runs[-1].append((row, *span))
        elif runs[-1]:
            runs.append([])
    long = [run for run in runs if len(run) > 1]
    for run in long:
        panel.area([(float(row["offered_rps"]), low, high) for row, low, high in run], f"band s{n}", n)
    return {row["rate"] for run in long for row, _, _ in run}


def _in_words(steps: Sequence[Row], series: Mapping[str, int], of: Figure) -> str:
    """The text alternative of the hockey stick."""
    parts = []
    for endpoint in series:
        mine = [row for row in steps if row["endpoint"] == endpoint]
        points = zip(by_rate(mine), middles(mine, f"{of.prefix}p99_ms"), strict=True)
        said = [f"{words.ms(p99)} at {words.rate(rate)}" for rate, (_, p99) in points]
        if said:
            parts.append(f"P99 of {endpoint}: {', '.join(said)}")
    return f"Chart{f' of {of.name.lower()}' if of is not LATENCY else ''}. {'. '.join(parts)}."


def _cell(row: Row, key: str, of: Figure) -> str:
    if key.endswith("p99_ms"):
        span = of.interval(row)
        return words.ms(row[key]) + (f" ({words.interval(*span)})" if span else "")
    if key == "errors":
        return f"{words.count(row['errors'])} of {words.count(row['n'])}"
    return words.ms(row[key]) if key.endswith("_ms") else words.rate(row[key])


_SAID = {"p99_ms": "P99", "p50_ms": "P50", "achieved_rps": "achieved", "goodput_rps": "goodput", "errors": "failed"}


def _readout(
    panel: Panel,
    steps: Sequence[Row],
    series: Mapping[str, int],
    short: Mapping[str, str],
    keys: Sequence[str],
    of: Figure = LATENCY,
) -> Readout:
    readout = Readout()
    said = {key: _SAID[key.removeprefix(of.prefix)] for key in keys}
    labels = {(n, key): readout.row(n, f"{short[name]} {said[key]}") for name, n in series.items() for key in keys}
    for rate, rows in by_rate(steps).items():
        values: dict[int, str] = {}
        for endpoint, n in series.items():
            mine = [row for row in rows if row["endpoint"] == endpoint]
            for key in keys if mine else ():
                if key != "errors" or any(row["errors"] for row in mine):
                    values[labels[n, key]] = ", ".join(_cell(row, key, of) for row in mine)
        x = sum(float(row["offered_rps"]) for row in rows) / len(rows)
        readout.place(panel.x(x), f"{words.rate(rate)} offered", values)
    return readout


def achieved(steps: Sequence[Row], series: Mapping[str, int]) -> Html:
    """Achieved against offered rate: below the diagonal the endpoint (or the generator) is saturated."""
    scale = linear(float(row[key]) for row in steps for key in ("offered_rps", "achieved_rps"))
    panel = Panel(scale, scale, 220)
    panel.grid(scale.labels(5, words.rate_tick))
    panel.x_ticks(scale.labels(6, words.rate_tick))
    panel.line([(0, 0), (scale.high, scale.high)], "diagonal")
    for endpoint, n in series.items():
        mine = [row for row in steps if row["endpoint"] == endpoint]
        panel.line(middles(mine, "achieved_rps"), f"p99 s{n}", n)
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
