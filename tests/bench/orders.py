"""How long before a block's first instant each load process knows of it, and whether its first arrivals are late.

A block is prepared by all, then all are told its start; `lead_ms` of the `load_cpu` events is what is left of the 0.3 s
when that has come. Were it below zero, the arrivals of a block's first instants would be late by it: because of orders.
Arrivals are late for other reasons, too, as these processes have only this machine's cores; the rest of each block says
by how much.

Prints for each number of load processes the least lead and its median, how late the orders made anything, and how late
arrivals were, P50, P99 and at most, in the first second of a block and after it. The last line is JSON.

    python tests/bench/orders.py
    python tests/bench/orders.py --workers 64 --blocks 10 --rate 100
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line  # noqa: E402
from bench.schedule_kept import server  # noqa: E402

from tailrate import analysis  # noqa: E402
from tailrate.serve.deploy.haproxy import free_port  # noqa: E402

Late = dict[str, float]


def measured(workers: int, blocks: int, rate: float, url: str, folder: Path) -> dict[str, float | Late]:
    words = [sys.executable, "-m", "locust", "-f", "loadtest/null.py", "--headless", "--mode", "hold", "--host", url]
    port = str(free_port())
    words += ["--processes", str(workers), "--master-bind-port", port, "--master-port", port]
    words += ["--rates", ",".join([str(rate)] * blocks), "--step-seconds", "3"]
    words += ["--settle-seconds", "0", "--idle-seconds", "0", "--variants", "exact"]
    began = time.monotonic()
    done = subprocess.run(
        [*words, "--run-dir", str(folder.parent), "--run-id", folder.name], cwd=ROOT, capture_output=True, text=True
    )
    if not folder.exists():
        raise SystemExit(done.stderr[-2000:])
    run = analysis.load(folder)
    told = [event for event in run.events if event["event"] == "load_cpu"]
    if len(told) != workers * blocks:
        raise SystemExit(f"{len(told)} shares were driven instead of {workers} x {blocks}: {done.stderr[-2000:]}")
    lead = np.array([event["lead_ms"] for event in told])
    rows = run.requests(columns=["step", "intended_ns", "late_ms"])
    starts = {step.summary.index: step.start_ns for step in run.measured}
    into_s = (rows["intended_ns"] - rows["step"].astype(int).map(starts)).to_numpy(dtype=float) / 1e9
    late = rows["late_ms"].to_numpy(dtype=float)
    return {
        "workers": workers, "lead_least_ms": float(lead.min()), "lead_median_ms": float(np.median(lead)),
        "late_by_orders_ms": max(0.0, -float(lead.min())),
        "first_second": lateness(late[into_s < 1]), "after": lateness(late[into_s >= 1]),
        "took_s": time.monotonic() - began,
    }  # fmt: skip


def lateness(ms: np.ndarray) -> Late:
    ms = ms[np.isfinite(ms)]
    return {"n": len(ms), "p50": float(np.median(ms)), "p99": float(np.quantile(ms, 0.99)), "max": float(ms.max())}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--workers", default="8,64")
    found.add_argument("--blocks", type=int, default=6)
    found.add_argument("--rate", type=float, default=100.0, help="arrivals a second, of all of them")
    return found


def main() -> None:
    options = parser().parse_args()
    rows = []
    title = f"{'workers':>7} {'lead least':>11} {'median':>8} {'late by orders':>15}"
    print(f"{title}   late in the first second, and after it: P50 / P99 / max")
    with tempfile.TemporaryDirectory() as scratch, server("uvicorn", Path(scratch)) as url:
        for number in map(int, options.workers.split(",")):
            row = measured(number, options.blocks, options.rate, url, Path(scratch) / f"w{number}")
            figures = ["{p50:.2f} / {p99:.2f} / {max:.2f} ms".format(**row[key]) for key in ("first_second", "after")]  # type: ignore[arg-type]
            print(
                f"{number:>7} {row['lead_least_ms']:8.1f} ms {row['lead_median_ms']:5.1f} ms "
                f"{row['late_by_orders_ms']:12.2f} ms   {'; '.join(figures)}",
                flush=True,
            )
            rows.append(row)
    last_line("orders", rate=options.rate, blocks=options.blocks, rows=rows)


if __name__ == "__main__":
    main()
