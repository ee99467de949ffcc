"""`tailrate report` over ten million requests on eight GPUs, beside hand-written queries for a part of its figures.

Each row of the table is a process of its own: `tailrate report --no-page` on a sealed folder; DuckDB and Polars with
the same join (each request and the sample of its device) and the same summary (counts, five percentiles of latency, two
more, means of stages and of what the devices did, by step and endpoint); and Arrow that only decodes the columns that
the report reads, on all cores and on one. With `--gaps 200` answers are streams with so many gaps each: ours alone, as
the queries know none. They take turns, round by round; each figure is the median of the rounds
with the lowest and the highest, and ratios are of one round each. `whole` is from the start of the process to its end,
`imported` from when it has its modules. `report` does more than the queries: intervals, steadiness, queue growth,
ledger, comparison, breakdown, verdict. `--rows 1e8` is for the memory: the queries are left out there.

    python tests/bench/ten_million.py [--rows 1e7] [--rates 20] [--gaps 0] [--rounds 3] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import in_turns, last_line, over, shown, spread  # noqa: E402

OURS = "tailrate report --no-page"

REPORT = """
import sys, time
from pathlib import Path
import rich.table
from tailrate.analysis.counting import loop, order_statistics, streams
from tailrate.analysis.exports import report_json
from tailrate.analysis.verdicts import run
from tailrate.analysis.steps import measure
from tailrate.cli.reporting import make_report
began = time.perf_counter()
code = make_report(Path(sys.argv[1]), page=False)
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


def apart(script: str, *words: str) -> str:
    where = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])}
    command = [sys.executable, "-c", script, *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=where).stdout.strip()


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--rows", type=float, default=1e7)
    found.add_argument("--rounds", type=int, default=3)
    found.add_argument("--rates", type=int, default=20, help="steps of each endpoint; 1 makes two long ones")
    found.add_argument("--gaps", type=int, default=0, help="of each answer, which is a stream then")
    found.add_argument("--keep", type=Path, help="use or leave the run folder here")
    return found


def main() -> None:
    asked = parser().parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="tailrate-bench-"))
    folder = asked.keep or scratch / "run"
    try:
        if not folder.exists():
            print(f"writing {asked.rows:,.0f} requests", file=sys.stderr)
            # in a process of its own: the peak of one that is started here is at least what this one has
            apart("import sys, wide; from pathlib import Path; wide.write(Path(sys.argv[1]), *map(int, sys.argv[2:]))",
                  str(folder), str(int(asked.rows)), str(asked.rates), str(asked.gaps))  # fmt: skip
        names = apart("from tailrate.analysis.counting.counted_part import COLUMNS; print(','.join(COLUMNS))")
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
        for name in [name for name in commands if asked.gaps and name != OURS]:
            commands.pop(name)
        for name in ("DuckDB", "Polars") if not asked.gaps else ():
            if asked.rows > 2e7 or find_spec(name.lower()) is None:
                print(f"{name} is left out: {'too many rows' if asked.rows > 2e7 else 'it is not installed'}")
                commands.pop(name)
        measured(commands[OURS])  # the compiled loop, and the file in memory
        found = in_turns(asked.rounds, {name: partial(measured, command) for name, command in commands.items()})
        print(f"{'seconds':28} {'whole':>19} {'imported':>19} {'peak MB':>8} {'report ÷ it':>18} {'imported':>18}")
        result: dict[str, dict[str, Any]] = {}
        for name, runs in found.items():
            ours = found[OURS]
            row: dict[str, Any] = {
                "whole_s": spread(run[0] for run in runs),
                "imported_s": spread(run[1] for run in runs),
                "mb": max(run[2] for run in runs),
                "ratio": over((run[0] for run in ours), (run[0] for run in runs)),
                "ratio_imported": over((run[1] for run in ours), (run[1] for run in runs)),
            }
            result[name] = row
            times = f"{shown(row['whole_s'], '.2f', 19)} {shown(row['imported_s'], '.2f', 19)} {row['mb']:8,.0f}"
            print(f"{name:28} {times} {shown(row['ratio'], '.2f', 18)} {shown(row['ratio_imported'], '.2f', 18)}")
        last_line("ten_million", rows=asked.rows, gaps=asked.gaps, steps=2 * asked.rates, found=result)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
