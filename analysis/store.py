"""Run folders on disk: `load` reads one, sealed or not; `seal` turns its segments into Parquet.

`load` never writes, so a run that is still going or lies on a read-only disk can be looked at. `seal` is
crash-safe: each Parquet file names the segments, with their rows, that it already holds, is put in place by
one rename, and only then are the segments removed; so whatever happens, each row is there exactly once.
Knows columns and files; what the figures mean is said by the modules behind `Run`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.records import (
    DEVICE_COLUMNS,
    DEVICES,
    LOST,
    REQUEST_COLUMNS,
    REQUESTS,
    Manifest,
    RunError,
    read_events,
    sealed_path,
    segments,
)

if TYPE_CHECKING:
    from analysis.devices import Track
    from analysis.join import JoinCounts
    from analysis.steps import MeasuredStep

COLUMNS = {REQUESTS: REQUEST_COLUMNS, DEVICES: DEVICE_COLUMNS}
NEEDED = {REQUESTS: ("step", "intended_ns", "done_ns", "status"), DEVICES: ("time_ns", "device")}
"""What even a foreign source must have; every other column may be missing."""
FULL = {REQUESTS: ("step", "intended_ns"), DEVICES: ("time_ns",)}
"""Columns without empty values: ordinary integers in the frames."""

_HELD = b"headroom.segments"
_QUIET_S = 30.0
_NULLABLE = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}


@dataclass(frozen=True)
class Run:
    """One run. The frames are made when first asked for and then kept.

    `requests` holds the recorded columns (times that may be missing as nullable `Int64`, texts as
    categoricals) and four more: `ok` (answered 2xx without an error), `late_ms` (sent − intended),
    `service_ms` (done − sent) and `latency_ms` (done − intended), NaN where either end is missing.
    `devices` holds the samples as recorded; `joined` is `requests` with the state of each request's own
    device at its time; `steps` has one row per step and endpoint, in the columns of `steps.csv`.
    """

    folder: Path
    manifest: Manifest
    events: list[dict[str, Any]]
    tables: dict[str, _Stored] = field(repr=False)

    @cached_property
    def requests(self) -> pd.DataFrame:
        frame = _frame(self.tables[REQUESTS].rows, REQUESTS)
        # a foreign source may write an empty text on success
        clean = (frame["error"].isna() | frame["error"].isin([""])).to_numpy()
        good = [str(status) for status in frame["status"].cat.categories if re.fullmatch(r"2\d\d", str(status))]
        answered = frame["status"].isin(good).to_numpy() & frame["done_ns"].notna().to_numpy()
        frame["ok"] = answered & clean
        for name, end, start in (
            ("late_ms", "sent_ns", "intended_ns"),
            ("service_ms", "done_ns", "sent_ns"),
            ("latency_ms", "done_ns", "intended_ns"),
        ):
            # subtracted as integers: nanoseconds since 1970 do not fit into a float
            frame[name] = (frame[end] - frame[start]).to_numpy(dtype=np.float64, na_value=np.nan) / 1e6
        return frame

    @cached_property
    def devices(self) -> pd.DataFrame:
        return _frame(self.tables[DEVICES].rows, DEVICES)

    @cached_property
    def tracks(self) -> dict[str, Track]:
        """Each device's samples on the load generator's clock, by device."""
        from analysis.devices import tracks

        return tracks(self.devices, self.manifest.clock, self.manifest.started_ns)

    @cached_property
    def joined(self) -> pd.DataFrame:
        from analysis.join import join

        return join(self.requests, self.devices, self.tracks)

    @cached_property
    def join_counts(self) -> JoinCounts:
        from analysis.join import count

        return count(self.requests, self.tracks)

    @cached_property
    def measured(self) -> list[MeasuredStep]:
        """The steps with what belongs to them beyond their row: window, rate asked for, answers per objective."""
        from analysis.steps import measure

        return measure(self)

    @cached_property
    def steps(self) -> pd.DataFrame:
        from analysis.steps import frame

        return frame([step.summary for step in self.measured])

    @property
    def missing(self) -> dict[str, int]:
        """Rows per table that `events.jsonl` announced and the folder does not hold."""
        return {table: _missing(self.events, table, stored) for table, stored in self.tables.items()}

    @property
    def ended_ns(self) -> int | None:
        """When sending stopped, if that was before the plan's end; None for a complete run."""
        if self.manifest.status == "complete":
            return None
        stops = [event["time_ns"] for event in self.events if event["event"] == "aborted" and "time_ns" in event]
        return min([*stops, self.manifest.finished_ns]) if self.manifest.finished_ns else _last_ns(self.tables, stops)


