"""The rows of requests as arrays, one part at a time, over as many threads as there are cores.

`scan` hands each part to a function and yields what it returns, in the order of the file: decoding and arithmetic of
different parts overlap, since both let go of the interpreter, and no more than one part per thread is held.
Owns how columns become arrays; knows nothing of steps.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from tailrate.analysis.run.bins import NEVER
from tailrate.analysis.stats.array_types import Bools, Codes, Floats, Ints

if TYPE_CHECKING:
    from tailrate.analysis.run.tables import Stored

Made = TypeVar("Made")

_KINDS = {"int32": np.int32, "int64": np.int64, "double": np.float64}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Columns of one part."""

    rows: Any

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def whole(self, name: str) -> Ints:
        """Integers, `NEVER` where empty."""
        found: Ints = filled(self._column(name), NEVER, np.int64)
        return found

    def number(self, name: str) -> Floats | None:
        """Numbers, NaN where empty; None where all of them are, or the column was not read."""
        if name not in self.rows.column_names:
            return None
        column = self._column(name)
        return None if column.null_count == len(column) else filled(column, math.nan, np.float64)

    def lists(self, name: str) -> tuple[Ints, Any]:
        """(where those of each row end, all of them one behind the other)"""
        column = self._column(name)
        ends = np.cumsum(filled(column.value_lengths(), 0, np.int64))
        return ends, column.flatten().to_numpy(zero_copy_only=False)

    def text(self, name: str) -> tuple[Codes, list[str]]:
        """Texts as numbers into the list of them, −1 where empty."""
        column = self._column(name)
        return filled(column.indices, -1, np.int32), column.dictionary.to_pylist()

    def _column(self, name: str) -> Any:
        column = self.rows[name]
        if column.num_chunks != 1:
            column = column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column
            return column.combine_chunks()
        return column.chunk(0)


def filled(column: Any, nothing: float, kind: Any) -> Any:
    """A column of numbers as an array, `nothing` where it is empty; without a copy where it can be.

    Not by Arrow's own `fill_null` and `to_numpy`: these take longer, and import pandas.
    """
    if column.null_count == len(column):
        return np.full(len(column), nothing, dtype=kind)
    values = np.frombuffer(column.buffers()[1], dtype=_KINDS[str(column.type)])
    values = values[column.offset : column.offset + len(column)].astype(kind, copy=False)
    if column.null_count:
        if not values.flags.writeable:
            values = values.copy()
        known = np.unpackbits(np.frombuffer(column.buffers()[0], dtype=np.uint8), bitorder="little")
        values[np.flatnonzero(known[column.offset : column.offset + len(column)] == 0)] = nothing
    return values


def where(rows: Any, chosen: Bools) -> Any:
    """These rows of a table; Arrow's own ways from an array or a number to what it compares import pandas."""
    bits = pa.py_buffer(np.packbits(chosen, bitorder="little"))
    return rows.filter(pa.Array.from_buffers(pa.bool_(), len(chosen), [None, bits]))


def fixed(values: Any, kind: Any) -> Any:
    """As an array that a compiled loop takes: of this kind, in one piece, not to be written."""
    found = np.ascontiguousarray(values, dtype=kind).view()
    found.flags.writeable = False
    return found


def scan(stored: Stored, columns: Sequence[str], made: Callable[[Chunk], Made]) -> Iterator[Made]:
    """What the function makes of each part, in order."""

    def one(part: Any) -> Made:
        return made(Chunk(stored.read(part, columns)))

    if len(stored.parts) < 2:
        yield from map(one, stored.parts)
        return
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ThreadPoolExecutor(min(workers or 1, 8, len(stored.parts))) as pool:
        yield from pool.map(one, stored.parts)
