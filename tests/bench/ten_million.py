"""`headroom report` over ten million requests on eight GPUs, beside hand-written queries for a part of its figures.

Every row of the table is a whole process, from its start to its end: `headroom report --no-page` on a sealed folder;
DuckDB and Polars with the same join (each request and the sample of its device) and the same summary (counts, five
percentiles of latency, two more, means of stages and of what the devices did, by step and endpoint); and Arrow that
only decodes the columns that the report reads, on all cores. They take turns, round by round; the best of each counts,
and the ratios are of one round each. `report` does more than the queries: intervals, steadiness, queue growth, ledger,
comparison, breakdown, verdict. `--rows 1e8` is for the memory: the queries are left out there.

    python tests/bench/ten_million.py [--rows 1e7] [--rounds 3] [--keep FOLDER]
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

DECODE = """
import sys
import pyarrow.parquet as pq
source = pq.ParquetFile(sys.argv[1] + "/requests.parquet", read_dictionary=["endpoint", "status", "error", "device"])
columns = sys.argv[2].split(",")
print(sum(len(source.read_row_group(g, columns=columns)) for g in range(source.num_row_groups)))
"""

DUCKDB = """
import sys
import duckdb
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
"""

POLARS = """
import sys, warnings
import polars as pl
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
"""


def measured(command: list[str]) -> tuple[float, float]:
    """Seconds and peak megabytes of a process."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as it:
        _, status, used = os.wait4(it.pid, 0)
        it.returncode = os.waitstatus_to_exitcode(status)
    if it.returncode not in (0, 1, 3):  # verdicts
        raise SystemExit(f"{' '.join(command[:3])} … ended with {it.returncode}")
    return time.perf_counter() - began, used.ru_maxrss / 1e3


def main() -> None:
    import wide

    from analysis.tally import COLUMNS

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
        python = sys.executable
        commands = {
            "headroom report --no-page": [python, str(ROOT / "headroom.py"), "report", str(folder), "--no-page"],
            "decoding alone (Arrow)": [python, "-c", DECODE, str(folder), ",".join(COLUMNS)],
            "DuckDB": [python, "-c", DUCKDB, str(folder)],
            "Polars": [python, "-c", POLARS, str(folder)],
        }
        for name in ("DuckDB", "Polars"):
            if asked.rows > 2e7 or find_spec(name.lower()) is None:
                print(f"{name} is left out: {'too many rows' if asked.rows > 2e7 else 'it is not installed'}")
                commands.pop(name)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        measured(commands["headroom report --no-page"])  # the compiled loop, and the file in memory
        for _ in range(asked.rounds):
            for name, command in commands.items():
                found[name].append(measured(command))
        ours = [seconds for seconds, _ in found["headroom report --no-page"]]
        print(f"{'':28} {'best s':>8} {'peak MB':>8} {'report ÷ it':>12}")
        result: dict[str, dict[str, float]] = {}
        for name, runs in found.items():
            ratio = statistics.median(own / other for own, (other, _) in zip(ours, runs, strict=True))
            best, peak = min(seconds for seconds, _ in runs), max(megabytes for _, megabytes in runs)
            print(f"{name:28} {best:8.2f} {peak:8,.0f} {ratio:12.2f}")
            result[name] = {"s": round(best, 3), "mb": round(peak), "ratio": round(ratio, 3)}
        print(json.dumps({"bench": "ten_million", "rows": asked.rows, "steps": 2 * asked.rates, "found": result}))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
