"""Latency by percentile."""

from __future__ import annotations

from tailrate.analysis.pages.html.markup import Html
from tailrate.analysis.pages.report.charts.percentiles import percentile_charts
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.records.objective import overall


def _html(view: View) -> Html | None:
    return percentile_charts(view.drawn, view.report["curves"], view.series, overall(view.run.manifest.slos))


PERCENTILES = Section("percentiles", "Latency by percentile", _html)
