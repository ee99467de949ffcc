"""Latency and throughput against the offered rate; in Markdown the main figures of every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrate.analysis.pages.html.markup import Html, join, tag
from tailrate.analysis.pages.report.charts import by_rate
from tailrate.analysis.pages.report.sections import columns
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.records.objective import overall
from tailrate.analysis.text import markdown, words
from tailrate.analysis.text.column import Column


def _html(view: View) -> Html | None:
    if not view.drawn:
        return tag("p", "No step of this run has an arrival, so there is nothing to draw.")
    drawn: list[Html] = [by_rate.hockey_stick(view.drawn, view.series, overall(view.run.manifest.slos))]
    hollow = [
        tag("li", f"{row['endpoint']} at {row['asked']}: {words.sentence_list(why)}")
        for row in view.drawn
        if (why := by_rate.doubts(row))
    ]
    if hollow:
        summary = "Why a step is drawn hollow" if len(hollow) == 1 else f"Why {len(hollow)} steps are drawn hollow"
        drawn.append(tag("details", tag("summary", summary), tag("ul", hollow)))
    return join([*drawn, by_rate.achieved(view.drawn, view.series)])


def _lines(view: View) -> list[str]:
    if not view.steps:
        return []
    shown = columns.present(view.steps, brief=True)
    rows = [[_cell(column, row) for column in shown] for row in view.steps]
    about = "Rates in requests per second, latency in milliseconds from the intended start, P99 with its interval."
    return [about, "", *markdown.table([column.head for column in shown], rows)]


def _cell(column: Column, row: Mapping[str, Any]) -> str:
    said, between = column.show(row.get(column.name)), words.interval(row.get("p99_low_ms"), row.get("p99_high_ms"))
    return f"{said} ({between})" if column.name == "p99_ms" and between != words.ABSENT else said


RATES = Section("rates", "Latency and rate", _html, _lines)
