"""`headroom report` over ten million requests on eight GPUs, beside hand-written queries for a part of its figures.

Each row of the table is a process of its own: `headroom report --no-page` on a sealed folder; DuckDB and Polars with
the same join (each request and the sample of its device) and the same summary (counts, five percentiles of latency, two
more, means of stages and of what the devices did, by step and endpoint); and Arrow that only decodes the columns that
the report reads, on all cores and on one. They take turns, round by round; the best of each counts, and the ratios are
of one round each, their median. `whole` is from the start of the process to its end, `imported` from when it has its
modules. `report` does more than the queries: intervals, steadiness, queue growth, ledger, comparison, breakdown,
verdict. `--rows 1e8` is for the memory: the queries are left out there.

    python tests/bench/ten_million.py [--rows 1e7] [--rates 20] [--rounds 3] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

OURS = "headroom report --no-page"

REPORT = """
import sys, time
from pathlib import Path
import analysis.kernel, analysis.order, analysis.steps, analysis.store, analysis.summary, headroom, rich.table
from scipy import special
began = time.perf_counter()
code = headroom.make_report(Path(sys.argv[1]), page=False)
print(time.perf_counter() - began)
"""

DECODE = """
import sys, time
import pyarrow.parquet as pq
began = time.perf_counter()
source = pq.ParquetFile(sys.argv[1] + "/requests.parquet", read_dictionary=["endpoint", "status", "error", "device"])
columns, threads = sys.argv[2].split(","), sys.argv[3] == "all"
for group in range(source.num_row_groups):
    source.read_row_group(group, columns=columns, use_threads=threads)