def load(folder: str | Path) -> Run:
    """The run in this folder; nothing is written.

    A run whose writer is gone without having said so was killed, and is read as aborted.
    """
    folder = Path(folder)
    manifest = Manifest.read(folder)
    events = list(read_events(folder))
    tables = {table: _read(folder, table) for table in COLUMNS}
    if manifest.status == "running" and _writer(folder, manifest) is None:
        _close_killed(manifest, events, tables)
    return Run(folder, manifest, events, tables)


def seal(folder: str | Path) -> Manifest:
    """Turns the segments into Parquet and, for a killed run, sets `run.json` to aborted; may be repeated."""
    folder = Path(folder)
    manifest = Manifest.read(folder)
    if manifest.status == "running" and (writer := _writer(folder, manifest)):
        raise RunError(f"{folder} is still being written by {writer}; report on it when that has ended")
    events = list(read_events(folder))
    tables = {table: _read(folder, table) for table in COLUMNS}
    for table, stored in tables.items():
        if stored.unsealed or not sealed_path(folder, table).exists():
            _write(sealed_path(folder, table), stored)
        for name in stored.held:
            (folder / name).unlink(missing_ok=True)
    if manifest.status == "running":
        _close_killed(manifest, events, tables)
        manifest.write(folder)
    return manifest


# ---- tables


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """All rows of one table, wherever they lie."""

    rows: Any
    held: dict[str, int]
    """Rows by the segment that they came from."""
    unsealed: int
    """Rows that are not in the Parquet file yet."""
    labelled: bool
    """The rows came by named segments, so that each one's count can be checked."""


def _read(folder: Path, table: str) -> _Stored:
    # Segments first, Parquet second: a sealing that happens in between then shows rows twice, which their
    # counts sort out, and never hides any. A segment that vanished was sealed: look again.
    for _ in range(10):
        try:
            streams = {path.name: _stream(path) for path in segments(folder, table)}
            break
        except FileNotFoundError:
            continue
    else:
        raise RunError(f"{folder}: another program keeps removing segments of {table}")
    pieces: list[Any] = []
    held: dict[str, int] = {}
    path = sealed_path(folder, table)
    labelled = True
    if path.exists():
        try:
            whole = pq.read_table(path)
        except (pa.ArrowException, OSError) as problem:
            raise RunError(f"{path} cannot be read: {_first_line(problem)}") from None
        metadata = whole.schema.metadata or {}
        labelled = _HELD in metadata
        held = json.loads(metadata.get(_HELD, b"{}"))
        pieces.append(_conform(whole, table, path))
    unsealed = 0
    for name, stream in streams.items():
        fresh = stream.slice(held.get(name, 0))
        unsealed += len(fresh)
        held[name] = max(held.get(name, 0), len(stream))
        pieces.append(_conform(fresh, table, folder / name))
    if not pieces:
        pieces.append(_conform(pa.table({name: [] for name in NEEDED[table]}), table, path))
    return _Stored(pa.concat_tables(pieces, promote_options="default"), held, unsealed, labelled)


def _stream(path: Path) -> Any:
    """The whole batches of an Arrow IPC stream, up to where a kill cut it."""
    batches: list[Any] = []
    schema = pa.schema([])
    with pa.OSFile(str(path)) as source:
        try:
            with pa.ipc.open_stream(source) as reader:
                schema = reader.schema
                for batch in reader:
                    batch.validate()
                    batches.append(batch)
        except (pa.ArrowException, OSError, EOFError):
            pass  # what `events.jsonl` announced beyond this is reported as missing
    return pa.Table.from_batches(batches, schema)


def _conform(rows: Any, table: str, path: Path) -> Any:
    """The contract's columns in the contract's types, missing ones empty, then whatever else there is."""
    found = set(rows.column_names)
    if len(rows) and (absent := [name for name in NEEDED[table] if name not in found]):
        raise RunError(f"{path} has no column '{absent[0]}'")
    columns = {}
    for name, kind in COLUMNS[table].items():
        want = pa.type_for_alias(kind)
        if name not in found:
            columns[name] = pa.nulls(len(rows), want)
            continue
        have = rows[name]
        try:
            if not _fits(have.type, want):
                raise pa.ArrowInvalid("another kind of type")
            columns[name] = have.cast(want)
        except pa.ArrowException:
            raise RunError(f"{path}: column '{name}' is {have.type}, which is not {want}") from None
        if name in FULL[table] and have.null_count:
            raise RunError(f"{path}: column '{name}' has {have.null_count} empty values")
    extra = {name: rows[name] for name in rows.column_names if name not in columns}
    return pa.table(columns | extra)


