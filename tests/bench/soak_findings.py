"""How often the analysis of a soak cries wolf, and how often and how well it finds what is there.

    python tests/bench/soak_findings.py [--soaks 50]      clean ones of each kind, and a fifth as many of each other

Whole folders of six hours, written, read and judged. A clean soak has a P99 whose minutes remember each other
(autoregressive with 0.5, 0.7 and 0.9) and nothing else; any finding is a false alarm. The others hold a step of P99 of
a tenth, memory that grows by 1 %/h from 2:00 on, a stall of a fifth of a second in each minute from 2:00 on, or heat
from 3:00 on. Daily soaks follow a sine of depth 0.5, two periods of it or an eighth, with the P99 of a queue that is
half full in the mean; clean, or with the same step of a tenth. Prints a table, then one JSON line.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

import soaks  # noqa: E402
from bench._rounds import last_line  # noqa: E402

from tailrate import analysis  # noqa: E402
from tailrate.analysis.soak.soak_verdict import soak  # noqa: E402

HOUR_NS = 3600 * 10**9
CARRIES = (0.5, 0.7, 0.9)
DAILY = {"twice": (0.5, 10800.0), "an eighth": (0.5, 172800.0)}


def follows(daily: tuple[float, float], step: float = 1.0) -> soaks.Truth:
    """P99 of a queue at half its capacity in the mean, twice as busy at most; at 3:12 it jumps."""

    def latency(at_h: Any) -> Any:
        busy = 0.5 * soaks.curve(soaks.Truth(daily=daily), at_h * 3600)
        return 0.5 / (1 - busy) * np.where(at_h >= 3.2, step, 1.0)

    return soaks.Truth(daily=daily, latency=latency)


CASES: dict[str, tuple[soaks.Truth, str, str, float, float]] = {
    "step": (soaks.Truth(latency=lambda h: np.where(h >= 3.2, 1.1, 1.0)), "step", "p99_ms", 3.2, 10.0),
    "leak": (soaks.Truth(memory=lambda h: 1 + 0.01 * np.maximum(0, h - 2)), "trend", "memory_bytes", 2.0, 1.0),
    "stall": (soaks.Truth(stall_ms=200.0, stall_from_h=2.0), "stall", "latency_ms", 2.0, 200.0),
    "daily step": (follows(DAILY["twice"], 1.1), "step", "p99_ms", 3.2, 10.0),
    "throttle": (soaks.Truth(throttled_from_h=3.0), "throttle", "throttled_pct", 3.0, 33.3),
}


def findings(truth: soaks.Truth, seed: int) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        found = soak(analysis.load(soaks.write(Path(folder) / "run", truth, seed)))
        assert found is not None
        return found


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--soaks", type=int, default=50)
    found.add_argument("--only", default="", help="parts of the names of what is looked at, as the table has them")
    return found


def main() -> None:
    given = parser().parse_args()
    count = given.soaks

    def wanted(name: str) -> bool:
        return any(part in name for part in given.only.split(","))

    said: dict[str, Any] = {"soaks": count}
    clean = {f"{carry:g}": soaks.Truth(carry=carry) for carry in CARRIES}
    clean |= {f"daily {name}": follows(daily) for name, daily in DAILY.items()}
    print(f"{'clean, memory of a minute':28}  soaks with a false alarm")
    for name, truth in clean.items():
        if wanted(name):
            wrong = [row for seed in range(count) if (row := findings(truth, seed).findings)]
            print(f"{name:>28}  {len(wrong)} of {count}  {'; '.join(row[0].sentence for row in wrong)}", flush=True)
            said[f"false_alarms_{name.replace(' ', '_')}"] = len(wrong)
    few = max(1, count // 5)
    print(f"\n{'truth':12}{'found':>9}{'size':>9}{'median':>9}{'covered':>9}{'start off, min':>16}{'others':>8}")
    for name, (truth, kind, series, hour, size) in CASES.items():
        if not wanted(name):
            continue
        sizes, off, covered, others = [], [], 0, 0
        for seed in range(few):
            rows = findings(truth, seed).findings
            mine = [row for row in rows if (row.kind, row.series) == (kind, series)]
            if mine:
                sizes.append(mine[0].size)
                off.append(abs(mine[0].start_ns - soaks.START_NS - hour * HOUR_NS) / 60e9)
                covered += mine[0].low is None or mine[0].low <= size <= mine[0].high
            others += len(mine) > 1
        middle, worst = (float(np.median(sizes)), max(off)) if sizes else (float("nan"), float("nan"))
        print(
            f"{name:12}{len(sizes):>5} of {few}{size:>8.3g}{middle:>9.3g}{covered:>9}{worst:>16.1f}{others:>8}",
            flush=True,
        )
        said[name] = {"found": len(sizes), "of": few, "median": middle, "start_off_min": worst, "covered": covered}
    last_line("soak_findings", **said)


if __name__ == "__main__":
    main()
