"""Tables of the page: in a box of their own that scrolls, with headings that sort and a button that copies.

The buttons are `tables.js`' work, so a page without script has none; here lies what they go by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrate.analysis.pages.html.markup import Child, Html, tag

_FEW = 3
"""Rows that nobody has to sort."""


@dataclass(frozen=True, slots=True)
class TableCell:
    """What a cell shows, and what it is sorted by where that is not the number that its text begins with."""

    shown: str
    value: float | str | None

    @property
    def sorted_by(self) -> str:
        return "" if self.value is None else str(self.value).replace("inf", "Infinity")


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[Child | TableCell]],
    caption: str,
    *,
    numbers_from: int = 1,
    class_: str = "",
    sorts: bool = True,
) -> Html:
    """The first cell of a row is its header; `sorts` is for rows of one kind."""

    def cell(number: int, child: Child | TableCell) -> Html:
        kind = "num" if number >= numbers_from else None
        shown, value = (child.shown, child.sorted_by) if isinstance(child, TableCell) else (child, None)
        return tag("td" if number else "th", shown, scope=None if number else "row", class_=kind, data_value=value)

    head = (tag("th", h, scope="col", class_="num" if k >= numbers_from else None) for k, h in enumerate(heads))
    body = (tag("tr", (cell(k, child) for k, child in enumerate(row))) for row in rows)
    kinds = [class_] * bool(class_) + ["sortable"] * (sorts and len(rows) > _FEW)
    drawn = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", head)),
        tag("tbody", body),
        class_=" ".join(kinds) or None,
    )
    return boxed(caption, drawn)


def boxed(label: str, drawn: Html) -> Html:
    return tag("div", drawn, class_="box", tabindex=0, role="group", aria_label=label)


def folded(rows: Sequence[object], summary: str, drawn: Html, *, most: int) -> Html:
    """The table itself, or, where it is long, behind its summary."""
    return tag("details", tag("summary", summary), drawn) if len(rows) > most else drawn
