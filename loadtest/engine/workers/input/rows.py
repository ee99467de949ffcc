"""The rows of a data file as values by column: read whole by `read`, which says in one sentence what is wrong with it.

A table or a file of texts is held in memory by each load process, so its size is bounded; of a folder of images the
names are held, and each file is read when a request is made of it. A row has a number, from 0 in the order of the file
(images: of their names), whatever its lines are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from tailrate.analysis.text.words import count, size
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.loadtest.engine.workers.input.images import image_columns

MOST_BYTES = 1 << 30
"""Of a file's rows, as each load process holds them."""
KINDS = (".csv", ".parquet", ".jsonl", ".txt")
TEXT = "text"
"""The one column of a file of texts."""
_PIECE = 1 << 24

Value = Callable[[int], Any]
"""Of a row, by its number: a text, bytes, a number, or an array."""


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of a file, column by column."""

    path: Path
    count: int
    columns: Mapping[str, Any]
    """Arrow's, or for images what gives each row's."""
    nbytes: int
    """Of the file, or of all images."""

    def value(self, name: str) -> Value:
        """What gives a column's values; `ScenarioError` for what no input can be, or where a row has none."""
        column = self.column(name)
        if not isinstance(column, pa.Array):
            found: Value = column
            return found
        if column.null_count:
            first = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise wrong(self.path, f"row {first} has no value in column '{name}'")
        return _reader(self.path, name, column)

    def column(self, name: str) -> Any:
        if name not in self.columns:
            near = get_close_matches(name, self.columns, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(list(self.columns)[:20])}"
            raise wrong(self.path, f"there is no column '{name}'; {hint}")
        return self.columns[name]

    def words(self, name: str) -> list[str | None]:
        """A column as texts, None where it is empty."""
        column = self.column(name)
        if not isinstance(column, pa.Array):
            found = [column(row) for row in range(self.count)]
            if any(isinstance(word, bytes) for word in found):
                raise wrong(self.path, f"column '{name}' is no text")
            return [word or None for word in found]
        try:
            coded = column.cast(pa.string()).dictionary_encode()
        except pa.ArrowException:
            raise wrong(self.path, f"column '{name}' is {column.type}, which is no text") from None
        words = [word or None for word in coded.dictionary.to_pylist()] + [None]
        return [words[code] for code in coded.indices.fill_null(-1).to_pylist()]


def wrong(path: Path, why: str) -> ScenarioError:
    return ScenarioError(f"--data {path}: {why}")


def read(path: Path, texts: tuple[str, ...] = ()) -> Rows:
    """By the file's suffix; columns in `texts` are texts whatever they look like, such as labels 01 and 02.

    Once: a single process is both who plans a run and who sends.
    """
    try:
        changed_ns = path.stat().st_mtime_ns
    except OSError:
        changed_ns = 0
    return _read(path, texts, changed_ns)


@lru_cache(1)
def _read(path: Path, texts: tuple[str, ...], changed_ns: int) -> Rows:
    try:
        if path.is_dir():
            number, nbytes, columns = image_columns(path)
        elif path.suffix not in KINDS:
            known = f"{', '.join(KINDS[:-1])}, {KINDS[-1]} or a folder of images"
            raise wrong(path, f"it is none of {known}" if path.exists() else "there is no such file or folder")
        else:
            nbytes = path.stat().st_size
            _bounded(path, nbytes)
            table = {".csv": _csv, ".parquet": _parquet, ".jsonl": _jsonl, ".txt": _texts}[path.suffix](path, texts)
            _bounded(path, table.nbytes)
            number = table.num_rows
            columns = {name: _whole(table[name]) for name in table.column_names}
    except FileNotFoundError:
        raise wrong(path, "there is no such file or folder") from None
    except OSError as problem:
        raise wrong(path, f"it cannot be read: {problem.strerror or problem}") from None
    except pa.ArrowException as problem:
        raise wrong(path, str(problem).strip().splitlines()[0]) from None
    if not number:
        raise wrong(path, "it has no rows" if path.is_file() else "there is no image in it")
    return Rows(path, number, columns, nbytes)


