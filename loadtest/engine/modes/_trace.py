"""Recorded arrivals: a column of instants (CSV, Parquet, JSON lines) becomes offsets from the first, for mode `replay`.

Instants may be seconds (or, by the column's name, ms, us or ns) since anything, or dates in ISO 8601.
"""

from __future__ import annotations

import csv
import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tailrate.loadtest.engine.scenario.scenario import ScenarioError

NAMES = ("timestamp", "time", "arrival", "arrived_at", "intended_ns")
UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
MOST = 5_000_000
MOONCAKE = "input_length"
"""A column of the traces of that name, whose instants are milliseconds."""


def read(path: Path, speed: float) -> tuple[int, ...]:
    """Sorted offsets in ns, `speed` times as fast as recorded; `ScenarioError` for what cannot be read."""
    try:
        name, values = {".parquet": _parquet, ".jsonl": _jsonl}.get(path.suffix, _csv)(path)
    except OSError as problem:
        raise ScenarioError(f"--trace {path} cannot be read: {problem.strerror or problem}") from None
    except (ValueError, UnicodeDecodeError) as problem:
        raise ScenarioError(f"--trace {path}: {problem}") from None
    if not 2 <= len(values) <= MOST:
        raise ScenarioError(f"--trace {path} holds {len(values)} arrivals; between 2 and {MOST} can be replayed")
    unit = UNITS.get(name.rpartition("_")[2].lower(), UNITS["s"])
    at = np.sort(np.asarray(values))
    return tuple(np.round((at - at[0]) * (unit / speed)).astype(np.int64).tolist())


def _parquet(path: Path) -> tuple[str, list[float] | list[int]]:
    schema = pq.read_schema(path)
    name = _column(schema.names, path)
    column = pq.read_table(path, columns=[name]).column(name)
    kind = str(column.type)
    if kind.startswith("timestamp"):
        unit = kind.removeprefix("timestamp[").rstrip("]").partition(",")[0]
        return f"at_{unit}", column.cast("int64").drop_null().to_pylist()
    return name, column.drop_null().to_pylist()


def _csv(path: Path) -> tuple[str, list[float]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = [line for line in csv.reader(file) if line and not line[0].startswith("#")]
    if not lines:
        return "s", []
    name, place = "s", 0
    try:
        _instant(lines[0][0])
    except ValueError:  # a first line of names
        name = _column(lines[0], path)
        place = lines[0].index(name)
        lines = lines[1:]
    values = []
    for number, line in enumerate(lines, start=1):
        try:
            values.append(_instant(line[place]))
        except (ValueError, IndexError):
            raise ValueError(f"its arrival {number} is no instant: {','.join(line)[:80]}") from None
    return name, values


def _jsonl(path: Path) -> tuple[str, list[float]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    if not rows:
        return "s", []
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("not every line is an object")
    name = _column(list(rows[0]), path)
    values = []
    for number, row in enumerate(rows, start=1):
        try:
            values.append(_instant(str(row[name])))
        except (ValueError, KeyError):
            raise ValueError(f"its arrival {number} is no instant: {json.dumps(row)[:80]}") from None
    return (f"{name}_ms" if MOONCAKE in rows[0] else name), values


def _instant(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text.strip()).timestamp()


def _column(names: list[str], path: Path) -> str:
    """The column of instants: the only one, or the first whose name says so."""
    if len(names) == 1:
        return names[0]
    for wanted in NAMES:
        for name in names:
            if name.lower() == wanted or name.lower() in {f"{wanted}_{unit}" for unit in UNITS}:
                return name
    raise ScenarioError(f"--trace {path} has no column of instants; name it {', '.join(NAMES)}, with _ms or _ns if so")
