"""Which columns of `step_summary` a table shows, on the page and in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailrate.analysis.steps.step_summary import on_the_page
from tailrate.analysis.text.column import Column


def present(rows: Sequence[Mapping[str, Any]], *, brief: bool = False) -> list[Column]:
    """The columns that hold anything in these rows; rounds only where there were several."""
    rounds = len({row.get("block") for row in rows}) > 1
    return [
        column
        for column in on_the_page()
        if (column.brief or not brief)
        and (rounds or column.name != "block")
        and any(row.get(column.name) is not None for row in rows)
    ]
