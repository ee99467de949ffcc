"""How fast this machine is just now at what tests mostly do: programs that start and import, on all cores at once.

Prints its pace, 1 where the budget of `.ci/run` is meant, and half of that on a machine that takes twice as long. A
virtual machine's host has slow hours, in which the same tests take up to 1.7 times as long. Given a budget and paces
that were measured, it prints what that budget allows at them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

ROUNDS = 9
USUAL_S = 0.4
"""Of a round there."""


def start(_: int) -> None:
    subprocess.run([sys.executable, "-c", "import pandas"], check=True)


def round_s() -> float:
    began = time.monotonic()
    with ThreadPoolExecutor(cores := os.cpu_count() or 1) as pool:
        list(pool.map(start, range(cores)))
    return time.monotonic() - began


def allowed_s(budget_s: float, *paces: float) -> int:
    """Never less than the budget, and at most twice as much."""
    return round(budget_s / min(1.0, max(0.5, statistics.mean(paces))))


if __name__ == "__main__":
    if given := [float(number) for number in sys.argv[1:]]:
        print(allowed_s(*given))
    else:
        round_s()  # reads the files
        print(f"{USUAL_S / statistics.median(round_s() for _ in range(ROUNDS)):.2f}")
