"""The knee search against a server whose limit is known: is the true limit in the interval, and how wide is that?

The server takes 5 ms for each request, one after the other, behind HTTP (`exact.py`); arrivals are Poisson, so it
is M/D/1, and the rate at which one arrival of a hundred takes longer than 50 ms follows by arithmetic. Every seed is a
whole run of `locust -f loadtest/null.py --mode knee` and its report; `--at-once` of them run side by side.

Prints a table (interval, width, whether it holds the limit, minutes), then one JSON line.

    python tests/bench/knee.py                    a quick look: two seeds side by side, about nine minutes
    python tests/bench/knee.py --seeds 10 --at-once 5
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line, spread  # noqa: E402

SERVICE_S, LIMIT_S, SHARE = 0.005, 0.050, 0.01


def true_limit() -> float:
    """The rate with just that share over the limit, by Lindley's recursion on a few million arrivals per rate."""
    low, high = 0.5 / SERVICE_S, 0.99 / SERVICE_S
    gaps = np.random.default_rng(0).exponential(1.0, 4_000_000)  # the same ones at every rate: the share rises smoothly
    number = np.arange(len(gaps))
    for _ in range(14):
        rate = (low + high) / 2
        arrivals = np.cumsum(gaps / rate)
        finished = np.maximum.accumulate(arrivals - number * SERVICE_S) + (number + 1) * SERVICE_S
        if (finished - arrivals > LIMIT_S).mean() > SHARE:
            high = rate
        else:
            low = rate
    return (low + high) / 2


def search(seed: int, probe_s: float) -> dict[str, Any]:
    from exact import exact

    with exact(kind="queue", ms=1e3 * SERVICE_S) as url, tempfile.TemporaryDirectory() as scratch:
        words = [sys.executable, "-m", "locust", "-f", "loadtest/null.py", "--headless", "--only-summary"]
        words += ["--host", url, "--variants", "exact", "--mode", "knee", "--slo", "p99<50ms", "--rates", "50"]
        words += ["--step-seconds", str(probe_s), "--settle-seconds", "3", "--idle-seconds", "0", "--seed", str(seed)]
        began = time.monotonic()
        subprocess.run([*words, "--run-dir", scratch, "--run-id", "it"], check=True, cwd=ROOT, capture_output=True)
        took = time.monotonic() - began
        from tailrate import analysis

        run = analysis.load(Path(scratch) / "it")
        from tailrate.analysis.steps.capacity import capacities

        (found,) = capacities(run)
        rates = [step["rate"] for step in run.manifest.scenario["steps"]]
        untrusted = sum(not step.summary.trusted for step in run.measured)
    return {
        "seed": seed, "low": found.low_rps, "high": found.high_rps, "resolved": found.resolved, "why": found.limited_by,
        "seconds": took, "probes": len(rates), "untrusted": untrusted,
    }  # fmt: skip


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--seeds", type=int, default=2)
    found.add_argument("--at-once", type=int, default=2)
    found.add_argument("--step-seconds", type=float, default=30)
    return found


def main() -> None:
    options = parser().parse_args()
    limit = true_limit()
    print(f"the true limit is {limit:.1f}/s")
    print(
        f"{'seed':>4} {'low/s':>8} {'high/s':>8} {'width':>7} {'holds it':>8} {'probes':>6} {'minutes':>7}  unresolved"
    )
    with ThreadPoolExecutor(options.at_once) as pool:
        found = list(pool.map(lambda seed: search(seed, options.step_seconds), range(1, options.seeds + 1)))
    for one in found:
        one["holds"] = bool(one["low"] and one["high"] and one["low"] <= limit <= one["high"])
        one["width"] = one["high"] / one["low"] - 1 if one["low"] and one["high"] else None
        print(
            f"{one['seed']:>4} {one['low'] or 0:8.1f} {one['high'] or 0:8.1f} {one['width'] or 0:7.1%} "
            f"{one['holds']!s:>8} {one['probes']:>6} {one['seconds'] / 60:7.1f}",
            "" if one["resolved"] else one["why"],
        )
    last_line("knee", limit_rps=limit, seconds=spread(one["seconds"] for one in found), searches=found)


if __name__ == "__main__":
    main()
