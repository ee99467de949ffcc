"""What it costs to watch: counters, the compiler's check, a profiler that is off, and the sampling of responses.

Physics: each is a few dictionary look-ups on the way of a batch or of a request, in the thread that also runs the
model's Python, so it is paid in full by a model that is quick. The budget is 2 µs a request at a batch of one.

Prints a table (ns per batch, ns per request: medians of the rounds, the lowest and the highest), then one JSON line.

    python tests/bench/watching.py
    python tests/bench/watching.py --rounds 21
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import in_turns, last_line, shown, spread  # noqa: E402

STAGES_NS = {"batch": 1_000, "h2d": 1_000, "compute": 3_000_000, "d2h": 2_000}
CALLS = 2_000


def cases(requests: int) -> dict[str, Callable[[], Any]]:
    """What is called once per batch of so many requests."""
    import numpy as np
    import torch

    from tailrate.serve.engine.job import Job
    from tailrate.serve.engine.live_parity import Samples
    from tailrate.serve.engine.profiling import Profiler
    from tailrate.serve.runner.compile_watch import Compiler
    from tailrate.serve.telemetry.statistics import Counters

    counters, compiler, profiler = Counters(), Compiler(), Profiler(None, "")
    torch.compile(lambda x: x + 1, dynamic=False, backend="eager")(torch.ones(1))
    compiler.ready()
    samples = Samples(0.001, 0, ("y",), lambda event: None)
    samples.compare_with(lambda arrays: [torch.from_numpy(arrays[0])], lambda found: None)
    image = np.zeros((1, 3, 224, 224), np.uint8)
    jobs = [Job({"x": image}, 1, frozenset("y"), 0, outputs={"y": np.zeros((1, 1000), np.float32)})] * requests
    queued_ns = [1_000_000] * requests

    def answer_all() -> None:
        for _ in range(requests):
            counters.answer(5_000_000)

    def profile() -> None:
        with profiler.batch():
            pass

    def sample() -> None:
        samples.batch(jobs)
        while len(samples._kept) > 1:  # as if there had been a pause
            samples._kept_bytes -= samples._kept.popleft().nbytes

    return {
        "counters, batch": lambda: counters.batch(requests, STAGES_NS, queued_ns),
        "counters, answers": answer_all,
        "compiler, nothing happened": compiler.happened,
        "profiler, off": profile,
        "samples, 1 in 1000": sample,
    }


def per_call_ns(work: Callable[[], Any]) -> float:
    begun = time.perf_counter_ns()
    for _ in range(CALLS):
        work()
    return (time.perf_counter_ns() - begun) / CALLS


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--rounds", type=int, default=9)
    return found


def main() -> None:
    options = parser().parse_args()
    rows = []
    print(f"{'what':<28} {'requests':>8} {'ns/batch':>24} {'ns/request':>21}")
    for requests in (1, 8, 64):
        ways = {what: partial(per_call_ns, work) for what, work in cases(requests).items()}
        found = in_turns(options.rounds, ways)
        found["all"] = [sum(each) for each in zip(*found.values(), strict=True)]
        for what, per_batch_ns in found.items():
            batch, request = spread(per_batch_ns), spread(ns / requests for ns in per_batch_ns)
            print(f"{what:<28} {requests:8} {shown(batch, '.0f', 24)} {shown(request, '.0f', 21)}")
            rows.append({"what": what, "requests": requests, "ns_per_batch": batch, "ns_per_request": request})
    last_line("watching", rows=rows)


if __name__ == "__main__":
    main()
