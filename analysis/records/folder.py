"""The files of a run folder: their names, `events.jsonl` line by line, and what may be written where."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from tailrate.analysis.records.process import alive

MANIFEST = "run.json"
EVENTS = "events.jsonl"
REQUESTS = "requests"
DEVICES = "devices"
METRICS = "metrics"
"""Of the servers themselves; only where they were asked for."""
RESERVE = "reserve"
"""Keeps a little of the disk back while a run is written, so that it can still say that the disk is full."""
SOAK = "soak.json"
LOG = "locust.log"
STATS = "locust-stats.json"
SERVER_LOG = "server.log"
RUN_FILE = "run.yaml"
"""What `tailrate run` drives it again with."""
BEFORE = (SOAK, LOG, STATS, SERVER_LOG, RUN_FILE)
"""What `tailrate run` and `soak` put into a run's folder before its first row."""


class RunError(Exception):
    """A run folder that cannot be read: one sentence naming the file (and line) and what is wrong."""


def scratch_path(path: Path, named: str = "") -> Path:
    """What a file is written as before it appears at once, by each process under a name of its own.

    Such files of this name, or named like that, go where their process was killed.
    """
    for left in path.parent.glob(f"{named or path.name}.*.part"):
        pid = left.name.split(".")[-2]
        if pid.isdecimal() and not alive(int(pid)):
            with suppress(OSError):
                left.unlink()
    return path.with_name(f"{path.name}.{os.getpid()}.part")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write beside it, which takes its place once it is whole and on the disk."""
    scratch = scratch_path(path)
    try:
        yield scratch
        with scratch.open("rb+") as written:
            os.fsync(written.fileno())
        scratch.replace(path)
    except BaseException as problem:  # on a full disk half a file would stay in the way
        scratch.unlink(missing_ok=True)
        if isinstance(problem, OSError):
            raise OSError(problem.errno, problem.strerror, str(path)) from None
        raise


def write_atomically(path: Path, text: str) -> None:
    with replacing(path) as scratch:
        scratch.write_text(text, encoding="utf-8", errors="replace")  # a folder may be called anything


def read_json(path: Path) -> Any:
    """What a JSON file holds; `FileNotFoundError` where there is none, and of what cannot be read `RunError`."""
    try:
        return json.loads(_text(path, "strict"))
    except (RecursionError, ValueError) as problem:
        line = f", line {problem.lineno}" if isinstance(problem, json.JSONDecodeError) else ""
        raise RunError(f"{path}{line}: {_not_json(problem)}") from None


def _text(path: Path, errors: str) -> str:
    try:
        return path.read_text(encoding="utf-8", errors=errors)
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as problem:
        raise RunError(f"{path} cannot be read: {problem}") from None


def _not_json(problem: Exception) -> str:
    """Of brackets in brackets in brackets, or a number of thousands of digits, the reader says it in its own words."""
    return f"not valid JSON ({getattr(problem, 'msg', problem)})"


# ---- events


def append_event(folder: Path, kind: str, **what: Any) -> None:
    """Appends one line to `events.jsonl`: `{"time_ns": …, "event": kind, …}`, on the load generator's clock."""
    line = json.dumps({"time_ns": what.pop("time_ns", None) or time.time_ns(), "event": kind, **what}) + "\n"
    out = os.open(folder / EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        append_whole(out, line.encode())
    finally:
        os.close(out)


def append_whole(out: int, raw: bytes) -> None:
    """All of it or nothing: what a full disk took only a part of is taken back, so that the next line begins a line."""
    before = os.fstat(out).st_size
    try:
        while raw:
            raw = raw[os.write(out, raw) :]
    except OSError:
        os.ftruncate(out, before)
        raise


def mend_events(folder: Path) -> None:
    """Takes away a last line that a kill has cut, before somebody else goes on writing behind it."""
    path = folder / EVENTS
    if path.exists():
        raw = path.read_bytes()
        if not raw.endswith(b"\n"):
            os.truncate(path, raw.rfind(b"\n") + 1)


def read_events(folder: Path) -> Iterator[dict[str, Any]]:
    """Every event in order; a last line cut by a kill is passed over, any other broken line is an error."""
    path = folder / EVENTS
    try:
        lines = _text(path, "replace").split("\n")
    except FileNotFoundError:
        return
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except (RecursionError, ValueError) as problem:
            if number == len(lines):  # no newline after it: the writer was killed inside this line
                return
            raise RunError(f"{path}, line {number}: {_not_json(problem)}") from None
        if not isinstance(event, dict) or "event" not in event:
            raise RunError(f"{path}, line {number}: not an event")
        yield event


def run_folder(run_dir: Path, run_id: str, scenario: str) -> Path:
    """`runs/20261120T101500Z-bert`, or the name asked for; a name already taken gets a number."""
    if run_id:
        return run_dir / run_id
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{scenario}"
    names = (stem if n == 1 else f"{stem}-{n}" for n in count(1))
    return next(run_dir / name for name in names if not (run_dir / name).exists())


def taken(folder: Path, prepared: Collection[str] = ()) -> str | None:
    """Why no run can begin there: it is a run's, or holds more than was prepared for this one."""
    if (folder / MANIFEST).exists():
        return f"{folder} is a run folder already; choose another --run-id"
    if not folder.is_dir():
        return f"{folder} is no folder; choose another --run-id" if folder.exists() else None
    theirs = sorted({path.name for path in folder.iterdir()} - set(prepared))
    return f"{folder} is there already and holds {theirs[0]}; choose another --run-id" if theirs else None


def has_manifest(folder: Path) -> bool:
    """Whether it is a run's; one that nobody may look into is none."""
    try:
        return (folder / MANIFEST).is_file()
    except OSError:
        return False


def segments(folder: Path, table: str) -> list[Path]:
    """The not yet sealed Arrow IPC files of a table, oldest first."""
    return _numbered(folder, table, ".arrows")


def parts(folder: Path, table: str) -> list[Path]:
    """The closed segments of a long run that have become Parquet files by themselves, oldest first."""
    return _numbered(folder, table, ".parquet")


def segment_number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _numbered(folder: Path, table: str, suffix: str) -> list[Path]:
    found = [path for path in folder.glob(f"{table}-*{suffix}") if path.stem[len(table) + 1 :].isdecimal()]
    return sorted(found, key=segment_number)


def part_path(segment: Path) -> Path:
    return segment.with_suffix(".parquet")


def segment_path(folder: Path, table: str, number: int) -> Path:
    return folder / f"{table}-{number:04d}.arrows"


def judged_path(folder: Path, step: int) -> Path:
    """What a chapter that begins with this step had shown, until the word that its rows are deleted says so."""
    return folder / f"chapter-{step:04d}.json"


def sealed_path(folder: Path, table: str) -> Path:
    return folder / f"{table}.parquet"
