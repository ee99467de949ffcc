"""A table as text, safe for a terminal: names in it are whatever folders and servers are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """A table to print."""

    title: str
    heads: Sequence[str]
    rows: list[list[str]]
    texts: int = 1
    """Columns from the left that are texts, the others being numbers."""


def plain(text: str) -> str:
    """Without what would move a terminal's cursor, or is no text in UTF-8."""
    sound = text.encode("utf-8", "replace").decode().replace("\u00a0", " ")
    return "".join(c if c.isprintable() else "\ufffd" for c in sound)


def safe(block: Block) -> Block:
    return Block(plain(block.title), block.heads, [[plain(cell) for cell in row] for row in block.rows], block.texts)
