"""A soak killed (SIGKILL) at so many random instants: can the folder be read, is any row wrong, how many are missing?

Physics: rows are handed over every half second and written at once, so what a kill takes is what was answered since,
and what was under way. Chapters are short, so that kills also fall into the turning of files, the making of Parquet and
the writing of run.json. Each folder is then gone on with, and its ledger has to close to the row.

Prints a line per kill, then one JSON line.

    python tests/bench/killed.py [--kills 50] [--rate 200] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:1] = [str(ROOT), str(ROOT / "tests")]  # instead of this folder, whose coverage.py is not the package

import analysis  # noqa: E402
from analysis.records import MANIFEST, Manifest  # noqa: E402
from analysis.verdict import flaws  # noqa: E402


def killed_once(runs: Path, url: str, rate: float, after_s: float) -> dict[str, float]:
    from test_loadtest_run import schedule_of

    words = ["--host", url, "--rates", f"{rate:g}", "--total-seconds", "6", "--chapter-seconds", "1.5"]
    words += ["--settle-seconds", "0.2", "--idle-seconds", "0", "--self-check", "off", "--run-dir", str(runs)]
    soak = [sys.executable, "-m", "headroom", "soak"]
    quiet = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*soak, "null", *words, "--run-id", "it"], **quiet)
    folder = runs / "it"
    while not (folder / MANIFEST).exists():
        time.sleep(0.02)
    time.sleep(after_s)
    load = int(Manifest.read(folder).extra["pid"])
    process.kill()
    os.kill(load, signal.SIGKILL)
    killed_ns = time.time_ns()
    process.wait()
    rows = analysis.load(folder).requests(columns=["step", "seq", "intended_ns", "status"])
    found = {(row.step, row.seq): row.intended_ns for row in rows.itertuples()}
    due = schedule_of(Manifest.read(folder))
    wrong = len(rows) - len(found) + sum(due.get(key) != at for key, at in found.items())
    wrong += int((rows["status"] != "200").sum())
    missing = [at for key, at in due.items() if at < killed_ns and key not in found]
    longest_s = (killed_ns - min(missing)) / 1e9 if missing else 0.0
    time.sleep(0.5)
    code = subprocess.run([*soak, "--resume", str(folder)], **quiet, check=False).returncode
    run = analysis.load(folder)
    totals = dict(run.manifest.totals)
    broken = (
        bool(flaws(run))
        or totals.pop("scheduled") != sum(totals.values())
        or sum(totals.values()) != len(run.requests(columns=["step"]))
    )
    return {
        "wrong": wrong,
        "missing": len(missing),
        "longest_s": longest_s,
        "broken": broken,
        "code": code,
        "rows": len(rows),
    }


def main() -> None:
    from endpoint import endpoint

    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    draw, found = random.Random(given.seed), []
    with endpoint(delay_ms=2) as url:
        for number in range(given.kills):
            after_s = draw.uniform(0, 5)
            with tempfile.TemporaryDirectory() as runs:
                one = killed_once(Path(runs), url, given.rate, after_s)
            found.append(one)
            print(
                f"{number:3d}  after {after_s:4.1f} s  {one['rows']:5d} rows, {one['missing']:4d} missing, "
                f"the oldest of them {one['longest_s']:.2f} s before the kill, {one['wrong']} wrong, "
                f"{'ledger broken' if one['broken'] else 'gone on with, ledger closed'}",
                flush=True,
            )
    print(
        json.dumps(
            {
                "kills": len(found),
                "wrong": sum(one["wrong"] for one in found),
                "longest_s": max(one["longest_s"] for one in found),
                "broken": sum(one["broken"] for one in found),
                "codes": sorted({one["code"] for one in found}),
            }
        )
    )


if __name__ == "__main__":
    main()
