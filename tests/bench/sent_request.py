"""What a request costs one load process, and how late it goes out: its driver and client, and nothing else of a run.

The driver sends Poisson arrivals to HAProxy, which gives one fixed answer; rows come as record batches and are counted,
Locust's statistics are kept. A whole run adds the conductor, which writes the rows down (`schedule_kept`). At a rate
beyond what it can send it falls behind and sends flat out, so CPU per request is then the bound: at a lower rate it
holds what alarms and the loop's turns cost as well.

Prints a table (requests per second, CPU of the process per request and in all, lateness: medians over rounds, with the
lowest and the highest), then one JSON line. Several checkouts take turns.

    python tests/bench/sent_request.py
    python tests/bench/sent_request.py --rates 20000 --trees ../before,.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import in_turns, last_line, shown, spreads  # noqa: E402
from bench.schedule_kept import PATH, server  # noqa: E402

DRIVEN = """
import gc, json, sys, time
from locust.env import Environment  # before all else, as it patches the standard library
import numpy as np
import tailrate.loadtest.engine.endpoint.protocols
from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.endpoint.credentials import Keys
from tailrate.loadtest.engine.endpoint.payloads import Inputs
from tailrate.loadtest.engine.endpoint.servers import Servers
from tailrate.loadtest.engine.endpoint.target import Endpoint
from tailrate.loadtest.engine.scenario.arrivals import Pattern
from tailrate.loadtest.engine.scenario.steps import LoadStep
from tailrate.loadtest.engine.workers.driver import Driver
from tailrate.loadtest.engine.workers.locust_statistics import LocustStatistics
from tailrate.loadtest.engine.workers.on_time.cpu_priority import precedence
from tailrate.loadtest.engine.workers.work_order import WorkOrder

url, path, rate, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
batches = []

def report(kind, content):
    if kind == "rows":
        batches.append(content["batch"])

inputs = Inputs(({"x": np.zeros((1, 1024), np.uint8)},), (1,))
driver = Driver(Servers(10.0, Keys()), inputs, 10_000, report, LocustStatistics(Environment()))
endpoint, base = Endpoint("null/exact", url, "oip", "null", "exact", path), Base.here()

def drive(seconds):
    batches.clear()
    start_ns = base.wall_ns(time.monotonic_ns() + 100_000_000)
    step = LoadStep(0, endpoint.name, rate, seconds, 0.0, 0, 1)
    driver.execute(WorkOrder(0, start_ns, base, 0, 1, Pattern(), (step,), (endpoint,)))

with precedence():
    drive(0.3)
    gc.collect()
    gc.freeze()
    began, spent = time.monotonic(), time.process_time()
    drive(seconds)
    took, spent = time.monotonic() - began, time.process_time() - spent

def column(name):
    return np.concatenate([one.column(name).to_numpy(zero_copy_only=False) for one in batches])

statuses = dict(zip(*np.unique(column("status"), return_counts=True)))
assert list(statuses) == ["200"], statuses
intended, sent = column("intended_ns"), column("sent_ns")
p50, p99 = np.quantile((sent - intended) / 1e6, [0.5, 0.99], method="higher").tolist()
rps = len(sent) / ((sent.max() - intended.min()) / 1e9)
found = {"rps": rps, "cpu_us": spent * 1e6 / len(sent), "cpu_pct": 100 * spent / took}
print(json.dumps(found | {"late_p50_ms": p50, "late_p99_ms": p99}))
"""


def once(url: str, tree: Path, rate: float, seconds: float) -> dict[str, float]:
    words = [sys.executable, "-c", DRIVEN, url, PATH, str(rate), str(seconds)]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    said = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, cwd=tree, env=environment).stdout
    found: dict[str, float] = json.loads(said)
    return found


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--rates", default="2000,5000,10000,20000")
    found.add_argument("--seconds", type=float, default=4)
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--trees", default=str(ROOT), help="checkouts, with commas")
    return found


def main() -> None:
    asked = parser().parse_args()
    trees = [Path(tree).resolve() for tree in asked.trees.split(",")]
    cases = [(float(rate), tree) for rate in asked.rates.split(",") for tree in trees]
    with tempfile.TemporaryDirectory() as folder, server("haproxy", Path(folder)) as url:
        ways = {(rate, tree): partial(once, url, tree, rate, asked.seconds) for rate, tree in cases}
        found = {case: spreads(rows) for case, rows in in_turns(asked.rounds, ways).items()}
    print(f"{'rate/s':>8} {'sent/s':>22} {'CPU us each':>20} {'CPU %':>14} {'late P50 ms':>20} {'P99 ms':>22}  tree")
    for (rate, tree), row in found.items():
        line = f"{rate:8g} {shown(row['rps'], '.0f', 22)} {shown(row['cpu_us'], '.1f', 20)}"
        line += f" {shown(row['cpu_pct'], '.0f', 14)} {shown(row['late_p50_ms'], '.3f', 20)}"
        print(f"{line} {shown(row['late_p99_ms'], '.2f', 22)}  {tree.name}")
    last_line("sent_request", rows=[{"rate": rate, "tree": tree.name, **row} for (rate, tree), row in found.items()])


if __name__ == "__main__":
    main()
