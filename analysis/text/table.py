"""A table as texts, which a terminal, Markdown and a page show each in its way.

Names in it are whatever folders and servers are called; `safe` makes them fit for a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    """Columns from the left that are texts, the others being numbers."""
    about: str = ""
    """What its figures are, in a sentence."""
    notes: Sequence[str] = ()
    """What is to be said below it."""


def plain(text: str) -> str:
    """Without what would move a terminal's cursor, or is no text in UTF-8."""
    sound = text.encode("utf-8", "replace").decode().replace("\u00a0", " ")
    return "".join(c if c.isprintable() else "\ufffd" for c in sound)


def safe(table: Table) -> Table:
    return replace(table, title=plain(table.title), rows=[[plain(cell) for cell in row] for row in table.rows])