def _fits(have: Any, want: Any) -> bool:
    kinds = pa.types
    if kinds.is_dictionary(have):
        have = have.value_type
    if kinds.is_null(have):
        return True
    if kinds.is_string(want):
        return bool(kinds.is_string(have) or kinds.is_large_string(have) or kinds.is_integer(have))
    return bool(kinds.is_integer(have) or kinds.is_floating(have))


def _write(path: Path, stored: _Stored) -> None:
    for left in path.parent.glob(f"{path.name}.*.part"):
        if not _alive(int(left.name.split(".")[-2])):
            left.unlink(missing_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.part")
    rows = stored.rows.replace_schema_metadata({_HELD: json.dumps(stored.held)})
    with scratch.open("wb") as out:
        pq.write_table(rows, out, compression="zstd", row_group_size=1 << 18)
        out.flush()
        os.fsync(out.fileno())
    scratch.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name must be on the disk before the segments go
    finally:
        os.close(folder)


def _frame(rows: Any, table: str) -> pd.DataFrame:
    frame: pd.DataFrame = rows.to_pandas(types_mapper=_NULLABLE.get, strings_to_categorical=True)
    return frame.astype(dict.fromkeys(FULL[table], "int64"))


# ---- runs that did not end by themselves


def _writer(folder: Path, manifest: Manifest) -> str | None:
    """Who is still writing the folder, in words, or None."""
    pid, host = manifest.extra.get("pid"), manifest.extra.get("host")
    if pid is None:
        return None
    if host in (None, socket.gethostname()):
        return f"process {pid}" if _alive(int(pid)) else None
    # another host's processes cannot be seen, but a live run writes every second
    newest = max((path.stat().st_mtime for path in folder.iterdir() if path.is_file()), default=0.0)
    return f"process {pid} on {host}" if time.time() - newest < _QUIET_S else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _close_killed(manifest: Manifest, events: Sequence[Mapping[str, Any]], tables: Mapping[str, _Stored]) -> None:
    """What the writer would have put into the manifest, from what is there."""
    manifest.status = "aborted"
    for key in ("pid", "host"):
        manifest.extra.pop(key, None)
    manifest.finished_ns = _last_ns(tables, [event["time_ns"] for event in events if "time_ns" in event]) or 0
    status = tables[REQUESTS].rows["status"]
    by_status = {pair["values"]: pair["counts"] for pair in pc.value_counts(status).to_pylist()}
    totals = {"ok": 0, "failed": 0, "timed_out": 0, "dropped": 0, "lost": _missing(events, REQUESTS, tables[REQUESTS])}
    for word, rows in by_status.items():
        ok = "ok" if re.fullmatch(r"2\d\d", word or "") else "failed"
        totals[{"timeout": "timed_out", "dropped": "dropped", LOST: "lost"}.get(word, ok)] += rows
    manifest.totals = {"scheduled": sum(totals.values())} | totals


def _last_ns(tables: Mapping[str, _Stored], others: Sequence[int]) -> int | None:
    rows = tables[REQUESTS].rows
    ends = [pc.max(rows[name]).as_py() for name in ("intended_ns", "sent_ns", "done_ns")]
    known = [int(end) for end in [*ends, *(() if len(rows) else others)] if end is not None]
    return max(known, default=None)


def _missing(events: Sequence[Mapping[str, Any]], table: str, stored: _Stored) -> int:
    announced: dict[str, int] = {}
    for event in events:
        if event["event"] == "rows" and event.get("table") == table:
            name = str(event.get("file"))
            announced[name] = max(announced.get(name, 0), int(event.get("rows", 0)))
    if not stored.labelled:
        return max(0, sum(announced.values()) - len(stored.rows))
    return sum(max(0, rows - stored.held.get(name, 0)) for name, rows in announced.items())


def _first_line(problem: BaseException) -> str:
    return str(problem).strip().split("\n", 1)[0]
