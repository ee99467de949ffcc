"""Rows on their way to the run folder: collected, turned into Arrow batches, appended to segments.

A `Batcher` lives where rows arise (each load process) and hands over record batches at most
`FLUSH_S` apart, and sooner where there are many, so that what is due waits for a few of them only. A `Segment` lives
where the folder is (the only or the master process): it appends batches to an Arrow IPC stream and writes the row count
to `events.jsonl`, so that a kill −9 loses at most the rows of the last interval and a reader can tell that it lost none
before. A batch that the disk took only a part of is taken back, so that the next one can be read. Parquet is not
written here: that stalls a load process for tens of milliseconds; `tailrate report` seals, and
`tailrate.analysis.run.compact` what a long run has closed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailrate.analysis.records.folder import append_event, segment_path
from tailrate.analysis.records.rows import arrow_type

FLUSH_S = 0.5


def schema_of(columns: Mapping[str, str]) -> Any:
    return pa.schema([pa.field(name, arrow_type(pa, kind)) for name, kind in columns.items()])


# the first conversion imports pandas, 0.3 s: here none of it falls into a step, and of `--processes` only the first
# pays, as the others are forked from it (64 that each did kept two cores from their master for eleven seconds)
pa.array([])

LOOK_S = 0.1
"""How often it is looked whether rows are due."""
CHUNK_ROWS, MANY_ROWS = 128, 1024
"""So many are turned into Arrow at a time, in a fifth of a millisecond: half a second's would hold arrivals up for ten.
And so many are handed over before their time."""


class Batcher:
    """Rows as tuples in column order; `flush` hands them over as one record batch, with a `pause` before each part."""

    def __init__(
        self, columns: Mapping[str, str], sink: Callable[[Any], None], pause: Callable[[], None] = lambda: None
    ) -> None:
        self.schema = schema_of(columns)
        self.bad: Counter[str] = Counter()
        """Values that fit no column, by its name: they are empty in the row."""
        self._sink, self._pause = sink, pause
        self._rows: list[tuple[Any, ...]] = []
        self._same: dict[str, tuple[Sequence[Any], Any]] = {}
        """Each column's last chunk and what became of it: most of them are empty, or the same in every row."""
        self._flushed_s = time.monotonic()
        # the first time takes 3 ms instead of 0.3, which must not fall into a step
        pack(self._converted([(None,) * len(columns)]))

    def append(self, row: tuple[Any, ...]) -> None:
        self._rows.append(row)

    def is_due(self) -> bool:
        return len(self._rows) >= MANY_ROWS or time.monotonic() >= self._flushed_s + FLUSH_S

    def flush(self) -> None:
        self._flushed_s = time.monotonic()
        rows, self._rows, chunks = self._rows, [], []
        for start in range(0, len(rows), CHUNK_ROWS):
            self._pause()
            chunks.append(self._converted(rows[start : start + CHUNK_ROWS]))
        if chunks:
            self._pause()
            self._sink(pa.concat_batches(chunks))

    def _converted(self, rows: Sequence[tuple[Any, ...]]) -> Any:
        columns = zip(*rows, strict=True)
        arrays = [self._array(values, kind) for values, kind in zip(columns, self.schema, strict=True)]
        return pa.record_batch(arrays, schema=self.schema)

    def _array(self, values: Sequence[Any], kind: Any) -> Any:
        before, array = self._same.get(kind.name, ((), None))
        try:
            if values == before[: len(values)]:
                return array if len(values) == len(before) else array[: len(values)]
            array = pa.array(values, type=kind.type)
        except UNFIT:
            fitting = [value if _fits(value, kind.type) else None for value in values]
            self.bad[kind.name] += sum(one is not other for one, other in zip(values, fitting, strict=True))
            return pa.array(fitting, type=kind.type)
        if not pa.types.is_nested(kind.type):  # those of arrays cannot be compared
            self._same[kind.name] = values, array
        return array


UNFIT = (pa.ArrowException, ValueError, TypeError, OverflowError)


def _fits(value: Any, kind: Any) -> bool:
    try:
        pa.array([value], type=kind)
    except UNFIT:
        return False
    return True


def pack(batch: Any) -> bytes:
    """A batch as the bytes of a whole IPC stream, for the way from a worker to the master."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(out.getvalue())


def unpack(raw: bytes) -> list[Any]:
    return list(pa.ipc.open_stream(raw))


END = b"\xff\xff\xff\xff\0\0\0\0"
"""Of an IPC stream; one without it is read all the same."""


class Segment:
    """One open Arrow IPC file of a run folder; `announce` is told of its rows, at most every so many seconds."""

    def __init__(
        self,
        folder: Path,
        table: str,
        columns: Mapping[str, str],
        number: int = 0,
        announce: Callable[..., None] | None = None,
        every_s: float = 0.0,
    ) -> None:
        self.path = segment_path(folder, table, number)
        self.rows = 0
        self.torn = False
        """Something is at its end that could not be taken back: what came behind it could not be read."""
        self._size = 0
        self._announce = partial(announce or partial(append_event, folder), "rows", table=table, file=self.path.name)
        self._every_s = every_s
        self._announced, self._next = 0, 0.0
        # unbuffered: what `write` returned from is the kernel's, and survives our death
        self._file = self.path.open("xb", buffering=0)
        self._append(schema_of(columns).serialize())

    def write(self, batch: Any) -> None:
        """All of it, or `OSError` and nothing of it."""
        self._append(batch.serialize())
        self.rows += batch.num_rows
        if time.monotonic() >= self._next:
            self._tell()

    def close(self) -> None:
        if self._announced < self.rows:
            self._tell()
        try:
            self._append(END)
        finally:
            self._file.close()

    def _tell(self) -> None:
        self._next, self._announced = time.monotonic() + self._every_s, self.rows
        self._announce(rows=self.rows)

    def _append(self, raw: Any) -> None:
        left = memoryview(raw).cast("B")
        size = self._size + len(left)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self.torn = True
            self._file.truncate(self._size)
            self._file.seek(self._size)
            self.torn = False
            raise
        self._size = size