print(time.perf_counter() - began)
"""

DUCKDB = """
import sys, time
import duckdb
began = time.perf_counter()
folder = sys.argv[1]
print(len(duckdb.sql(f'''
WITH r AS (
  SELECT step, endpoint, device, status = '200' AND error IS NULL AS ok,
    CASE WHEN status = '200' AND error IS NULL THEN done_ns - intended_ns ELSE 9000000000000000 END AS latency,
    done_ns - sent_ns AS service, sent_ns - intended_ns AS late, sent_ns + (done_ns - sent_ns) // 2 AS middle,
    handled_ms, queue_ms, batch_ms, h2d_ms, compute_ms, d2h_ms, server_ms, batch_rows
  FROM '{folder}/requests.parquet'),
j AS (
  SELECT r.*, d.util_pct, d.power_w, d.sm_mhz
  FROM r ASOF LEFT JOIN '{folder}/devices.parquet' d ON r.device = d.device AND r.middle >= d.time_ns)
SELECT step, endpoint, count(*), sum(ok::int), quantile_disc(latency, [.5, .9, .95, .99, .999]),
  quantile_disc(service, .99), quantile_disc(late, .99), avg(handled_ms), avg(queue_ms), avg(batch_ms), avg(h2d_ms),
  avg(compute_ms), avg(d2h_ms), avg(server_ms), avg(batch_rows), avg(util_pct), avg(power_w), avg(sm_mhz)
FROM j GROUP BY step, endpoint ORDER BY step''').fetchall()))
print(time.perf_counter() - began)
"""

POLARS = """
import sys, time, warnings
import polars as pl
began = time.perf_counter()
warnings.simplefilter("ignore")
folder = sys.argv[1]
ok = (pl.col("status") == "200") & pl.col("error").is_null()
stages = [f"{name}_ms" for name in ("handled", "queue", "batch", "h2d", "compute", "d2h", "server")] + ["batch_rows"]
devices = (
    pl.scan_parquet(folder + "/devices.parquet").select("device", "time_ns", "util_pct", "power_w", "sm_mhz")
    .sort("time_ns")
)
took = pl.col("done_ns") - pl.col("intended_ns")
service = pl.col("done_ns") - pl.col("sent_ns")
requests = pl.scan_parquet(folder + "/requests.parquet").select(
    "step", "endpoint", "device", ok.alias("ok"),
    pl.when(ok).then(took).otherwise(9_000_000_000_000_000).alias("latency"),
    service.alias("service"), (pl.col("sent_ns") - pl.col("intended_ns")).alias("late"),
    (pl.col("sent_ns") + service // 2).alias("middle"), *stages,
).sort("middle")
joined = requests.join_asof(
    devices, left_on="middle", right_on="time_ns", by="device", strategy="nearest", tolerance=100_000_000
)
print(joined.group_by("step", "endpoint").agg(
    pl.len(), pl.col("ok").sum(),
    *[pl.col("latency").quantile(q, "higher").alias(str(q)) for q in (0.5, 0.9, 0.95, 0.99, 0.999)],
    pl.col("service").quantile(0.99, "higher"), pl.col("late").quantile(0.99, "higher"),
    pl.col(*stages, "util_pct", "power_w", "sm_mhz").mean(),
).sort("step").collect(engine="streaming").height)
print(time.perf_counter() - began)
"""


def measured(command: list[str]) -> tuple[float, float, float]:
    """Seconds of a process, of these the ones that it counted itself, and its peak megabytes."""
    began = time.perf_counter()
    where = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=where) as it:
        assert it.stdout is not None
        said = it.stdout.read()
        _, status, used = os.wait4(it.pid, 0)
        it.returncode = os.waitstatus_to_exitcode(status)
    if it.returncode:
        raise SystemExit(f"{' '.join(command[:2])} … ended with {it.returncode}")
    return time.perf_counter() - began, float(said.splitlines()[-1]), used.ru_maxrss / 1e3


def main() -> None:
    import wide

    from analysis.passes import COLUMNS

    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", type=int, default=20, help="steps of each endpoint; 1 makes two long ones")
    parser.add_argument("--keep", type=Path, help="use or leave the run folder here")
    asked = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="headroom-bench-"))
    folder = asked.keep or scratch / "run"
    try:
        if not folder.exists():
            print(f"writing {asked.rows:,.0f} requests", file=sys.stderr)
            wide.write(folder, int(asked.rows), asked.rates)
        names = ",".join(COLUMNS)
        scripts = {
            OURS: [REPORT],
            "decoding alone, all cores": [DECODE, names, "all"],
            "decoding alone, one core": [DECODE, names, "one"],
            "DuckDB": [DUCKDB],
            "Polars": [POLARS],
        }
        commands = {
            name: [sys.executable, "-c", script, str(folder), *more] for name, (script, *more) in scripts.items()
        }
        for name in ("DuckDB", "Polars"):
            if asked.rows > 2e7 or find_spec(name.lower()) is None:
                print(f"{name} is left out: {'too many rows' if asked.rows > 2e7 else 'it is not installed'}")
                commands.pop(name)
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
        measured(commands[OURS])  # the compiled loop, and the file in memory
        for _ in range(asked.rounds):
            for name, command in commands.items():
                found[name].append(measured(command))
        print(f"{'best of each, seconds':28}   whole  imported  peak MB  report ÷ it  imported")
        result: dict[str, dict[str, float]] = {}
        for name, runs in found.items():
            whole, inside, peak = min(r[0] for r in runs), min(r[1] for r in runs), max(r[2] for r in runs)
            both = list(zip(found[OURS], runs, strict=True))
            ratios = [statistics.median(ours[k] / other[k] for ours, other in both) for k in (0, 1)]
            print(f"{name:28} {whole:7.2f} {inside:9.2f} {peak:8,.0f} {ratios[0]:12.2f} {ratios[1]:9.2f}")
            figures = {
                "whole_s": whole,
                "imported_s": inside,
                "mb": peak,
                "ratio": ratios[0],
                "ratio_imported": ratios[1],
            }
            result[name] = {key: round(value, 3) for key, value in figures.items()}
        print(json.dumps({"bench": "ten_million", "rows": asked.rows, "steps": 2 * asked.rates, "found": result}))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
