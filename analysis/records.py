"""Wire 2: the run folder, the only thing that `loadtest` and `analysis` share.

Owns file names, the columns of both tables, the manifest `run.json`, the line format of
`events.jsonl`, and the words for an objective (`Slo`). Owns no arithmetic: it imports nothing but the
standard library, so that whoever writes a run folder needs no pandas.

Clocks: every `*_ns` in `requests` is the load generator's wall clock, fixed to its monotonic clock once
at the start of the run. `devices.time_ns` is the device host's wall clock; `clock` in the manifest maps
one to the other.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

SCHEMA = 1


def formerly(name: str) -> str:
    """The name before the project had its own: run folders of schema 1 and older servers still say it.

    >>> formerly("x-tailrate-clock")
    'x-headroom-clock'
    """
    return name.replace("tailrate", "headroom")


MANIFEST = "run.json"
EVENTS = "events.jsonl"
REQUESTS = "requests"
DEVICES = "devices"
RESERVE = "reserve"
SOAK = "soak.json"
LOG = "locust.log"
STATS = "locust-stats.json"
SERVER_LOG = "server.log"
BEFORE = (SOAK, LOG, STATS, SERVER_LOG)
"""What `tailrate run` and `soak` put into a run's folder before its first row."""
"""Keeps a little of the disk back while a run is written, so that it can still say that the disk is full."""

LATE_MS, LATE_SHARE = 1.0, 0.05
MOST_CPU_PCT, MOST_UNSENT = 85.0, 0.001
"""The load generator stood in the way where it sent later (P99) than a millisecond or a twentieth of the median service
time, was busier than this, or dropped a larger share of the arrivals although the endpoint kept up."""

MAX_RECOVERY_S = 60.0
"""After a planned fault users are served as before within so long, where nothing else was asked for."""

LEAST_FOR_P999 = 4603
"""Arrivals that P99.9 takes at least, by MLPerf's rule; of fewer there is none, so that its absence says nothing."""

BAD_ANSWER, CHECK = "bad_answer", "check"
"""Statuses of arrivals whose answer is a 200 but no result, or not one that the scenario's own check takes."""
LOST = "lost"
"""Status of an arrival that was sent but whose answer the run did not live to see."""


class RunError(Exception):
    """A run folder that cannot be read: one sentence naming the file (and line) and what is wrong."""


# ---- the rows of both tables

# each with the name of its Arrow type
Int32 = Annotated[int, "int32"]
Int64 = Annotated[int, "int64"]
Number = Annotated[float, "float64"]
Text = Annotated[str, "string"]


class RequestRecord(NamedTuple):
    """One arrival, sent or not. What did not happen (a dropped arrival's `sent_ns`) is None."""

    worker: Int32
    seq: Int64
    """Unique within a step."""
    step: Int32
    endpoint: Text
    intended_ns: Int64
    sent_ns: Int64 | None = None
    done_ns: Int64 | None = None
    status: Text = ""
    """The HTTP status, or `timeout`, `connect`, `dropped`, `lost`, `bad_answer` (a 200 that is no result), `check` (one
    that the scenario's own check refuses)."""
    error: Text | None = None
    bytes_in: Int64 | None = None
    """Bytes of the request's body, as the server takes it in."""
    bytes_out: Int64 | None = None
    rows: Int32 | None = 1
    queue_ms: Number | None = None
    batch_ms: Number | None = None
    h2d_ms: Number | None = None
    compute_ms: Number | None = None
    d2h_ms: Number | None = None
    server_ms: Number | None = None
    batch_rows: Int32 | None = None
    replica: Text | None = None
    device: Text | None = None
    handled_ms: Number | None = None
    """From the server's receiving to its sending: what is left of the service time is the way there and back."""


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """The state of one device at one instant of its host's wall clock; what the device lacks is None, never zero."""

    time_ns: Int64
    host: Text
    device: Text
    index: Int32
    util_pct: Number | None = None
    mem_util_pct: Number | None = None
    mem_bytes: Int64 | None = None
    power_w: Number | None = None
    energy_j: Number | None = None
    temp_c: Number | None = None
    sm_mhz: Number | None = None
    mem_mhz: Number | None = None
    throttle_bits: Int64 | None = None
    sm_active_pct: Number | None = None
    tensor_active_pct: Number | None = None
    dram_active_pct: Number | None = None
    own_mem_bytes: Int64 | None = None
    net_in_bps: Number | None = None
    net_out_bps: Number | None = None


