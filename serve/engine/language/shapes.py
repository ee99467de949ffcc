"""The shapes that steps come in: how many rows, how many new tokens of each, and how much of the cache they look at.

Attention costs the length that is looked at and not what is in it, so there are several; each is code of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Shape(NamedTuple):
    rows: int
    tokens: int
    """New ones in each row: 1 where answers are written, more where a prompt is read."""
    length: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.tokens}x{self.length}"


def grown(least: int, most: int, by: int = 4) -> tuple[int, ...]:
    """From the least by factors up to the most, which is the last.

    >>> grown(256, 2048), grown(1, 8), grown(16, 16)
    ((256, 1024, 2048), (1, 4, 8), (16,))
    """
    found = []
    while least < most:
        found.append(least)
        least *= by
    return (*found, most)


def enough(sizes: Iterable[int], need: int) -> int:
    """The smallest that is at least so large."""
    return min(size for size in sizes if size >= need)


class Shapes:
    def __init__(self, slots: int, context: int, chunk: int) -> None:
        """`chunk`: tokens of a prompt that are read at once, while others wait for their next token."""
        self.rows = grown(1, slots, 2)
        self.lengths = grown(256, context, 2)
        self.chunks = grown(16, chunk)
        # a chunk that is not full reaches beyond the prompt's end
        self.read_lengths = (*grown(256, context)[:-1], context + chunk)

    @property
    def writing(self) -> list[Shape]:
        return [Shape(rows, 1, length) for rows in self.rows for length in self.lengths]

    @property
    def reading(self) -> list[Shape]:
        return [Shape(1, tokens, length) for tokens in self.chunks for length in self.read_lengths if length >= tokens]

    def to_write(self, rows: int, longest: int) -> Shape:
        """`longest`: tokens of the longest row, the new one among them."""
        return Shape(enough(self.rows, rows), 1, enough(self.lengths, longest))

    def to_read(self, begin: int, tokens: int) -> Shape:
        chunk = enough(self.chunks, tokens)
        return Shape(1, chunk, enough(self.read_lengths, begin + chunk))
