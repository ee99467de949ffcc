"""A sealed run folder of any size, written without ever holding it: an hour of traffic at eight GPUs.

Twenty rates, two variants, eight devices sampled at 10 Hz. Rows lie in the order in which the answers came, as the
recorder leaves them; figures that nobody can compress have all their digits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tailrate.analysis.records.device_rows import DEVICE_COLUMNS
from tailrate.analysis.records.folder import DEVICES, REQUESTS, sealed_path
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.records.rows import REQUEST_COLUMNS, arrow_type
from tailrate.analysis.run.tables import write_groups

START_NS = 1_790_000_000_000_000_000
HOUR_S = 3600.0
GPUS = [f"GPU-{n:08d}-2222-3333-4444-555555555555" for n in range(8)]
ENDPOINTS = ("resnet50/eager", "resnet50/compiled")
ROW_GROUP = 1 << 18


def write(folder: Path, rows: int, rates: int = 20, gaps: int = 0, seed: int = 1) -> Path:
    """A folder of about so many requests (Poisson), in `rates` rising steps of each endpoint.

    With `gaps` each answer is a stream with so many of them.
    """
    folder.mkdir(parents=True)
    count = rates * len(ENDPOINTS)
    seconds = HOUR_S / count
    mean = rows / HOUR_S
    steps = []
    for index in range(count):
        begin = START_NS + round(index * seconds * 1e9)
        rate = mean * (0.5 + (index // len(ENDPOINTS)) / max(1, rates - 1)) if rates > 1 else mean
        times = {"start_ns": begin, "end_ns": begin + round(seconds * 1e9)}
        plan = {"index": index, "endpoint": ENDPOINTS[index % 2], "rate": rate, "seconds": seconds}
        steps.append({**plan, "settle_s": seconds / 10, "block": 0, **times})
    scheduled = failed = 0
    requests = sealed_path(folder, REQUESTS)
    with pq.ParquetWriter(requests, _schema(REQUEST_COLUMNS), compression="zstd") as out:
        held: list[pa.Table] = []
        for step in steps:
            for table in _arrivals(np.random.default_rng([seed, step["index"]]), step, gaps):
                scheduled += len(table)
                failed += int(table["error"].length() - table["error"].null_count)
                held = [write_groups(out, pa.concat_tables([*held, table]))]
        out.write_table(pa.concat_tables(held).combine_chunks())
    pq.write_table(_samples(np.random.default_rng(seed)), sealed_path(folder, DEVICES), compression="zstd")
    models = [name.partition("/")[::2] for name in ENDPOINTS]
    Manifest(
        id=folder.name,
        status="complete",
        scenario={
            "name": "synthetic",
            "mode": "ramp",
            "seed": seed,
            "arrivals": "poisson",
            "slo": [Slo.parse("p99 ttft<60ms,p99 tpot<6ms" if gaps else "p99<60ms,errors<0.1%").as_json()],
            "timeout_s": 10,
            "max_in_flight": 1000,
            "planned_steps": count,
            "steps": steps,
        },
        endpoints=[
            {"model": model, "variant": variant, "path": f"/v2/models/{model}/versions/{variant}/infer"}
            | ({"streams": True} if gaps else {})
            for model, variant in models
        ],
        started_ns=START_NS,
        finished_ns=START_NS + round(HOUR_S * 1e9),
        clock=[{"host": "gpu-host", "offset_ns": 0, "error_ns": 100_000, "drift_ppm": 0.0, "at_ns": START_NS}],
        totals={"scheduled": scheduled, "ok": scheduled - failed, "failed": failed},
    ).write(folder)
    return folder


def _arrivals(rng: np.random.Generator, step: dict[str, float], gaps: int) -> Iterator[pa.Table]:
    """The rows of one step, in pieces of at most a few hundred thousand."""
    total = rng.poisson(step["rate"] * step["seconds"])
    pieces = max(1, total // ROW_GROUP)
    first = 0
    for piece in range(pieces):
        n = total * (piece + 1) // pieces - first
        span = step["seconds"] / pieces
        at_s = np.sort(rng.random(n)) * span + piece * span
        intended = int(step["start_ns"]) + (at_s * 1e9).astype(np.int64)
        sent = intended + (rng.gamma(2.0, 40_000, n)).astype(np.int64)
        # four decimals, as the server's header has them
        compute, queue, batch, h2d, d2h = (
            np.round(times, 4)
            for times in (
                rng.gamma(16.0, 0.4, n),
                rng.exponential(4.0, n),
                rng.exponential(0.5, n),
                rng.gamma(9.0, 0.02, n),
                rng.gamma(9.0, 0.01, n),
            )
        )
        server = np.round(queue + batch + h2d + compute + d2h, 4)
        handled_ns = ((server + rng.gamma(4.0, 0.05, n)) * 1e6).astype(np.int64)
        done = sent + handled_ns + rng.gamma(4.0, 50_000, n).astype(np.int64)
        bad = rng.random(n) < 1e-4
        order = np.argsort(done)
        gpu = rng.integers(0, 8, n).astype(np.int32)
        stages = {"queue_ms": queue, "batch_ms": batch, "h2d_ms": h2d, "compute_ms": compute, "d2h_ms": d2h}
        found = {
            "worker": pa.array(rng.integers(0, 2, n).astype(np.int32)),
            "seq": pa.array(np.arange(first, first + n)),
            "step": pa.array(np.full(n, step["index"], dtype=np.int32)),
            "endpoint": _coded(np.zeros(n, dtype=np.int32), [str(step["endpoint"])]),
            "intended_ns": pa.array(intended),
            "sent_ns": pa.array(sent),
            "done_ns": pa.array(done),
            "status": _coded(bad.astype(np.int32), ["200", "503"]),
            "error": pa.array(np.zeros(n, dtype=np.int32), mask=~bad).cast(pa.string()),
            "bytes_in": pa.array(np.full(n, 602112)),
            "bytes_out": pa.array(np.where(bad, 40, 4000)),
            "rows": pa.array(np.ones(n, dtype=np.int32)),
            **{name: pa.array(values, mask=bad) for name, values in stages.items()},
            "server_ms": pa.array(server, mask=bad),
            "batch_rows": pa.array(rng.integers(1, 33, n).astype(np.int32), mask=bad),
            "replica": _coded(gpu, [f"replica-{n}" for n in range(8)], bad),
            "device": _coded(gpu, GPUS, bad),
            "handled_ms": pa.array(handled_ns / 1e6, mask=bad),
        }
        if gaps:
            found |= _streams(rng, sent, gaps, bad)
        first += n
        whole = {name: found.get(name, pa.nulls(n)) for name in REQUEST_COLUMNS}
        yield pa.table(whole).take(order).cast(_schema(REQUEST_COLUMNS))


def _streams(rng: np.random.Generator, sent: np.ndarray, gaps: int, bad: np.ndarray) -> dict[str, pa.Array]:
    """Of the rows that are no failure: 20 ms and a queue to the first token, about 5 ms from one to the next."""
    n = len(sent)
    gaps_us = rng.integers(4800, 5312, (n, gaps), dtype=np.uint32)
    begun = sent + 20_000_000 + rng.exponential(8e6, n).astype(np.int64)
    last = begun + 1000 * gaps_us.sum(axis=1, dtype=np.int64)
    lists = pa.ListArray.from_arrays(np.arange(n + 1, dtype=np.int32) * gaps, gaps_us.ravel(), mask=pa.array(bad))
    counts = {"events": gaps + 1, "tokens_out": gaps + 1}
    return {
        "first_ns": pa.array(begun, mask=bad), "last_ns": pa.array(last, mask=bad), "done_ns": pa.array(last + 200_000),
        "gaps_us": lists, "tokens_in": pa.array(rng.integers(50, 2000, n).astype(np.int32), mask=bad),
        **{name: pa.array(np.full(n, count, np.int32), mask=bad) for name, count in counts.items()},
    }  # fmt: skip


def _coded(codes: np.ndarray, words: list[str], mask: np.ndarray | None = None) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=mask), pa.array(words)).cast(pa.string())


def _samples(rng: np.random.Generator) -> pa.Table:
    at_ns = START_NS + np.arange(-100, round(HOUR_S * 10) + 20) * 100_000_000
    n = len(at_ns)
    tables = []
    for index, name in enumerate(GPUS):
        power = 350.0 + 200.0 * np.sin(np.arange(n) / 200.0 + index)
        found = {
            "time_ns": at_ns + index * 1000,
            "host": np.full(n, "gpu-host"),
            "device": np.full(n, name),
            "index": np.full(n, index, dtype=np.int32),
            "util_pct": rng.integers(60, 101, n).astype(float),
            "mem_util_pct": rng.integers(20, 60, n).astype(float),
            "mem_bytes": np.full(n, 40 << 30),
            "power_w": power,
            "energy_j": np.cumsum(power) * 0.1,
            "temp_c": 60.0 + rng.integers(0, 10, n),
            "sm_mhz": np.full(n, 1755.0),
            "mem_mhz": np.full(n, 2619.0),
            "throttle_bits": np.where(rng.random(n) < 0.01, 0x4, 0),
        }
        tables.append(pa.table(found))
    schema = pa.schema([(name, arrow_type(pa, kind)) for name, kind in DEVICE_COLUMNS.items() if name in found])
    return pa.concat_tables(tables).sort_by("time_ns").cast(schema)


def _schema(columns: dict[str, str]) -> pa.Schema:
    return pa.schema([(name, arrow_type(pa, kind)) for name, kind in columns.items()])


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(float(sys.argv[2])), *(int(word) for word in sys.argv[3:]))
