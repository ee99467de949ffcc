"""How often soaks of eight hours get the right verdict: clean ones, and some with one thing wrong each.

    python tests/bench/soak_verdicts.py [--soaks 10] [--clean 100] [--jobs 2] [--only leak]

Whole folders, written, read and judged by objective and limits together, as `tailrate report` does: at four requests a
second, P99 remembers itself from minute to minute (autoregressive, 0.7). What is wrong begins at a random time and has
a random size, two to six times what the limits allow. Right is a fail of each but a gap, of which nothing more can be
said than that nobody measured then. Counts what each kind is called, then prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

import soaks  # noqa: E402
from bench._rounds import last_line  # noqa: E402
from folders import START_NS, rewrite  # noqa: E402

from tailrate import analysis  # noqa: E402
from tailrate.analysis.exports.report_json import report_of  # noqa: E402
from tailrate.analysis.records.folder import append_event  # noqa: E402
from tailrate.analysis.records.manifest import Manifest  # noqa: E402
from tailrate.analysis.verdicts.retired_chapters import remembered  # noqa: E402

HOURS = 8.0
SLO = ("p99<500ms", "errors<1%")
LIMITS = {"stall_ms": 50.0}
Rng = np.random.Generator


def truth(**more: Any) -> soaks.Truth:
    return soaks.Truth(hours=HOURS, slo=SLO, limits=LIMITS, **more)


def clean(folder: Path, rng: Rng, seed: int) -> Path:
    return soaks.write(folder, truth(), seed)


def leak(folder: Path, rng: Rng, seed: int) -> Path:
    """A ramp from some time on, of 2 to 6 %/h over the whole soak."""
    begin, by = rng.uniform(0, 4), rng.uniform(0.02, 0.06) * HOURS
    return soaks.write(folder, truth(memory=lambda h: 1 + by * np.maximum(0, h - begin) / (HOURS - begin)), seed)


def stairs(folder: Path, rng: Rng, seed: int) -> Path:
    edges, by = np.sort(rng.uniform(0.6, 7.2, rng.integers(1, 6))), rng.uniform(0.02, 0.06) * HOURS
    return soaks.write(
        folder, truth(memory=lambda h: 1 + by * np.mean([(h >= one).astype(float) for one in edges], axis=0)), seed
    )


def drift(folder: Path, rng: Rng, seed: int) -> Path:
    by = rng.uniform(0.1, 0.3)
    return soaks.write(folder, truth(latency=lambda h: 1 + by * h), seed)


def step(folder: Path, rng: Rng, seed: int) -> Path:
    at, by = rng.uniform(1, 7), rng.uniform(1.2, 1.6)
    return soaks.write(folder, truth(latency=lambda h: np.where(h >= at, by, 1.0)), seed)


def stall(folder: Path, rng: Rng, seed: int) -> Path:
    return soaks.write(folder, truth(stall_ms=rng.uniform(100, 300), stall_from_h=rng.uniform(0, 4)), seed)


def _spell(folder: Path, rng: Rng, seed: int, factor: float) -> Path:
    begin = rng.uniform(0.7, 4)
    end = begin + rng.uniform(0.7, 3.2)
    return soaks.write(folder, truth(latency=lambda h: np.where((h >= begin) & (h < end), factor, 1.0)), seed)


def higher(folder: Path, rng: Rng, seed: int) -> Path:
    return _spell(folder, rng, seed, rng.uniform(1.2, 1.6))


def lower(folder: Path, rng: Rng, seed: int) -> Path:
    """Its end is a rise."""
    return _spell(folder, rng, seed, 1 / rng.uniform(1.2, 1.6))


def unhealed(folder: Path, rng: Rng, seed: int) -> Path:
    """A replica is killed, and from then on some or all of the requests fail."""
    soaks.write(folder, truth(), seed)
    rows, manifest = analysis.load(folder).requests().copy(), Manifest.read(folder)
    at_s, share = rng.uniform(600, 3600 * HOURS - 900), rng.choice([0.05, 0.3, 1.0])
    due_s = (rows["intended_ns"] - START_NS) / 1e9
    bad = ((due_s >= at_s) & (rng.random(len(rows)) < share)).to_numpy()
    rows["status"] = rows["status"].astype(str)
    rows.loc[bad, "status"] = "503"
    rewrite(folder, rows)
    manifest.totals |= {"ok": int((~bad).sum()), "failed": int(bad.sum())}
    manifest.write(folder)
    start = START_NS + round(at_s * 1e9)
    known = {"fault": "replica_killed", "target": "", "id": 0, "start_ns": start}
    append_event(folder, "fault", time_ns=start, **known, end_ns=None, phase="begin", sentence="it was killed")
    append_event(folder, "fault", time_ns=start, **known, end_ns=start + 10**8, phase="end", sentence="it is over")
    return folder


def gap(folder: Path, rng: Rng, seed: int) -> Path:
    """Nothing was sent for two to five hours, as after a crash."""
    soaks.write(folder, truth(), seed)
    rows, manifest = analysis.load(folder).requests().copy(), Manifest.read(folder)
    first = int(rng.integers(6, 12))
    gone = range(first, first + int(rng.integers(12, 30)))
    kept = [one for one in manifest.scenario["steps"] if one["index"] not in gone]
    missing = [one for one in manifest.scenario["steps"] if one["index"] in gone]
    rows = rows[~rows["step"].isin(gone)]
    rewrite(folder, rows)
    manifest.scenario["steps"] = kept
    manifest.totals |= {"scheduled": len(rows), "ok": len(rows)}
    manifest.write(folder)
    start, end = missing[0]["start_ns"], missing[-1]["end_ns"]
    append_event(folder, "gap", time_ns=end, start_ns=start, end_ns=end, scheduled={"m/a": 1})
    return folder


def retired(folder: Path, rng: Rng, seed: int) -> Path:
    """A fifth of the requests of the first hours failed; their rows are deleted since, their minutes are there."""
    soaks.write(folder, truth(), seed)
    rows, manifest = analysis.load(folder).requests().copy(), Manifest.read(folder)
    chapters = int(rng.integers(6, 40))
    bad = (rows["step"] < chapters).to_numpy() & (rng.random(len(rows)) < 0.2)
    rows["status"] = rows["status"].astype(str)
    rows.loc[bad, "status"] = "503"
    rewrite(folder, rows)
    due_s, whole = ((rows["intended_ns"] - START_NS) / 1e9).to_numpy(), analysis.load(folder)
    for chapter in range(chapters):
        mine = rows[rows["step"] == chapter]
        ok = int((mine["status"] == "200").sum())
        totals = {"scheduled": len(mine), "ok": ok, "failed": len(mine) - ok, "timed_out": 0, "dropped": 0, "lost": 0}
        append_event(
            folder, "retired", steps=[chapter], rows=len(mine), files=[f"requests-{chapter}.arrows"], totals=totals,
            judged=remembered(whole, [chapter]),
        )  # fmt: skip
    for minute in range(chapters * 10):
        part = rows[(due_s >= 60 * minute) & (due_s < 60 * minute + 60) & (rows["step"] < chapters)]
        good = (part["status"] == "200").to_numpy()
        ms = np.where(good, (part["done_ns"] - part["intended_ns"]).astype("float64") / 1e6, np.inf)
        start = START_NS + 60 * minute * 10**9
        said = {"p50_ms": _quantile(ms, 0.5), "p99_ms": _quantile(ms, 0.99)}
        append_event(
            folder, "minute", time_ns=start + 60 * 10**9, endpoint="m/a", start_ns=start, end_ns=start + 60 * 10**9,
            n=len(ms), ok=int(good.sum()), **said,
        )  # fmt: skip
    rewrite(folder, rows[rows["step"] >= chapters])
    manifest.totals |= {"ok": int((~bad).sum()), "failed": int(bad.sum())}
    manifest.write(folder)
    return folder


def _quantile(ms: Any, share: float) -> float | None:
    found = float(np.quantile(ms, share, method="higher")) if len(ms) else np.inf
    return found if np.isfinite(found) else None


KINDS: dict[str, tuple[Callable[[Path, Rng, int], Path], str]] = {
    "clean": (clean, "pass"),
    "leak": (leak, "fail"),
    "leak in stairs": (stairs, "fail"),
    "drift": (drift, "fail"),
    "step": (step, "fail"),
    "stall": (stall, "fail"),
    "unhealed fault": (unhealed, "fail"),
    "gap": (gap, "inconclusive"),
    "lower for a while": (lower, "fail"),
    "higher for a while": (higher, "fail"),
    "failed, then retired": (retired, "fail"),
}
"""What is wrong, and what it is rightly called."""


def judged(kind: str, seed: int) -> tuple[str, str]:
    """The verdict on one, and its first reason."""
    with tempfile.TemporaryDirectory() as folder:
        made = KINDS[kind][0](Path(folder) / "run", np.random.default_rng(seed), seed)
        report = report_of(analysis.load(made))
        return report["verdict"], next(iter(report["reasons"]), "")


def told(counts: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with ProcessPoolExecutor(counts.jobs) as pool:
        for kind, (_, right) in KINDS.items():
            if counts.only not in kind:
                continue
            seeds = range(1, 1 + (counts.clean if kind == "clean" else counts.soaks))
            found = list(pool.map(partial(judged, kind), seeds))
            called = Counter(verdict for verdict, _ in found)
            yield {
                "kind": kind, "soaks": len(found), "right": called[right],
                "wrong": len(found) - called[right] - (called["inconclusive"] if right != "inconclusive" else 0),
                "cannot_say": called["inconclusive"] if right != "inconclusive" else 0,
                "seeds": [(seed, *one) for seed, one in zip(seeds, found, strict=True) if one[0] != right],
            }  # fmt: skip


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--soaks", type=int, default=10, help="of each kind")
    found.add_argument("--clean", type=int, default=100)
    found.add_argument("--jobs", type=int, default=2)
    found.add_argument("--only", default="", help="a part of a kind's name")
    return found


def main() -> None:
    print(f"{'what is wrong':22}{'soaks':>6}{'right':>7}{'wrong':>7}{'cannot say':>12}")
    rows = []
    for row in told(parser().parse_args()):
        print(f"{row['kind']:22}{row['soaks']:>6}{row['right']:>7}{row['wrong']:>7}{row['cannot_say']:>12}", flush=True)
        for seed, verdict, why in row["seeds"]:
            print(f"    seed {seed}: {verdict}: {why}", flush=True)
        rows.append(row)
    last_line("soak_verdicts", rows=json.loads(json.dumps(rows)))


if __name__ == "__main__":
    main()
