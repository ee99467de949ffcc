"""How much each endpoint can take at the objective."""

from __future__ import annotations

from tailrate.analysis.pages.html.markup import Html
from tailrate.analysis.pages.html.table import table
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.text import markdown, words

HEADS = ("endpoint", "objective", "highest rate that kept it", "lowest that missed it", "limited by")


def _rows(view: View) -> list[list[str]]:
    """How much each endpoint can take, under `HEADS`; the limit lies between the two rates."""
    return [
        [
            row["endpoint"],
            words.objective(row),
            "none that was tried" if row["low_rps"] is None else words.rate(row["low_rps"]),
            "none that was tried" if row["high_rps"] is None else words.rate(row["high_rps"]),
            row["limited_by"] or words.ABSENT,
        ]
        for row in view.report["capacity"]
    ]


def _html(view: View) -> Html | None:
    rows = _rows(view)
    return table(HEADS, rows, "The limit lies between the two rates", numbers_from=9, class_="narrow") if rows else None


def _lines(view: View) -> list[str]:
    rows = _rows(view)
    return markdown.table(HEADS, rows, texts=9) if rows else []


CAPACITY = Section("capacity", "How much it can take", _html, _lines)
