"""The two tables of a run folder, in parts that are read one at a time and only as far as columns are asked for.

A part is one row group of a Parquet file (the sealed one, or that of one segment of a long run) or some batches of an
Arrow segment that is not sealed yet, so a table of any size is worked through in the memory of a few parts. Owns the
sealing: a Parquet file names the segments, with their rows, that it holds, so that rows which are in two files for a
moment count once.
Knows nothing of what the figures mean.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from tailrate.analysis.records.folder import RunError, parts, scratch_path, sealed_path, segments
from tailrate.analysis.records.manifest import formerly
from tailrate.analysis.records.rows import arrow_type
from tailrate.analysis.run.columns import COLUMNS, NEEDED, conform, in_files

PART_ROWS = 1 << 18
LIST_BYTES = 64 << 20
"""Of a part's lists: where rows have long ones a part has fewer rows."""

_HELD = b"tailrate.segments"
Made = TypeVar("Made")


class VanishedError(RunError):
    """A segment is not there any more."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that lie together in one file: a row group, or whole batches of a segment."""

    path: Path
    rows: int
    group: int = -1
    """Number of the row group; −1 in a segment."""
    batches: tuple[int, int] = (0, 0)
    """First and last + 1 in the segment."""
    skip: int = 0
    """Its first rows that another Parquet file holds already."""


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """One table, wherever its rows lie."""

    table: str
    parts: tuple[Part, ...]
    extra: tuple[str, ...]
    """Columns beyond the contract's."""
    held: dict[str, int]
    """Rows by the segment that they came from."""
    unsealed: int
    """Rows that are not in the Parquet file yet."""
    labelled: bool
    """The rows came by named segments, so that each one's count can be checked."""
    metadata: dict[Path, Any] = field(default_factory=dict)
    """Of each Parquet file, read once."""
    torn: frozenset[str] = frozenset()
    """Segments that hold something at their end which is no rows."""

    def __len__(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        return (*COLUMNS[self.table], *self.extra)

    def read(self, part: Part, columns: Sequence[str] | None = None) -> Any:
        """These columns of a part, texts as dictionaries; for any thread."""
        asked = self.names if columns is None else tuple(columns)
        if part.group < 0:
            with _reading(part.path) as source:
                found = pa.Table.from_batches(*_batches(part, source))
            return conform(found.slice(part.skip), self.table, part.path, asked)
        metadata = self.metadata[part.path]
        wanted = in_files(asked)
        there = [name for name in metadata.schema.to_arrow_schema().names if name in wanted]
        texts = [name for name in there if COLUMNS[self.table].get(name) == "string"]
        with _reading(part.path) as source:
            parquet = pq.ParquetFile(source, metadata=metadata, read_dictionary=texts)
            found = parquet.read_row_group(part.group, columns=there, use_threads=False).slice(part.skip)
        if not there:  # a row group read without columns forgets how many rows it has
            return conform(pa.table({"": pa.nulls(part.rows)}), self.table, part.path, asked)
        return conform(found, self.table, part.path, asked)

    def lacks(self, column: str) -> bool:
        """It is in no file, as may be where these are another program's."""
        return bool(self.metadata) and not any(column in found.schema.names for found in self.metadata.values())

    def span(self, part: Part, column: str) -> tuple[float, float]:
        """Between what a column of numbers lies in a part, as far as its file says."""
        if part.group >= 0 and column in (names := self.metadata[part.path].schema.names):
            found = self.metadata[part.path].row_group(part.group).column(names.index(column)).statistics
            if found is not None and found.has_min_max and isinstance(found.min, int | float):
                return found.min, found.max
        return -math.inf, math.inf

    def whole(self, columns: Sequence[str] | None = None) -> Any:
        """These columns of all rows."""
        found = [self.read(part, columns) for part in self.parts]
        return pa.concat_tables(found, promote_options="default") if found else self.nothing(columns)

    def nothing(self, columns: Sequence[str] | None = None) -> Any:
        return conform(pa.table({}), self.table, Path(), self.names if columns is None else columns)

    def write(self, path: Path) -> None:
        """All rows into a Parquet file that appears at once, in row groups of full size."""
        scratch = scratch_path(path, f"{self.table}*.parquet")
        try:
            self._write(scratch)
        except OSError:  # on a full disk half a file would stay in the way
            scratch.unlink(missing_ok=True)
            raise
        scratch.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name must be on the disk before the segments go
        finally:
            os.close(folder)

    def _write(self, path: Path) -> None:
        schema = self._schema().with_metadata({_HELD: json.dumps(self.held)})
        with path.open("wb") as out:
            with pq.ParquetWriter(out, schema, compression="zstd") as writer:
                held = [self.nothing().cast(schema)]
                for part in self.parts:
                    held.append(self.read(part).cast(schema))
                    held = [write_groups(writer, pa.concat_tables(held))]
                writer.write_table(pa.concat_tables(held))
            out.flush()
            os.fsync(out.fileno())

    def _schema(self) -> Any:
        kinds = {name: arrow_type(pa, kind) for name, kind in COLUMNS[self.table].items()}
        for part in self.parts:  # a column that another source added has its type where it is first seen
            for column in self.read(part, self.extra).schema if self.extra else ():
                kinds.setdefault(column.name, column.type)
        return pa.schema(list(kinds.items()))


def write_groups(writer: Any, rows: Any) -> Any:
    """As whole row groups; what is left over for the next."""
    nbytes = sum(rows[name].nbytes for name in rows.column_names if pa.types.is_list(rows.schema.field(name).type))
    most = min(PART_ROWS, max(1, int(LIST_BYTES / nbytes * len(rows)))) if nbytes else PART_ROWS
    while len(rows) >= most:
        writer.write_table(rows.slice(0, most).combine_chunks(), row_group_size=most)
        rows = rows.slice(most)
    return rows


def find(folder: Path, table: str) -> Stored:
    """Where the rows of a table lie; reads no more than how many they are."""
    # Segments first, then their own Parquet files, then the sealed one: whatever moves rows on in between then shows
    # them twice, which their counts sort out, and never hides any. A file that vanished was moved on: look again.
    sealed = sealed_path(folder, table)

    def look() -> tuple[dict[Path, _Stream], dict[Path, Any]]:
        streams = {path: _stream(path) for path in segments(folder, table)}
        single = {path: metadata_of(path) for path in parts(folder, table)}
        return streams, ({sealed: metadata_of(sealed)} if sealed.exists() else {}) | single

    streams, metadata = as_often_as_moved(look, folder)
    pieces: list[Part] = []
    held: dict[str, int] = {}
    names: list[str] = []
    labelled, unsealed = True, 0
    for path, found in metadata.items():
        told = found.metadata or {}
        label = told.get(_HELD) or told.get(formerly(_HELD.decode()).encode())
        holds = json.loads(label or b"{}")
        known = sum(held.get(name, 0) for name in holds)  # of a part in the sealed file
        fresh = list(_groups(path, found, known))
        pieces += fresh
        unsealed += 0 if path == sealed else sum(part.rows for part in fresh)
        labelled &= label is not None
        held |= {name: max(rows, held.get(name, 0)) for name, rows in holds.items()}
        columns = found.schema.to_arrow_schema().names
        names += columns
        _check(columns, table, path, found.num_rows)
    for path, (columns, sizes, _) in streams.items():
        known = held.get(path.name, 0)
        fresh = list(_pieces(path, sizes, known))
        pieces += fresh
        unsealed += sum(part.rows for part in fresh)
        held[path.name] = max(known, sum(sizes))
        names += columns
        _check(columns, table, path, sum(sizes))
    extra = tuple(name for name in dict.fromkeys(names) if name not in COLUMNS[table])
    torn = frozenset(path.name for path, stream in streams.items() if stream.torn)
    return Stored(table, tuple(part for part in pieces if part.rows), extra, held, unsealed, labelled, metadata, torn)


def as_often_as_moved(read: Callable[[], Made], folder: Path) -> Made:
    """What `read` finds in a folder, once no other program moves a table's rows into another file meanwhile."""
    for _ in range(10):
        if not folder.is_dir():
            raise RunError(f"{folder} is not there any more")
        with suppress(VanishedError):
            return read()
    raise RunError(f"{folder}: another program keeps moving rows")


def segment(path: Path, table: str) -> Stored:
    """The rows of one segment alone."""
    names, sizes, torn = _stream(path)
    extra = tuple(name for name in names if name not in COLUMNS[table])
    held, broken = {path.name: sum(sizes)}, frozenset([path.name] if torn else [])
    return Stored(table, tuple(_pieces(path, sizes, 0)), extra, held, sum(sizes), True, torn=broken)


def metadata_of(path: Path) -> Any:
    with _reading(path) as source:
        return pq.read_metadata(source)


def _check(names: Sequence[str], table: str, path: Path, rows: int) -> None:
    if rows and (absent := [name for name in NEEDED[table] if name not in names]):
        raise RunError(f"{path} has no column '{absent[0]}'")


def _groups(path: Path, metadata: Any, known: int) -> Iterator[Part]:
    """The row groups of a Parquet file beyond the known rows."""
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if known < rows:
            yield Part(path, rows - known, group, skip=known)
        known = max(0, known - rows)


def _pieces(path: Path, sizes: Sequence[int], known: int) -> Iterator[Part]:
    """The batches of a segment beyond the known rows, gathered into parts."""
    first, rows, skip = 0, 0, 0
    for number, size in enumerate(sizes):
        if known >= size and not rows:  # wholly sealed already
            known, first = known - size, number + 1
            continue
        if not rows:
            first, skip = number, known
            size, known = size - known, 0
        rows += size
        if rows >= PART_ROWS:
            yield Part(path, rows, batches=(first, number + 1), skip=skip)
            first, rows, skip = number + 1, 0, 0
    if rows:
        yield Part(path, rows, batches=(first, len(sizes)), skip=skip)


class _Stream(NamedTuple):
    names: list[str]
    sizes: list[int]
    """Rows of each whole batch, up to where a kill cut it."""
    torn: bool
    """Something else lies behind them."""


def _stream(path: Path) -> _Stream:
    names: list[str] = []
    sizes: list[int] = []
    with _reading(path) as source:
        try:
            with pa.ipc.open_stream(source) as reader:
                names = reader.schema.names
                for batch in reader:
                    batch.validate()
                    sizes.append(len(batch))
            torn = source.tell() < source.size()
        except (pa.ArrowException, OSError, EOFError) as problem:
            if getattr(problem, "errno", None):  # the disk's refusal: nothing is known of the file
                raise
            torn = True
    return _Stream(names, sizes, torn)


def _batches(part: Part, source: Any) -> tuple[list[Any], Any]:
    """The batches of a part; those before it are passed over without being decoded."""
    first, end = part.batches
    reader = pa.ipc.MessageReader.open_stream(source)
    schema = pa.ipc.read_schema(reader.read_next_message())
    messages = (reader.read_next_message() for _ in range(end))
    return [pa.ipc.read_record_batch(message, schema) for message in islice(messages, first, None)], schema


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    """A file opened for Arrow; what it cannot read becomes one sentence that names the file."""
    try:
        # Arrow takes a leading ~ for the home folder, and text for UTF-8
        with pa.OSFile(os.fsencode(path.absolute())) as source:
            yield source
    except FileNotFoundError:
        raise VanishedError(f"{path} was sealed meanwhile: read the folder again") from None
    except (pa.ArrowException, OSError) as problem:
        raise RunError(f"{path} cannot be read: {str(problem).strip().splitlines()[0]}") from None
