"""Memory, power and energy against the offered rate."""

from __future__ import annotations

from tailrate.analysis.pages.html.markup import Html
from tailrate.analysis.pages.report.charts.energy import energy_charts
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import View


def _html(view: View) -> Html | None:
    return energy_charts(view.drawn, view.series)


ENERGY = Section("energy", "Memory and energy", _html)