def _columns(record: type) -> dict[str, str]:
    """Each field's Arrow type."""
    hints = get_type_hints(record, include_extras=True)
    return {
        name: (get_args(hint)[0] if type(None) in get_args(hint) else hint).__metadata__[0]
        for name, hint in hints.items()
    }


REQUEST_COLUMNS, DEVICE_COLUMNS = _columns(RequestRecord), _columns(DeviceSample)


# ---- what became of an arrival

KINDS = ("ok", "failed", "timed_out", "dropped", "lost")
_SUCCESS = re.compile(r"2\d\d")
_KIND = {"timeout": "timed_out", "dropped": "dropped", LOST: "lost"}


def is_success(status: str) -> bool:
    """The one definition: any 2xx. What is answered so and is no answer has a status of its own (`bad_answer`)."""
    return _SUCCESS.fullmatch(status) is not None


def kind_of(status: str) -> str:
    """Under which of `KINDS`, the run's totals, an arrival counts."""
    return "ok" if is_success(status) else _KIND.get(status, "failed")


# ---- objectives

_THRESHOLD = re.compile(r"([a-z]\w*(?:\.\d+)?)\s*(<=?|>=?)\s*([+-]?\d+(?:\.\d+)?)\s*(%\s*/\s*h|%|ms|s|)")


