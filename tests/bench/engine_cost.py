"""What the engine costs a request: from `submit` to the future's callback, with a model that answers at once.

No HTTP and no Ray: one event loop submits, the engine's thread runs and delivers. Two loads: a *burst* (whoever is
answered asks again at once) and a *trickle* (40 µs of work in the loop before each request and after each answer, as
HTTP would be), the latter for several of Python's switch intervals: the shorter, the sooner the engine's thread takes
the interpreter from the loop, and the smaller its batches.

Prints a table (µs per request beyond that work, P50 and P99 from submit to answer in µs, rows per batch: medians over
rounds, with the lowest and the highest), then one JSON line.

    python tests/bench/engine_cost.py
    python tests/bench/engine_cost.py --requests 200000 --in-flight 1,8,64
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import in_turns, last_line, shown, spreads  # noqa: E402

from tailrate.serve.engine.engine import Engine, Job  # noqa: E402
from tailrate.serve.models import null  # noqa: E402
from tailrate.serve.runner.runner import NullRunner  # noqa: E402

WORK_NS = 40_000
WANTED = frozenset({"y"})


async def measured(requests: int, in_flight: int, work_ns: int) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    tensors = {"x": np.zeros((1, 16), np.uint8)}
    took_ns: list[int] = []
    over = loop.create_future()

    def work() -> None:
        end = time.perf_counter_ns() + work_ns
        while work_ns and time.perf_counter_ns() < end:
            pass

    def ask() -> None:
        work()
        engine.submit(Job(tensors, 1, WANTED, time.perf_counter_ns()))

    def answer(job: Job) -> None:
        took_ns.append(time.perf_counter_ns() - job.received_ns)
        work()
        if len(took_ns) <= requests - in_flight:
            if work_ns:
                loop.call_soon(ask)
            else:
                ask()
        elif len(took_ns) == requests:
            over.set_result(None)

    def wake(jobs: Sequence[Job]) -> None:
        for job in jobs:
            if work_ns:
                loop.call_soon(answer, job)
            else:
                answer(job)

    def deliver(jobs: Sequence[Job]) -> None:
        loop.call_soon_threadsafe(wake, jobs)

    engine = Engine(lambda say: nullcontext(NullRunner(null.spec(), 64)), deliver, max_queue=1000)
    engine.start()
    while engine.state == "LOADING":
        await asyncio.sleep(0.01)
    start = time.perf_counter_ns()
    for _ in range(in_flight):
        loop.call_soon(ask)
    await over
    wall_ns = time.perf_counter_ns() - start
    batches = engine.counters.snapshot()["execution_count"]
    engine.close()
    p50, p99 = np.quantile(took_ns, [0.5, 0.99], method="higher") / 1e3
    cost_us = (wall_ns / requests - 2 * work_ns) / 1e3
    return {"cost_us": cost_us, "p50_us": p50, "p99_us": p99, "batch_rows": requests / batches}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--requests", type=int, default=20_000)
    found.add_argument("--in-flight", default="1,64")
    found.add_argument("--rounds", type=int, default=3)
    return found


def main() -> None:
    options = parser().parse_args()
    cases = [
        (load, work_ns, int(in_flight), switch_ms)
        for load, work_ns, switches_ms in (("burst", 0, (5.0,)), ("trickle", WORK_NS, (5.0, 0.5, 0.1)))
        for in_flight in options.in_flight.split(",")
        for switch_ms in switches_ms
    ]

    def one(work_ns: int, in_flight: int, switch_ms: float) -> dict[str, float]:
        sys.setswitchinterval(switch_ms / 1e3)
        return asyncio.run(measured(options.requests, in_flight, work_ns))

    rows = []
    for case, runs in in_turns(options.rounds, {case: partial(one, *case[1:]) for case in cases}).items():
        load, _, in_flight, switch_ms = case
        rows.append({"load": load, "in_flight": in_flight, "switch_ms": switch_ms, **spreads(runs)})
    print(f"{'load':<8} {'in flight':>9} {'switch ms':>9} {'µs each':>21} {'P50 µs':>24} {'P99 µs':>26} {'rows':>6}")
    for row in rows:
        print(
            f"{row['load']:<8} {row['in_flight']:>9} {row['switch_ms']:>9g} {shown(row['cost_us'], '.2f', 21)} "
            f"{shown(row['p50_us'], '.1f', 24)} {shown(row['p99_us'], '.1f', 26)} {row['batch_rows']['median']:>6.1f}"
        )
    last_line("engine_cost", rows=rows)


if __name__ == "__main__":
    main()
