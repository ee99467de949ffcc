"""What it costs to watch: counters, the compiler's check, a profiler that is off, and the sampling of responses.

Physics: each is a few dictionary look-ups on the way of a batch or of a request, in the thread that also runs the
model's Python, so it is paid in full by a model that is quick. The budget is 2 µs a request at a batch of one.

Prints a table (ns per batch, ns per request, smallest of several rounds), then one JSON line.

    python tests/bench/watching.py
    python tests/bench/watching.py --rounds 21
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

STAGES_NS = {"batch": 1_000, "h2d": 1_000, "compute": 3_000_000, "d2h": 2_000}
CALLS = 2_000


def cases(requests: int) -> dict[str, Callable[[], Any]]:
    """What is called once per batch of so many requests."""
    import numpy as np
    import torch

    from serve.compiler import Compiler
    from serve.counters import Counters
    from serve.job import Job
    from serve.profiling import Profiler
    from serve.sampling import Samples

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
            counters.answer(True, 5_000_000)

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    rows = []
    print(f"{'what':<28} {'requests':>8} {'ns/batch':>9} {'ns/request':>11}")
    for requests in (1, 8, 64):
        found = cases(requests)
        best = dict.fromkeys(found, float("inf"))
        for _ in range(options.rounds):  # in turns, so that a slow moment of the machine meets all of them
            for what, work in found.items():
                best[what] = min(best[what], per_call_ns(work))
        best["all"] = sum(best.values())
        for what, ns in best.items():
            print(f"{what:<28} {requests:8} {ns:9.0f} {ns / requests:11.0f}")
            rows.append({"what": what, "requests": requests, "ns_per_batch": ns, "ns_per_request": ns / requests})
    print(json.dumps({"benchmark": "watching", "rows": rows}))


if __name__ == "__main__":
    main()
