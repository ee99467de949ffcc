"""Whether a history learns a regression: how often it is red run after run, and how often where nothing changed.

Made-up histories of one endpoint with all seven figures. *Red*: P99 of runs that differ by `--noise` rises by 15 % for
good after so many earlier runs, and is asked in each of the next five. *Alarms*: all figures differ by 3 % from run to
run, nothing changed, and any of them is called worse in the next run; `later` are the four runs after it, which are
held against what the calls before left in the baseline.

    python tests/bench/regressions.py [--seeds 200] [--alarm-seeds 800] [--noise 0.01] [--before 5,6,7,8,9,10,11,12]

A table, then one JSON line.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line  # noqa: E402
from histories import calls, noisy, run_of  # noqa: E402

from tailrate.analysis.history.regression import WORSE  # noqa: E402

RISE, NEXT = 1.15, 5


def red(noise: float, before: int, seed: int) -> list[bool]:
    """Of P99 in each of the first runs after the rise."""
    by = np.exp(noise * np.random.default_rng([before, seed]).normal(size=before + NEXT))
    by[before:] *= RISE
    runs = [run_of(day, by={"p99": float(one)}) for day, one in enumerate(by)]
    return [calls(runs[: before + k])["p99"] == WORSE for k in range(1, NEXT + 1)]


def alarms(before: int, seed: int) -> list[bool]:
    """Of any figure in each of the next runs, where nothing changed."""
    runs = noisy(1000 * seed + before, before, last=NEXT)  # other ones than with more earlier runs
    return [WORSE in calls(runs[: before + k]).values() for k in range(1, NEXT + 1)]


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--seeds", type=int, default=200, help="histories with a regression, of each length")
    found.add_argument("--alarm-seeds", type=int, default=800, help="histories without one")
    found.add_argument("--noise", type=float, default=0.01, help="of P99, where it rises")
    found.add_argument("--before", default="5,6,7,8,9,10,11,12", help="earlier runs")
    found.add_argument("--jobs", type=int, default=2)
    return found


def main() -> None:
    options = parser().parse_args()
    print(f"{'earlier runs':>12}  {'red in run 1 to 5, %':38}{'alarms, %':>10}{'later, %':>10}")
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for before in map(int, options.before.split(",")):
            found = np.mean(list(pool.map(partial(red, options.noise, before), range(options.seeds))), axis=0)
            quiet = np.mean(list(pool.map(partial(alarms, before), range(options.alarm_seeds), chunksize=20)), axis=0)
            rows.append({"before": before, "red": found.tolist(), "alarms": quiet.tolist()})
            shares = ", ".join(f"{100 * one:.3g}" for one in found)
            print(f"{before:>12}  {shares:38}{100 * quiet[0]:>10.3g}{100 * quiet[1:].mean():>10.3g}", flush=True)
    last_line("regressions", rise=RISE, noise=options.noise, rows=rows)


if __name__ == "__main__":
    main()
