"""Run folders on disk: `RecordedRun.load` reads one, sealed or not; `seal` turns its segments into Parquet.

`load` never writes, so a run that is still going or lies on a read-only disk can be looked at, and reads no more than
the manifest and how many rows there are. `seal` is crash-safe: each Parquet file is put in place by one rename, and
only then are the segments that it holds removed; so whatever happens, each row is there exactly once.
Where rows lie and what their columns are is known to `tables`; what the figures mean, to the rooms above.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from tailrate.analysis.records.folder import (
    DEVICES,
    MANIFEST,
    METRICS,
    REQUESTS,
    RESERVE,
    RunError,
    append_event,
    part_path,
    read_events,
    sealed_path,
)
from tailrate.analysis.records.manifest import WRITER, Manifest
from tailrate.analysis.records.process import alive
from tailrate.analysis.records.rows import KINDS, kind_of
from tailrate.analysis.run.announced import Events, announced, missing, retired, unread
from tailrate.analysis.run.columns import COLUMNS, WHOLE, frame_of
from tailrate.analysis.run.compact import compact
from tailrate.analysis.run.outcomes import clean, good
from tailrate.analysis.run.tables import Made, Stored, VanishedError, as_often_as_moved, find

if TYPE_CHECKING:
    import pandas as pd

    from tailrate.analysis.run.device_tracks import DeviceTrack


_QUIET_S = 30.0
_DERIVED = {
    "ok": ("status", "error", WHOLE),
    "late_ms": ("sent_ns", "intended_ns"),
    "service_ms": (WHOLE, "sent_ns"),
    "latency_ms": (WHOLE, "intended_ns"),
}
"""Columns of `requests` that are worked out, and what from."""


@dataclass(frozen=True)
class RecordedRun:
    """What a run's folder holds. It is read when first asked for; the rows of requests, each time that they are.

    What follows from it is added floor by floor: `CountedRun`, `MeasuredRun`, and `verdicts.run.Run`, which has all.
    """

    folder: Path
    manifest: Manifest
    events: list[dict[str, Any]]
    tables: dict[str, Stored] = field(repr=False)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The run in this folder; nothing is written.

        A run whose writer is gone without having said so was killed, and is read as aborted.
        """
        folder = Path(folder)
        manifest = Manifest.read(folder)
        events = list(read_events(folder))
        if manifest.status == "running" and writer(folder, manifest) is None:
            _close_killed(folder, manifest, events)
        return cls(folder, manifest, events, {table: find(folder, table) for table in COLUMNS})

    def requests(self, step: int | Sequence[int] | None = None, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """One row per arrival: of all steps or of these, with all columns or these.

        The recorded columns (times that may be missing as nullable `Int64`, texts as categoricals) and four more: `ok`
        (answered 2xx without an error), `late_ms` (sent − intended), `service_ms` (done − sent) and `latency_ms`
        (done − intended), NaN where either end is missing; of a stream done is its last token. That instant is there
        as `whole_ns` for who names it. A run of many millions is best asked for what is needed.
        """
        return self.reading(REQUESTS, lambda stored: self._requests(stored, step, columns))

    def _requests(
        self, stored: Stored, step: int | Sequence[int] | None, columns: Sequence[str] | None
    ) -> pd.DataFrame:
        asked = (*stored.names, *_DERIVED) if columns is None else tuple(columns)
        if unknown := [name for name in asked if name not in (*stored.names, WHOLE, *_DERIVED)]:
            raise KeyError(f"requests have no column '{unknown[0]}'; there are {', '.join((*stored.names, *_DERIVED))}")
        needed = [name for name in asked if name not in _DERIVED]
        needed += [name for made in asked for name in _DERIVED.get(made, ()) if name not in needed]
        if step is None:
            rows = stored.whole(list(dict.fromkeys(needed)))
        else:
            wanted = pa.array([step] if isinstance(step, int) else list(step), type=pa.int32())
            columns = list(dict.fromkeys(["step", *needed]))
            parts = (stored.read(part, columns) for part in stored.parts)
            rows = pa.concat_tables(
                [stored.nothing(columns), *(part.filter(pc.is_in(part["step"], wanted)) for part in parts)],
                promote_options="default",
            )
        frame = frame_of(rows, REQUESTS)
        for made in asked:
            if made == "ok":
                frame["ok"] = _succeeded(frame)
            elif made in _DERIVED:
                end, start = (frame[name] for name in _DERIVED[made])
                # subtracted as integers: nanoseconds since 1970 do not fit into a float
                frame[made] = (end - start).to_numpy(dtype="float64", na_value=float("nan")) / 1e6
        return frame[list(asked)]

    def joined(self, step: int | Sequence[int] | None = None, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """`requests` with the state of each request's own device at its time, and `sample_ns`, that sample's time."""
        from tailrate.analysis.run.join import OwnDevices, join

        asked = (*self.tables[REQUESTS].names, *_DERIVED) if columns is None else columns
        needed = [*dict.fromkeys([*asked, "sent_ns", WHOLE, "device", "endpoint", "status"])]
        found = join(self.requests(step, needed), self.devices, self.tracks, OwnDevices.said_by(self.manifest))
        return found.drop(columns=[name for name in needed if name not in asked])

    @cached_property
    def devices(self) -> pd.DataFrame:
        return self.reading(DEVICES, lambda stored: frame_of(stored.whole(), DEVICES))

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """What the servers said of themselves, a row for each series and look; the manifest's `metrics` says more."""
        return self.reading(METRICS, lambda stored: frame_of(stored.whole(), METRICS))

    @cached_property
    def tracks(self) -> dict[str, DeviceTrack]:
        """Each device's samples on the load generator's clock, by device."""
        from tailrate.analysis.run.device_tracks import tracks

        samples = self.reading(DEVICES, lambda stored: stored.whole())
        return tracks(samples, self.manifest.clock, self.manifest.started_ns)

    def reading(self, table: str, read: Callable[[Stored], Made]) -> Made:
        """What is read of a table; another program may seal it meanwhile, and then its rows lie elsewhere."""
        try:
            return read(self.tables[table])
        except VanishedError:
            return as_often_as_moved(lambda: read(self._found_again(table)), self.folder)

    def _found_again(self, table: str) -> Stored:
        self.tables[table] = find(self.folder, table)
        return self.tables[table]

    @property
    def missing(self) -> dict[str, int]:
        """Rows per table that `events.jsonl` announced and the folder does not hold, though nobody deleted them."""
        return {table: missing(self.events, stored) for table, stored in self.tables.items()}

    @property
    def unread(self) -> dict[str, int]:
        """Segments that hold more than can be read, which sealing leaves where they are, and their rows that can."""
        return {name: stored.held[name] for stored in self.tables.values() for name in unread(self.events, stored)}

    @property
    def retired(self) -> int:
        """Rows of requests that were deleted as older than the run was to keep; `minute` events tell of them."""
        return sum(retired(self.events, self.tables[REQUESTS]).values())

    @cached_property
    def ended_ns(self) -> int | None:
        """When sending stopped, if that was before the plan's end; None for a complete run."""
        if self.manifest.status == "complete":
            return None
        since = max((life["start_ns"] for life in self.manifest.extra.get("resumed") or ()), default=0)
        said = [event["time_ns"] for event in self.events if event["event"] == "aborted" and "time_ns" in event]
        stops: list[int] = [stop for stop in said if stop > since]
        if self.manifest.finished_ns:
            return min([*stops, self.manifest.finished_ns])
        return self.reading(REQUESTS, lambda stored: _last_ns(stored, stops))


def seal(folder: str | Path) -> Manifest:
    """Turns the segments into Parquet and, for a killed run, sets `run.json` to aborted; may be repeated."""
    folder = Path(folder)
    manifest = Manifest.read(folder)
    if manifest.status == "running" and (who := writer(folder, manifest)):
        way_out = f'or, where that is no load test any more, take "pid" out of its {MANIFEST}'
        raise RunError(f"{folder} is still being written by {who}; report on it when that has ended, {way_out}")
    events = list(read_events(folder))
    ended = manifest.status == "running"
    if ended:
        _close_killed(folder, manifest, events)
    if manifest.scenario.get("mode") == "soak" and manifest.status != "complete":
        compact(folder)  # it may go on and delete its oldest chapters: each keeps files of its own
    else:
        for table in COLUMNS:
            _seal(folder, table, events)
    (folder / RESERVE).unlink(missing_ok=True)
    if ended:
        manifest.write(folder)
    return manifest


def _seal(folder: Path, table: str, events: Events) -> None:
    def write() -> Stored:
        stored = find(folder, table)
        absent = table == METRICS and not len(stored)  # nobody asked for any
        if stored.unsealed or not (absent or sealed_path(folder, table).exists()):
            stored.write(sealed_path(folder, table))
        return stored

    stored = as_often_as_moved(write, folder)
    kept = unread(events, stored)
    for name in stored.held:
        if name not in kept:
            (folder / name).unlink(missing_ok=True)
        part_path(folder / name).unlink(missing_ok=True)


def next_segment(run: RecordedRun) -> int:
    """A number that no segment of the run ever had, sealed ones included."""
    names = [name for table in COLUMNS for name in (*run.tables[table].held, *announced(run.events, table))]
    return 1 + max((int(found[1]) for name in names if (found := re.search(r"-(\d+)\.", name))), default=-1)


def settle_missing(run: RecordedRun) -> None:
    """Says in `events.jsonl` how many rows a crash of the machine has left of those that were announced."""
    for table, stored in run.tables.items():
        for name, rows in announced(run.events, table).items():
            if rows > (there := stored.held.get(name, 0)):
                append_event(run.folder, "rows", table=table, file=name, rows=there)


def _succeeded(frame: pd.DataFrame) -> Any:
    status, error = frame["status"].cat, frame["error"].cat
    found = good(status.categories)[status.codes] & clean(error.categories)[error.codes]
    return found & frame[WHOLE].notna().to_numpy(dtype=bool)


# ---- runs that did not end by themselves


def writer(folder: Path, manifest: Manifest) -> str | None:
    """Who is still writing the folder, in words, or None."""
    pid, since, host = (manifest.extra.get(key) for key in WRITER)
    if pid is None:
        return None
    # another host's processes cannot be seen, and a container has always one of number 1; but a live run writes every
    # second
    here = host in (None, socket.gethostname())
    if here and (pid != 1 or since is not None):
        return f"process {pid}" if alive(pid, since) else None
    newest = max((path.stat().st_mtime for path in folder.iterdir() if path.is_file()), default=0.0)
    where = "" if here else f" on {host}"
    return f"process {pid}{where}" if time.time() - newest < _QUIET_S else None


def _close_killed(folder: Path, manifest: Manifest, events: Events) -> None:
    """What the writer would have put into the manifest, from what is there."""
    said = [event["time_ns"] for event in events if "time_ns" in event]

    def count() -> tuple[int | None, dict[str, int]]:
        stored = find(folder, REQUESTS)
        totals = dict.fromkeys(KINDS, 0) | {"lost": missing(events, stored)}
        for part in stored.parts:
            for pair in pc.value_counts(stored.read(part, ["status"])["status"].cast(pa.string())).to_pylist():
                totals[kind_of(pair["values"] or "")] += pair["counts"]
        for kind, number in retired(events, stored).items():
            totals[kind] += number
        return _last_ns(stored, said), totals

    # a program that the writer started to make Parquet files of closed segments may outlive it by a moment
    last_ns, totals = as_often_as_moved(count, folder)
    manifest.status, manifest.finished_ns = "aborted", last_ns or 0
    manifest.release()
    manifest.totals = {"scheduled": sum(totals.values())} | totals


def _last_ns(stored: Stored, others: Sequence[int]) -> int | None:
    names = ("intended_ns", "sent_ns", "done_ns")
    ends = [
        pc.max(rows[name]).as_py() for part in stored.parts for rows in [stored.read(part, names)] for name in names
    ]
    return max((int(end) for end in [*ends, *(() if len(stored) else others)] if end is not None), default=None)
