"""Every column of every step, in a table that sorts."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from tailrate.analysis.pages.html.markup import Html, tag
from tailrate.analysis.pages.html.table import boxed
from tailrate.analysis.pages.report.sections.columns import present
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.text.column import Column


def _html(view: View) -> Html | None:
    if not view.steps:
        return None
    groups = [(name, list(found)) for name, found in groupby(present(view.steps), key=lambda c: c.group)]
    shown = [(column, column is found[0]) for _, found in groups for column in found]
    head = tag(
        "thead",
        tag("tr", (tag("th", name, scope="colgroup", colspan=len(found), class_="first") for name, found in groups)),
        tag("tr", (_sorting_head(*one) for one in shown)),
    )
    body = tag("tbody", (tag("tr", (_step_cell(row, *one) for one in shown)) for row in view.steps))
    caption = tag("caption", "A heading sorts by its column and says what it means")
    return boxed("Every step", tag("table", caption, head, body, class_="steps sortable"))


def _sorting_head(column: Column, first: bool) -> Html:
    button = tag("button", column.head, type="button", data_tip=column.meaning, aria_description=column.meaning)
    return tag("th", button, scope="col", class_=_classes(column, first))


def _classes(column: Column, first: bool) -> str:
    """On paper there is room for the main columns."""
    return " ".join(["num", *(["first"] if first else []), *([] if column.brief else ["more"])])


def _step_cell(row: dict[str, Any], column: Column, first: bool) -> Html:
    value = row.get(column.name)
    if column.name == "endpoint":
        return tag("th", value, scope="row", data_value=value)
    sort = float(value) if isinstance(value, (bool, int, float)) else "" if value is None else str(value)
    return tag(
        "td",
        column.show(value),
        class_=_classes(column, first),
        data_value=str(sort).replace("inf", "Infinity"),
    )


EVERY_STEP = Section("steps", "Every step", _html)
