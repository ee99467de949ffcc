"""A soak killed (SIGKILL) at so many random instants, its disk full for a while at another one: can the folder be read,
is any row wrong, how many are missing?

Physics: rows are handed over every half second and written at once, so what a kill takes is what was answered since,
and what was under way; while the disk is full they wait in memory, which is taken off what a kill then takes.
Chapters are short, so that both also fall into the turning of files, the making of Parquet and the writing of
run.json. Each folder is then gone on with, and its ledger has to close to the row. The disk is a volume in memory,
which takes a user who may mount one; for others there are kills alone.

Prints a line per kill, then one JSON line.

    python tests/bench/killed.py [--rate 200] [--seed 1] [--no-full-disks]      50 kills, ten minutes
    python tests/bench/killed.py --kills 12
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line  # noqa: E402
from schedules import schedule_of  # noqa: E402

from tailrate import analysis  # noqa: E402
from tailrate.analysis.records.folder import MANIFEST  # noqa: E402
from tailrate.analysis.records.manifest import Manifest  # noqa: E402
from tailrate.analysis.verdicts.verdict import flaws  # noqa: E402

DISK = "16m"
"""Holds a run of these seconds, and nothing else."""
FULL_S = (0.2, 2.0)


@contextmanager
def volume(folder: Path) -> Iterator[bool]:
    """A small disk at `folder`; False where none may be mounted."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, ballast: Path) -> None:
    """To the last byte."""
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        size = 1 << 20
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2


def killed_once(runs: Path, url: str, rate: float, plan: list[tuple[float, str]]) -> dict[str, float]:
    """`plan` is when the disk is filled, freed and the soak killed, in seconds from its beginning."""
    words = ["--host", url, "--rates", f"{rate:g}", "--total-seconds", "6", "--chapter-seconds", "1.5"]
    words += ["--settle-seconds", "0.2", "--idle-seconds", "0", "--self-check", "off", "--run-dir", str(runs)]
    soak = [sys.executable, "-m", "tailrate", "soak"]
    quiet = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*soak, "null", *words, "--run-id", "it"], **quiet)
    folder, ballast = runs / "it", runs / "ballast"
    while not (folder / MANIFEST).exists():
        time.sleep(0.02)
    began, load = time.monotonic(), int(Manifest.read(folder).extra["pid"])
    full: list[int] = []
    """When the disk filled up and when it was freed."""
    for at_s, what in sorted(plan):
        time.sleep(max(0.0, began + at_s - time.monotonic()))
        if what == "fill":
            fill(runs, ballast)
            full.append(time.time_ns())
        elif what == "free":
            full.append(time.time_ns())
            ballast.unlink()
        else:
            break
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
    ballast.unlink(missing_ok=True)
    time.sleep(0.5)
    code = subprocess.run([*soak, "--resume", str(folder)], **quiet, check=False).returncode
    run = analysis.load(folder)
    totals = dict(run.manifest.totals)
    first_ns, (filled_ns, freed_ns) = min(missing, default=killed_ns), [*full, killed_ns, killed_ns][:2]
    refused_ns = max(0, freed_ns - max(filled_ns, first_ns))
    broken = (
        bool(flaws(run))
        or totals.pop("scheduled") != sum(totals.values())
        or sum(totals.values()) != len(run.requests(columns=["step"]))
    )
    return {
        "wrong": wrong,
        "missing": len(missing),
        "longest_s": (killed_ns - first_ns - refused_ns) / 1e9,
        "broken": broken,
        "code": code,
        "rows": len(rows),
        "full": len(full) == 1,
    }


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--kills", type=int, default=50)
    found.add_argument("--rate", type=float, default=200)
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--no-full-disks", action="store_true")
    return found


def main() -> None:
    given = parser().parse_args()
    from endpoint import endpoint

    draw, found = random.Random(given.seed), []
    with endpoint(delay_ms=2) as url:
        for number in range(given.kills):
            after_s, full_s, long_s = draw.uniform(0, 5), draw.uniform(0, 5), draw.uniform(*FULL_S)
            plan = [(after_s, "kill")]
            with tempfile.TemporaryDirectory() as runs, volume(Path(runs)) as small:
                if small and not given.no_full_disks:
                    plan += [(full_s, "fill"), (full_s + long_s, "free")]
                one = killed_once(Path(runs), url, given.rate, plan)
            filled = f"full at {full_s:.1f} s" if len(plan) > 1 and full_s < after_s else "never full"
            filled += f" for {long_s:.1f}" if len(plan) > 1 and full_s + long_s < after_s else ""
            found.append(one)
            print(
                f"{number:3d}  killed at {after_s:4.1f} s, disk {filled}: {one['rows']:5d} rows, {one['missing']:4d} "
                f"missing, of {one['longest_s']:.2f} s{' before it filled up' if one['full'] else ''}, "
                f"{one['wrong']} wrong, "
                f"{'ledger broken' if one['broken'] else 'gone on with, ledger closed'}",
                flush=True,
            )
    last_line(
        "killed",
        kills=len(found),
        while_full=sum(one["full"] for one in found),
        wrong=sum(one["wrong"] for one in found),
        longest_s=max(one["longest_s"] for one in found),
        broken=sum(one["broken"] for one in found),
        codes=sorted({one["code"] for one in found}),
    )


if __name__ == "__main__":
    main()
