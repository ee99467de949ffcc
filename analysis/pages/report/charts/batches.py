"""Batches: how large they were at each rate, and what a larger one costs and buys.

Sizes stand alone up to `_SINGLE` rows and in octaves (17–32, 33–64 …) where there are larger ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tailrate.analysis.pages.html.figure import Readout, figure, legend
from tailrate.analysis.pages.html.markup import Html, join, tag
from tailrate.analysis.pages.html.svg import Panel, Scale, linear
from tailrate.analysis.pages.report.charts.by_rate import asked_for
from tailrate.analysis.text import words

Row = Mapping[str, Any]

_SINGLE = 16
_MOST_RATES = 8
"""Small charts of one size; more are left to `report.json`."""
_FEW = 30
"""Requests under which a mean is drawn hollow."""


def batch_charts(steps: Sequence[Row], batches: Sequence[Row], series: Mapping[str, int]) -> Html | None:
    """None where the server tells no sizes; one sentence where they never differ."""
    known = [row for row in batches if row["endpoint"] in series]
    if not known:
        return None
    sizes = {row["batch_rows"] for row in known}
    if len(sizes) == 1:
        return tag("p", f"Every request ran in a batch of {words.count(sizes.pop())}, so there is nothing to compare.")
    bars = groups(max(sizes))
    asked = asked_for(steps)
    shown = list(asked)
    if len(shown) > _MOST_RATES:
        shown = [shown[round(k * (len(shown) - 1) / (_MOST_RATES - 1))] for k in range(_MOST_RATES)]
    small = []
    for number, name in enumerate(shown):
        steps_of = {(row["index"], row["endpoint"]) for row in asked[name]}
        mine = [row for row in known if (row["index"], row["endpoint"]) in steps_of]
        if mine:
            small.append(_distribution(number, name, mine, bars, series))
    left_out = f", at {len(shown)} of the {len(asked)} rates" if len(shown) < len(asked) else ""
    few = any(row["requests"] < _FEW for row in together(known))
    return join(
        [
            tag("p", f"Share of the requests that ran in a batch of so many rows{left_out}."),
            legend(series, [("hollow", f"mean of fewer than {_FEW} requests")] if few else []),
            tag("div", small, class_="multiples small"),
            tag("div", _costs(together(known), series), class_="multiples"),
        ]
    )


def together(batches: Sequence[Row]) -> list[Row]:
    """All steps of an endpoint as one row per batch size, each request counting the same."""
    found: dict[str, dict[int, list[Row]]] = {}
    for row in batches:
        found.setdefault(row["endpoint"], {}).setdefault(row["batch_rows"], []).append(row)
    return [_sum(endpoint, rows, same) for endpoint, sizes in found.items() for rows, same in sorted(sizes.items())]


def _sum(endpoint: str, rows: int, same: Sequence[Row]) -> Row:
    timed = [row for row in same if row["compute_ms"]]
    weight = sum(row["requests"] for row in timed)
    compute_ms = sum(row["compute_ms"] * row["requests"] for row in timed) / weight if weight else None
    rate = 1e3 * rows / compute_ms if compute_ms and any(row["rows_per_second"] for row in timed) else None
    requests = sum(row["requests"] for row in same)
    return {
        "endpoint": endpoint,
        "batch_rows": rows,
        "requests": requests,
        "compute_ms": compute_ms,
        "rows_per_second": rate,
    }


HEADS = ("endpoint", "rows of the batch", "requests", "computing, ms", "rows/s while computing")


def batch_rows(batches: Sequence[Row]) -> list[list[str]]:
    """All sizes, under `HEADS`."""
    return [
        [
            row["endpoint"],
            words.count(row["batch_rows"]),
            words.count(row["requests"]),
            words.significant(row["compute_ms"]),
            words.significant(row["rows_per_second"]),
        ]
        for row in together(batches)
    ]


def groups(most: int) -> list[tuple[int, int]]:
    """The sizes that share a bar, from and to."""
    if most <= _SINGLE:
        return [(rows, rows) for rows in range(1, most + 1)]
    return [(1, 1), (2, 2)] + [((1 << k) + 1, 2 << k) for k in range(1, (most - 1).bit_length())]


def named(group: tuple[int, int]) -> str:
    return f"{group[0]}" if group[0] == group[1] else f"{group[0]}–{group[1]}"


def _distribution(
    number: int, asked: str, rows: Sequence[Row], bars: Sequence[tuple[int, int]], series: Mapping[str, int]
) -> Html:
    panel = Panel(Scale(0, len(bars)), Scale(0, 1), 110)
    panel.grid((v, f"{100 * v:g}\u00a0%") for v in (0, 0.5, 1))
    every = -(-len(bars) // (8 if bars[-1][0] == bars[-1][1] else 4))
    panel.x_ticks([(k + 0.5, named(bar)) for k, bar in enumerate(bars) if k % every == 0])
    short, readout = words.short_names(list(series)), Readout()
    totals = {name: sum(row["requests"] for row in rows if row["endpoint"] == name) for name in series}
    mine = {name: total for name, total in totals.items() if total}
    labels = {name: readout.row(series[name], short[name]) for name in mine}
    width, told = 0.84 / len(mine), []
    for k, (low, high) in enumerate(bars):
        said = {}
        for place, (name, total) in enumerate(mine.items()):
            inside = (r["requests"] for r in rows if r["endpoint"] == name and low <= r["batch_rows"] <= high)
            if share := sum(inside) / total:
                start = k + 0.08 + place * width
                panel.column(start, start + width, 0, share, f"column s{series[name]}", series[name])
                said[labels[name]] = f"{words.significant(100 * share)} %"
        if said:
            readout.place(panel.x(k + 0.5), f"{named((low, high))} rows", said)
    for name, total in mine.items():
        mean = sum(row["requests"] * row["batch_rows"] for row in rows if row["endpoint"] == name) / total
        told.append(f"{name} {words.significant(mean)} rows in the mean")
    label = f"Chart at {asked}: {', '.join(told)}."
    return figure(f"batches-{number}", asked, "", Html(""), panel.svg(label, above=6, below=24), readout)


def _costs(rows: Sequence[Row], series: Mapping[str, int]) -> Iterator[Html]:
    """What a batch costs, and what that comes to by the second, over its rows."""
    for key, title, note in (
        ("compute_ms", "Computing time of a batch", "Mean over the requests of all steps, in milliseconds."),
        ("rows_per_second", "Rows per second", "Of a device that computes such batches one after another."),
    ):
        known = [row for row in rows if row[key] is not None]
        if not known:
            continue
        most = max(row["batch_rows"] for row in known)
        panel = Panel(Scale(0, most * 1.04), linear(row[key] for row in known), 190)
        panel.grid(panel.y.labels(5))
        panel.x_ticks(panel.x.labels(8, whole=True))
        short, readout = words.short_names(list(series)), Readout()
        for endpoint, n in series.items():
            mine = [row for row in known if row["endpoint"] == endpoint]
            panel.line([(row["batch_rows"], row[key]) for row in mine], f"p99 s{n}", n)
            for row in mine:
                hollow = " hollow" if row["requests"] < _FEW else ""
                panel.dot(row["batch_rows"], row[key], f"dot s{n}{hollow}", n, radius=3)
        for size in sorted({row["batch_rows"] for row in known}):
            said = {}
            for row in (row for row in known if row["batch_rows"] == size):
                value = words.ms(row[key]) if key == "compute_ms" else words.rate(row[key])
                label = readout.row(series[row["endpoint"]], short[row["endpoint"]])
                said[label] = f"{value} ({words.count(row['requests'])} requests)"
            readout.place(panel.x(size), f"{words.count(size)} rows", said)
        told = (f"{row['endpoint']} {words.significant(row[key])} at {row['batch_rows']} rows" for row in known)
        yield figure(key, title, note, Html(""), panel.svg(f"Chart. {', '.join(told)}.", above=8, below=26), readout)