@dataclass(frozen=True, slots=True)
class Threshold:
    """A figure that is to be below or above a value, as all options write one: `p99<50ms`, `errors>5%`, `p99>5%`."""

    figure: str
    below: bool
    value: float
    unit: str
    """%, %/h, ms, s, or nothing."""

    @classmethod
    def parse(cls, text: str) -> Threshold | None:
        """None where it is none.

        >>> Threshold.parse("p99.9 <= 1.5 s")
        Threshold(figure='p99.9', below=True, value=1.5, unit='s')
        """
        match = _THRESHOLD.fullmatch(text.strip())
        return match and cls(match[1], match[2][0] == "<", float(match[3]), "".join(match[4].split()))


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level objective: a latency at a percentile and/or bounds on errors, goodput and rate.

    >>> Slo.parse("p99<50ms, errors<0.1%")
    Slo(percentile=99.0, latency_ms=50.0, max_error_rate=0.001, min_goodput=None, min_rate_rps=None)
    """

    percentile: float | None = None
    latency_ms: float | None = None
    max_error_rate: float | None = None
    min_goodput: float | None = None
    """Least share of offered arrivals that must succeed within `latency_ms`."""
    min_rate_rps: float | None = None

    @classmethod
    def parse(cls, text: str) -> Slo:
        found: dict[str, float] = {}
        for term in text.split(","):
            known = Threshold.parse(term)
            word, value = (known.figure, known.value) if known else ("", 0.0)
            percent = re.fullmatch(r"p(\d{1,2}(?:\.\d+)?)", word)
            if known is None or not (percent or word in ("errors", "goodput", "rate")) or value < 0:
                raise ValueError(
                    f"SLO term '{term.strip()}' is not understood; write for instance p99<50ms, errors<0.1%, "
                    "goodput>95% or rate>=200"
                )
            if percent and known.below and known.unit in ("ms", "s"):
                if "latency_ms" in found:
                    raise ValueError(f"SLO '{text}' sets two latencies; give one percentile")
                found |= {"percentile": float(percent[1]), "latency_ms": value * (1000.0 if known.unit == "s" else 1.0)}
                if not 0 < found["percentile"] < 100 or value <= 0:
                    raise ValueError(f"SLO term '{term.strip()}' needs a percentile in (0, 100) and a positive latency")
            elif word == "errors" and known.below and known.unit == "%":
                found["max_error_rate"] = value / 100
            elif word == "goodput" and not known.below and known.unit == "%":
                found["min_goodput"] = value / 100
            elif word == "rate" and not known.below and known.unit == "":
                found["min_rate_rps"] = value
            else:
                raise ValueError(f"SLO term '{term.strip()}' has the wrong sign or unit; write for instance p99<50ms")
        if "min_goodput" in found and "latency_ms" not in found:
            raise ValueError(f"SLO '{text}' bounds goodput, which needs a latency beside it, such as p99<50ms")
        return cls(**found)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Slo:
        return cls(**{f.name: found.get(f.name) for f in fields(cls)})

    def as_json(self) -> dict[str, float]:
        return {key: value for key, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        terms = []
        if self.percentile is not None:
            terms.append(f"p{self.percentile:g}<{self.latency_ms:g}ms")
        if self.max_error_rate is not None:
            terms.append(f"errors<{self.max_error_rate * 100:g}%")
        if self.min_goodput is not None:
            terms.append(f"goodput>{self.min_goodput * 100:g}%")
        if self.min_rate_rps is not None:
            terms.append(f"rate>={self.min_rate_rps:g}")
        return ", ".join(terms)


# ---- the manifest

STATUSES = ("running", "complete", "aborted")

_STEP: dict[str, tuple[type, ...]] = {
    "index": (int,),
    "endpoint": (str,),
    "rate": (int, float),
    "seconds": (int, float),
    "start_ns": (int,),
    "end_ns": (int,),
}
"""What every step in `scenario.steps` has."""


@dataclass(slots=True)
class Manifest:
    """`run.json`. Keys beside these are kept in `extra` and written back."""

    id: str
    status: str
    """running, complete or aborted"""
    scenario: dict[str, Any]
    endpoints: list[dict[str, Any]] = field(default_factory=list)
    started_ns: int = 0
    finished_ns: int = 0
    clock: list[dict[str, Any]] = field(default_factory=list)
    hosts: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, Any] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    schema: int = SCHEMA
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def slos(self) -> list[Slo]:
        return [Slo.from_json(found) for found in self.scenario.get("slo") or []]

    @property
    def max_recovery_s(self) -> float:
        """How long after a planned fault users may be served worse than before."""
        found = self.scenario.get("max_recovery_s")
        return float(found) if isinstance(found, int | float) and found >= 0 else MAX_RECOVERY_S

    @property
    def max_failed(self) -> float:
        """The share of requests that may fail from a planned fault until users are served as before."""
        found = self.scenario.get("max_failed")
        return float(found) if isinstance(found, int | float) and found >= 0 else 1.0

    def write(self, folder: Path) -> None:
        """Replaces `run.json` at once: a reader sees the old one or the new one, never half."""
        whole = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"} | self.extra
        write_atomically(folder / MANIFEST, json.dumps(whole, indent=1, sort_keys=False) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        path = folder / MANIFEST
        if not folder.is_dir():
            raise RunError(f"{folder} is not a folder; give a run folder, such as runs/20261120T101500Z-bert")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"{folder} is not a run folder: it has no {MANIFEST}") from None
        except json.JSONDecodeError as problem:
            raise RunError(f"{path}, line {problem.lineno}: not valid JSON ({problem.msg})") from None
        except (OSError, UnicodeDecodeError) as problem:
            raise RunError(f"{path} cannot be read: {problem}") from None
        if not isinstance(found, dict):
            raise RunError(f"{path} holds no JSON object")
        if found.get("schema") != SCHEMA:
            raise RunError(f"{path} has schema {found.get('schema')!r}, but this version reads schema {SCHEMA}")
        # an absent value may be written as null, and the clock of a lone host as one entry
        found = {key: value for key, value in found.items() if value is not None}
        if isinstance(found.get("clock"), dict):
            found["clock"] = [found["clock"]]
        known = {f.name for f in fields(cls)} - {"extra"}
        shapes: dict[str, type] = {
            "id": str,
            "status": str,
            "scenario": dict,
            "endpoints": list,
            "clock": list,
            "hosts": list,
        }
        shapes |= {"versions": dict, "totals": dict, "started_ns": int, "finished_ns": int}
        for key, kind in shapes.items():
            if key in found and not isinstance(found[key], kind):
                raise RunError(f"{path}: '{key}' must be a {kind.__name__}, not {type(found[key]).__name__}")
        for key in ("id", "status", "scenario"):
            if key not in found:
                raise RunError(f"{path} has no '{key}'")
        if found["status"] not in STATUSES:
            raise RunError(f"{path}: status '{found['status']}' is not one of {', '.join(STATUSES)}")
        steps = found["scenario"].get("steps")
        if not isinstance(steps, list) or not all(isinstance(s, dict) for s in steps):
            raise RunError(f"{path}: 'scenario.steps' must be a list of steps")
        for number, step in enumerate(steps):
            if missing := [key for key in _STEP if key not in step]:
                raise RunError(f"{path}: step {number} of 'scenario.steps' has no {', '.join(missing)}")
            if wrong := [key for key, kinds in _STEP.items() if not isinstance(step[key], kinds)]:
                raise RunError(f"{path}: step {number} of 'scenario.steps' has a wrong {wrong[0]}: {step[wrong[0]]!r}")
        return cls(
            **{key: value for key, value in found.items() if key in known},
            extra={key: value for key, value in found.items() if key not in known},
        )


def write_atomically(path: Path, text: str) -> None:
    scratch = path.with_name(path.name + ".part")
    try:
        with scratch.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        scratch.replace(path)
    except OSError:  # on a full disk half a file would stay in the way
        scratch.unlink(missing_ok=True)
        raise


# ---- events


def append_event(folder: Path, kind: str, **what: Any) -> None:
    """Appends one line to `events.jsonl`: `{"time_ns": …, "event": kind, …}`, on the load generator's clock.

    All of it or nothing: what a full disk took only a part of is taken back, so that the next line begins a line.
    """
    line = json.dumps({"time_ns": what.pop("time_ns", None) or time.time_ns(), "event": kind, **what}) + "\n"
    out = os.open(folder / EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        before, left = os.fstat(out).st_size, line.encode()
        try:
            while left:
                left = left[os.write(out, left) :]
        except OSError:
            os.ftruncate(out, before)
            raise
    finally:
        os.close(out)


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
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except json.JSONDecodeError as problem:
            if number == len(lines):  # no newline after it: the writer was killed inside this line
                return
            raise RunError(f"{path}, line {number}: not valid JSON ({problem.msg})") from None
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


def taken(folder: Path) -> str | None:
    """Why no run can begin there: it is a run's, or holds what no run that ended before its first row leaves."""
    if (folder / MANIFEST).exists():
        return f"{folder} is a run folder already; choose another --run-id"
    if not folder.is_dir():
        return f"{folder} is no folder; choose another --run-id" if folder.exists() else None
    theirs = sorted({path.name for path in folder.iterdir()} - set(BEFORE))
    return f"{folder} is there already and holds {theirs[0]}; choose another --run-id" if theirs else None


def segments(folder: Path, table: str) -> list[Path]:
    """The not yet sealed Arrow IPC files of `requests` or `devices`, oldest first."""
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


def sealed_path(folder: Path, table: str) -> Path:
    return folder / f"{table}.parquet"
