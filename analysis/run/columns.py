"""The columns of the tables of a run folder, in the types of the contract; what a foreign source lacks is empty."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrate.analysis.records.device_rows import DEVICE_COLUMNS
from tailrate.analysis.records.folder import DEVICES, METRICS, REQUESTS, RunError
from tailrate.analysis.records.metric_rows import METRIC_COLUMNS
from tailrate.analysis.records.rows import REQUEST_COLUMNS, arrow_type

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {REQUESTS: REQUEST_COLUMNS, DEVICES: DEVICE_COLUMNS, METRICS: METRIC_COLUMNS}
NEEDED = {
    REQUESTS: ("step", "intended_ns", "done_ns", "status"),
    DEVICES: ("time_ns", "device"),
    METRICS: ("time_ns", "name", "value"),
}
"""What even a foreign source must have; every other column may be missing."""
WHOLE = "whole_ns"
"""Worked out: when all of an answer was there, of a stream when its last token came, however long it stayed open. What
latency is counted to."""
_WHOLE_OF = ("last_ns", "done_ns")
FULL = {REQUESTS: ("step", "intended_ns"), DEVICES: ("time_ns",), METRICS: ("time_ns",)}
"""Columns without empty values: ordinary integers in the frames."""

_TEXTS = pa.dictionary(pa.int32(), pa.string())


def conform(rows: Any, table: str, path: Path, asked: Sequence[str]) -> Any:
    """The columns asked for, in the contract's types with texts as dictionaries, missing ones empty."""
    found = set(rows.column_names)
    columns = {}
    for name in asked:
        if name == WHOLE:
            parts = conform(rows, table, path, _WHOLE_OF)
            last, done = (parts[part] for part in _WHOLE_OF)
            columns[name] = done if last.null_count == len(last) else pc.coalesce(last, done)
            continue
        kind = COLUMNS[table].get(name)
        if kind is None:
            columns[name] = rows[name] if name in found else pa.nulls(len(rows))
            continue
        want = arrow_type(pa, kind)
        if name not in found:
            columns[name] = pa.nulls(len(rows), _TEXTS if kind == "string" else want)
            continue
        have = rows[name]
        try:
            if not _fits(have.type, want):
                raise pa.ArrowInvalid("another kind of type")
            if kind != "string":
                columns[name] = have if have.type == want else have.cast(want)
            elif have.type != _TEXTS:
                texts = have.cast(want)
                columns[name] = texts.dictionary_encode() if len(texts) else texts.cast(_TEXTS)
            else:
                columns[name] = have
        except pa.ArrowException:
            raise RunError(f"{path}: column '{name}' is {have.type}, which is not {want}") from None
        if name in FULL[table] and have.null_count:
            raise RunError(f"{path}: column '{name}' has {have.null_count} empty values")
    made = pa.table(columns)
    for name in columns:
        if COLUMNS[table].get(name) == "string" and not all(map(_is_text, made[name].chunks)):
            raise RunError(f"{path}: column '{name}' holds bytes that are no text")
    return made


def in_files(asked: Sequence[str]) -> list[str]:
    """The columns to read for these."""
    return [*dict.fromkeys(name for one in asked for name in (_WHOLE_OF if one == WHOLE else (one,)))]


def _is_text(column: Any) -> bool:
    """By the words themselves, which are few."""
    try:
        column.dictionary.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _fits(have: Any, want: Any) -> bool:
    kinds = pa.types
    if kinds.is_dictionary(have):
        have = have.value_type
    if kinds.is_null(have):
        return True
    if kinds.is_list(want):
        return bool(kinds.is_list(have) or kinds.is_large_list(have)) and _fits(have.value_type, want.value_type)
    if kinds.is_string(want):
        return bool(kinds.is_string(have) or kinds.is_large_string(have) or kinds.is_integer(have))
    return bool(kinds.is_integer(have) or kinds.is_floating(have))


def frame_of(rows: Any, table: str) -> pd.DataFrame:
    import pandas as pd

    nullable = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
    frame: pd.DataFrame = rows.unify_dictionaries().to_pandas(types_mapper=nullable.get)
    return frame.astype({name: "int64" for name in FULL[table] if name in frame})
