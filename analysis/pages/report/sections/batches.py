"""How large batches were, and what a larger one costs and buys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailrate.analysis.pages.html.markup import Html, join
from tailrate.analysis.pages.html.table import folded, table
from tailrate.analysis.pages.report.charts.batches import HEADS, batch_charts, batch_rows
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.text import markdown


def _html(view: View) -> Html | None:
    drawn = batch_charts(view.drawn, view.report["batches"], view.series)
    rows = batch_rows(view.report["batches"])
    if drawn is None or len(rows) <= len(view.series):
        return drawn
    return join([drawn, folded(rows, "These sizes as a table", table(HEADS, rows, "Over all steps"), most=10)])


def _main_sizes(batches: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """None where all are of one size, in which there is nothing to compare."""
    most: dict[str, int] = {}
    for row in batches:
        most[row["endpoint"]] = max(row["batch_rows"], most.get(row["endpoint"], 0))
    if len({row["batch_rows"] for row in batches}) < 2:
        return []
    return batch_rows(
        [row for row in batches if row["batch_rows"] in (most[row["endpoint"]], _power(row["batch_rows"]))]
    )


def _power(rows: int) -> int:
    """The next power of two."""
    return 1 << (rows - 1).bit_length()


def _lines(view: View) -> list[str]:
    sizes = _main_sizes(view.report["batches"])
    if not sizes:
        return []
    return ["Over all steps: sizes that are powers of two, and the largest.", "", *markdown.table(HEADS, sizes)]


BATCHES = Section("batches", "Batches", _html, _lines)