def _whole(column: Any) -> Any:
    found = column.combine_chunks()
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _bounded(path: Path, nbytes: int) -> None:
    if nbytes > MOST_BYTES:
        raise wrong(
            path,
            f"it holds {size(nbytes)}, and each load process would hold all of it, {size(MOST_BYTES)} at most: give a "
            "part of it, or images as a folder, whose files are read as they are needed",
        )


# ---- kinds of files


def _csv(path: Path, texts: Sequence[str]) -> Any:
    _utf8(path)
    ragged: list[Any] = []

    def refused(row: Any) -> str:
        ragged.append(row)
        return "error"

    parse = pyarrow.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=refused)
    try:
        return pyarrow.csv.read_csv(
            path,
            # one thread knows the numbers of lines
            read_options=pyarrow.csv.ReadOptions(use_threads=False),
            parse_options=parse,
            convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(texts, pa.string())),
        )
    except pa.ArrowInvalid as problem:
        if ragged:
            row = ragged[0]
            at = "a row" if row.number is None else f"row {row.number - 2}"
            why = f"{at} has {row.actual_columns} values, where the first line names {row.expected_columns} columns"
            raise wrong(path, why) from None
        if "Empty CSV file" in str(problem):
            raise wrong(path, "it has no rows") from None
        raise


def _parquet(path: Path, texts: Sequence[str]) -> Any:
    told = pq.read_metadata(path)
    _bounded(path, sum(told.row_group(number).total_byte_size for number in range(told.num_row_groups)))
    return pq.read_table(path, memory_map=True)


def _jsonl(path: Path, texts: Sequence[str]) -> Any:
    _utf8(path)
    if not path.stat().st_size:
        raise wrong(path, "it has no rows")
    # in one block: a row may be as long as the file
    options = pyarrow.json.ReadOptions(use_threads=False, block_size=max(1 << 20, path.stat().st_size + 1))
    try:
        return pyarrow.json.read_json(path, read_options=options)
    except pa.ArrowInvalid:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    found = json.loads(line) if line.strip() else {}
                except ValueError as problem:
                    raise wrong(path, f"line {number} is no JSON: {problem}") from None
                if not isinstance(found, dict):
                    raise wrong(path, f"line {number} is {type(found).__name__}, not an object with columns") from None
        raise


def _texts(path: Path, texts: Sequence[str]) -> Any:
    """One a line, without empty ones."""
    _utf8(path)
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    return pa.table({TEXT: pa.array([line for each in lines if (line := each.rstrip("\r"))], pa.string())})


def _utf8(path: Path) -> None:
    line = 1
    with path.open("rb") as file:
        while piece := file.read(_PIECE) + file.readline():
            try:
                piece.decode()
            except UnicodeDecodeError as problem:
                line += piece.count(b"\n", 0, problem.start)
                raise wrong(path, f"line {line} is no UTF-8 text") from None
            line += piece.count(b"\n")


# ---- values of a column


def _reader(path: Path, name: str, column: Any) -> Value:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if _plain(kind):
        numbers = column.to_numpy(zero_copy_only=False)
        return lambda row: numbers[row]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or _binary(kind):
        return lambda row: column[row].as_py()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
        if not lengths.all():
            raise wrong(path, f"row {int(np.flatnonzero(lengths == 0)[0])} has an empty list in column '{name}'")
        inner = column.flatten()
        ends = np.cumsum(lengths)
        if inner.null_count:
            at = int(np.flatnonzero(inner.is_null().to_numpy(zero_copy_only=False))[0])
            at_row = int(np.searchsorted(ends, at, side="right"))
            raise wrong(path, f"row {at_row} has an empty value in the list of column '{name}'")
        if _plain(kind.value_type):
            values = inner.to_numpy(zero_copy_only=False)
            return lambda row: values[ends[row] - lengths[row] : ends[row]]
        return lambda row: _nested(path, name, row, column[row].as_py())
    raise wrong(path, f"column '{name}' is {kind}, which no input can be: name those that are in --data-columns")


def _plain(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _binary(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _nested(path: Path, name: str, row: int, value: Any) -> Any:
    try:
        found = np.array(value)
        if found.dtype.kind in "biuf":
            return found
        if found.dtype.kind in "US" and found.ndim == 1:
            return found.astype(object)
    except ValueError:
        pass
    raise wrong(path, f"row {count(row)} of column '{name}' is no tensor: its lists differ in length or kind")
