"""Texts and tables in Markdown; nothing in a text takes effect, neither as Markdown nor as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def text(value: object) -> str:
    """One line of literal text: `<b> a|b *c*` shows as it is written."""
    line = " ".join(str(value).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*\[\]|~#]|\b_|_\b)", r"\\\1", line)  # an underscore inside a word is no emphasis


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> list[str]:
    """Its lines, and an empty one below; columns after the first `texts` are numbers, and stand at the right."""
    rule = ["---" if k < texts else "---:" for k in range(len(heads))]
    lines = [[text(head) for head in heads], rule, *([text(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]
