"""Run folders with a known truth, written exactly as wire 2 says, for tests of whatever reads them.

`make_run` takes a list of `Load`s (one per step) and writes the folder, sealed or as segments; what it
returns holds the rows that it wrote. Latencies come from a function of (generator, intended seconds).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tailrate.analysis.records.device_rows import DEVICE_COLUMNS
from tailrate.analysis.records.folder import DEVICES, METRICS, REQUESTS, append_event, sealed_path, segment_path
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.records.metric_rows import METRIC_COLUMNS
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.records.rows import REQUEST_COLUMNS, arrow_type

Floats = npt.NDArray[np.float64]
Latency = Callable[[np.random.Generator, Floats], Floats]

START_NS = 1_790_000_000_000_000_000
DAY_NS = 86_400 * 10**9
GPU = "GPU-11111111-2222-3333-4444-555555555555"


def constant(ms: float) -> Latency:
    return lambda rng, at_s: np.full(len(at_s), ms)


def lognormal(median_ms: float, sigma: float = 0.3) -> Latency:
    return lambda rng, at_s: median_ms * np.exp(sigma * rng.normal(size=len(at_s)))


def queue(service_ms: float) -> Latency:
    """One server, first come first served, always `service_ms` a request: overloaded above 1000 ÷ service_ms."""

    def waits(rng: np.random.Generator, at_s: Floats) -> Floats:
        busy = np.arange(1, len(at_s) + 1) * service_ms / 1e3
        done: Floats = busy + np.maximum.accumulate(at_s - np.concatenate([[0.0], busy[:-1]]))
        return (done - at_s) * 1e3

    return waits


@dataclass(frozen=True)
class Load:
    """One step as it came out."""

    endpoint: str
    rate: float
    latency: Latency = field(default_factory=lambda: lognormal(10.0))
    seconds: float = 10.0
    settle_s: float = 0.0
    at_s: float | None = None
    """Start of the step since the start of the run; None: when the step before it ended."""
    failed: float = 0.0
    """Share answered 503, at random; 1 is all."""
    dropped: float = 0.0
    timed_out: float = 0.0
    late_ms: float = 0.1
    device: str | None = GPU
    block: int = 0


def answered(rows: pd.DataFrame, start_s: float, end_s: float) -> int:
    """Successes that came in a window since the run's start, whenever they were due."""
    done_s = (rows["done_ns"][rows["status"] == "200"].astype("int64") - START_NS) / 1e9
    return int(((done_s >= start_s) & (done_s < end_s)).sum())


@dataclass(frozen=True)
class Waveform:
    """A device: 200 W ± 80 W over 10 s, 90 % busy, its temperature the seconds since the start of the run."""

    device: str = GPU
    host: str = "gpu-host"
    period_s: float = 0.1
    util_pct: float | None = 90.0
    counter: bool = True
    power: bool = True
    idle_s: float = 5.0
    """Sampled for so long before the first step, at 40 W."""

    def power_w(self, at_s: Floats) -> Floats:
        return np.where(at_s < 0, 40.0, 200.0 + 80.0 * np.sin(0.2 * np.pi * at_s))

    def energy_j(self, at_s: Floats) -> Floats:
        """The exact integral of `power_w` since the first sample."""
        loaded = 200.0 * at_s + 80.0 / (0.2 * np.pi) * (1 - np.cos(0.2 * np.pi * at_s))
        return 40.0 * self.idle_s + np.where(at_s < 0, 40.0 * at_s, loaded)


@dataclass(frozen=True)
class Written:
    """What `make_run` put into the folder."""

    folder: Path
    requests: pd.DataFrame
    devices: pd.DataFrame
    manifest: Manifest
    batch_ends: list[tuple[int, int]]
    """(bytes, rows) of the requests' segment after each batch; empty when sealed."""

    def of(self, step: int) -> pd.DataFrame:
        return self.requests[self.requests["step"] == step]

    def cut(self, batches: int, extra_bytes: int = 0) -> int:
        """Truncates the requests' segment after so many whole batches and some bytes more; the rows that are left."""
        size, rows = self.batch_ends[batches - 1] if batches else (0, 0)
        path = segment_path(self.folder, REQUESTS, 0)
        with path.open("r+b") as segment:
            segment.truncate(size + extra_bytes)
        return rows


def make_run(
    folder: Path,
    loads: Sequence[Load],
    *,
    seed: int = 1,
    mode: str = "ramp",
    slo: Sequence[str] = (),
    poisson: bool = False,
    devices: Sequence[Waveform] = (),
    offset_ns: int = 0,
    drift_ppm: float = 0.0,
    error_ns: int = 100_000,
    sealed: bool = True,
    status: str = "complete",
    stopped_s: float | None = None,
    foreign: bool = False,
    labels: Sequence[str | None] = (),
) -> Written:
    """Writes a run folder.

    `offset_ns` and `drift_ppm` shift the device host's clock against the load generator's, and the manifest
    says so. `stopped_s` leaves out what was due later. `foreign` leaves out what only our server sends. Arrivals get
    `labels` in turn.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    steps: list[dict[str, Any]] = []
    tables = []
    clock_s = 0.0
    for index, load in enumerate(loads):
        begin_s = clock_s if load.at_s is None else load.at_s
        clock_s = begin_s + load.seconds
        times = {"start_ns": START_NS + round(begin_s * 1e9), "end_ns": START_NS + round(clock_s * 1e9)}
        plan = {"index": index, "endpoint": load.endpoint, "rate": load.rate, "seconds": load.seconds}
        steps.append({**plan, "settle_s": load.settle_s, "block": load.block, **times})
        tables.append(_arrivals(rng, index, load, begin_s, poisson))
    requests = pd.concat(tables, ignore_index=True)
    if labels:
        requests["data_row"] = requests["seq"]
        requests["label"] = [labels[seq % len(labels)] for seq in requests["seq"]]
    if stopped_s is not None:
        requests = requests[requests["intended_ns"] < START_NS + round(stopped_s * 1e9)].reset_index(drop=True)
    end_s = clock_s if stopped_s is None else stopped_s
    samples = [_samples(waveform, end_s, offset_ns, drift_ppm) for waveform in devices]
    sampled = pd.concat(samples, ignore_index=True) if samples else pd.DataFrame(columns=list(DEVICE_COLUMNS))
    endpoints = []
    for name in dict.fromkeys(load.endpoint for load in loads):
        model, _, variant = name.rpartition("/")
        path = f"/v2/models/{model}/versions/{variant}/infer"
        endpoints.append({"model": model, "variant": variant, "path": path, "device": GPU, "max_batch": 16})
    counts = requests["status"].value_counts()
    outcomes = {"ok": "200", "timed_out": "timeout", "dropped": "dropped", "lost": "lost"}
    tally = {outcome: int(counts.get(status, 0)) for outcome, status in outcomes.items()}
    failed = len(requests) - sum(tally.values())
    hosts = sorted({waveform.host for waveform in devices})
    clock = {"offset_ns": offset_ns, "error_ns": error_ns, "drift_ppm": drift_ppm, "at_ns": START_NS}
    manifest = Manifest(
        id=folder.name,
        status=status,
        scenario={
            "name": "synthetic",
            "mode": mode,
            "seed": seed,
            "arrivals": "poisson" if poisson else "constant",
            "slo": [Slo.parse(text).as_json() for text in slo],
            "timeout_s": 10,
            "max_in_flight": 1000,
            "planned_steps": len(loads),
            "steps": steps,
        },
        endpoints=endpoints,
        started_ns=START_NS,
        finished_ns=0 if status == "running" else START_NS + round(end_s * 1e9),
        clock=[{"host": host, **clock} for host in hosts],
        totals={} if status == "running" else {"scheduled": len(requests), **tally, "failed": failed},
    )
    if labels:
        manifest.scenario["data"] = {"path": "rows.csv", "order": "in-order", "reuse": "reused", "label": "kind"}
    for waveform in devices[:1]:
        idle_ns = round(waveform.idle_s * 1e9)
        append_event(folder, "idle", time_ns=START_NS, start_ns=START_NS - idle_ns, end_ns=START_NS)
    if foreign:
        manifest.clock = []
        ours = [
            "queue_ms",
            "batch_ms",
            "h2d_ms",
            "compute_ms",
            "d2h_ms",
            "server_ms",
            "batch_rows",
            "replica",
            "device",
        ]
        requests = requests.drop(columns=[*ours, "worker", "bytes_out"])
    manifest.write(folder)
    batch_ends: list[tuple[int, int]] = []
    if sealed:
        _write_sealed(folder, REQUESTS, requests)
        if len(sampled) or not foreign:
            _write_sealed(folder, DEVICES, sampled)
    else:
        batch_ends = _write_segment(folder, REQUESTS, requests)
        _write_segment(folder, DEVICES, sampled)
    return Written(folder, requests, sampled, manifest, batch_ends)


def _arrivals(rng: np.random.Generator, index: int, load: Load, begin_s: float, poisson: bool) -> pd.DataFrame:
    if poisson:
        gaps = rng.exponential(1 / load.rate, size=int(load.rate * load.seconds * 1.5) + 50)
        at_s = np.cumsum(gaps)
        at_s = at_s[at_s < load.seconds]
    else:
        at_s = np.arange(round(load.rate * load.seconds)) / load.rate
    n = len(at_s)
    latency_ms = load.latency(rng, at_s)
    intended = START_NS + np.rint((begin_s + at_s) * 1e9).astype(np.int64)
    sent = intended + round(load.late_ms * 1e6)
    done = intended + np.rint(np.maximum(latency_ms, load.late_ms) * 1e6).astype(np.int64)
    chance = rng.random(n)
    status = np.full(n, "200", dtype=object)
    status[chance < load.failed] = "503"
    status[(chance >= load.failed) & (chance < load.failed + load.dropped)] = "dropped"
    bad = load.failed + load.dropped
    status[(chance >= bad) & (chance < bad + load.timed_out)] = "timeout"
    ok, unsent = status == "200", status == "dropped"
    service_ms = (done - sent) / 1e6
    shares = {"queue_ms": 0.5, "batch_ms": 0.1, "h2d_ms": 0.05, "compute_ms": 0.25, "d2h_ms": 0.05, "server_ms": 0.95}
    return pd.DataFrame(
        {
            "worker": 0,
            "seq": np.arange(n),
            "step": index,
            "endpoint": load.endpoint,
            "intended_ns": intended,
            "sent_ns": pd.arrays.IntegerArray(sent, unsent),
            "done_ns": pd.arrays.IntegerArray(done, unsent),
            "status": status,
            "error": np.where(ok, None, status),
            "bytes_in": 512,
            "bytes_out": pd.arrays.IntegerArray(np.where(ok, 64, 0), unsent),
            "rows": 1,
            **{name: np.where(ok, service_ms * share, np.nan) for name, share in shares.items()},
            "batch_rows": pd.arrays.IntegerArray(np.full(n, 4), ~ok),
            "replica": np.where(ok, "replica-0", None),
            "device": np.where(ok, load.device, None),
        }
    )


def _samples(waveform: Waveform, end_s: float, offset_ns: int, drift_ppm: float) -> pd.DataFrame:
    at_s = np.arange(-waveform.idle_s, end_s + 2 * waveform.period_s, waveform.period_s)
    since_ns = np.rint(at_s * 1e9)
    n = len(at_s)
    nothing = np.full(n, np.nan)
    return pd.DataFrame(
        {
            "time_ns": START_NS + (since_ns * (1 + drift_ppm * 1e-6)).astype(np.int64) + offset_ns,
            "host": waveform.host,
            "device": waveform.device,
            "index": 0,
            "util_pct": nothing if waveform.util_pct is None else np.full(n, waveform.util_pct),
            "mem_util_pct": 40.0,
            "mem_bytes": pd.array(1_000_000_000 + np.arange(n), dtype="Int64"),
            "power_w": waveform.power_w(at_s) if waveform.power else nothing,
            "energy_j": waveform.energy_j(at_s) if waveform.counter else nothing,
            "temp_c": at_s,
            "sm_mhz": 1410.0,
            "mem_mhz": nothing,
            "throttle_bits": pd.array(np.where(np.arange(n) % 4 == 0, 0x4, 0x1), dtype="Int64"),
        }
    )


def _table(frame: pd.DataFrame, columns: dict[str, str]) -> Any:
    kinds = {name: arrow_type(pa, kind) for name, kind in columns.items() if name in frame.columns}
    arrays = {name: pa.array(frame[name], type=kind, from_pandas=True) for name, kind in kinds.items()}
    return pa.table(arrays)


def _columns(table: str) -> dict[str, str]:
    return {REQUESTS: REQUEST_COLUMNS, DEVICES: DEVICE_COLUMNS, METRICS: METRIC_COLUMNS}[table]


def _write_sealed(folder: Path, table: str, frame: pd.DataFrame) -> None:
    pq.write_table(_table(frame, _columns(table)), sealed_path(folder, table))


def _write_segment(folder: Path, table: str, frame: pd.DataFrame) -> list[tuple[int, int]]:
    """One batch per second of run, each announced in `events.jsonl`."""
    path = segment_path(folder, table, 0)
    whole = _table(frame, _columns(table))
    times = frame["done_ns"].fillna(frame["intended_ns"]) if table == REQUESTS else frame["time_ns"]
    second = ((times.to_numpy(dtype=np.int64) - START_NS) // 10**9).astype(np.int64)
    ends = []
    rows = 0
    with path.open("wb", buffering=0) as out, pa.ipc.new_stream(out, whole.schema) as stream:
        for number in np.unique(second):
            part = whole.take(np.flatnonzero(second == number)).combine_chunks()
            stream.write_batch(part.to_batches()[0])
            rows += len(part)
            ends.append((out.tell(), rows))
            append_event(folder, "rows", time_ns=START_NS, table=table, file=path.name, rows=rows)
    return ends


def rewrite(folder: Path, rows: pd.DataFrame, table: str = REQUESTS) -> None:
    """Replaces the sealed rows of a table."""
    _write_sealed(folder, table, rows)


def announced(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
