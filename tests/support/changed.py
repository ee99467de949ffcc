"""Run folders drawn at random, and changes of them under which a verdict may not get better, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from folders import START_NS, Load, Written, constant, lognormal, make_run, queue, rewrite

from tailrate import analysis
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.verdicts.verdict import judge

Rng = np.random.Generator
LIMITS = (
    "p99<50ms",
    "p95<50ms, errors<1%",
    "p90<50ms, goodput>92%",
    "p99<50ms, errors<0.5%, rate>=150",
    "errors<2%",
    "rate>=60",
)


def drawn(folder: Path, rng: Rng) -> Written:
    """One or two endpoints at one to three rates, some of which keep the objective, miss it, or leave it open."""
    mode = str(rng.choice(["ramp", "hold", "ab"]))
    rates = sorted(rng.choice([20.0, 60.0, 100.0, 150.0, 200.0], int(rng.integers(1, 4)), replace=False).tolist())
    loads = []
    for number in range(int(rng.integers(1, 3))):
        ms = float(np.exp(rng.uniform(np.log(5), np.log(80))))
        for rate in rates:
            kinds = [constant(ms), lognormal(ms, float(rng.uniform(0.1, 0.8))), queue(min(900 / rate, ms)), spells(ms)]
            kind = kinds[int(rng.integers(len(kinds)))]
            failed = float(rng.choice([0.0, 0.0, 0.002, 0.01, 0.05]))
            for round_ in range(2 if mode == "ab" else 1):
                load = Load(
                    f"m/{number}", rate, kind, float(rng.choice([4.0, 10.0, 25.0])), failed=failed, block=round_
                )
                loads.append(load)
    seed, slo = int(rng.integers(1 << 30)), [str(rng.choice(LIMITS))]
    return make_run(folder, loads, seed=seed, mode=mode, slo=slo, poisson=bool(rng.integers(2)))


def spells(ms: float) -> Callable[[Rng, Any], Any]:
    return lambda rng, at_s: np.where(at_s % 5 < 0.4, 4 * ms, ms) * np.exp(0.1 * rng.normal(size=len(at_s)))


def verdict(written: Written) -> str:
    return judge(analysis.load(written.folder)).verdict


# ---- changes


def _some(written: Written, rng: Rng, share: float) -> Any:
    """Rows of one step, in a run of them or anywhere."""
    rows = written.requests
    mine = np.flatnonzero(rows["step"] == rng.choice(rows["step"].unique()))
    count = max(1, round(share * len(mine)))
    if rng.integers(2):
        first = int(rng.integers(len(mine) - count + 1))
        return mine[first : first + count]
    return rng.choice(mine, count, replace=False)


def slower(written: Written, rng: Rng) -> None:
    rows, some = written.requests, _some(written, rng, float(rng.choice([0.005, 0.05, 0.5])))
    done = rows["done_ns"].copy()
    done.iloc[some] = done.iloc[some] + 200_000_000
    rewrite(written.folder, rows.assign(done_ns=done))


def failing(written: Written, rng: Rng) -> None:
    rows, some = written.requests, _some(written, rng, float(rng.choice([0.005, 0.05, 0.5])))
    status, error = rows["status"].copy(), rows["error"].copy()
    status.iloc[some], error.iloc[some] = "503", "full"
    rewrite(written.folder, rows.assign(status=status, error=error))


def busier(written: Written, rng: Rng) -> None:
    step = int(rng.choice(written.requests["step"].unique()))
    append_event(written.folder, "load_cpu", worker=0, step=step, pct=97.0)


def fewer(written: Written, rng: Rng) -> None:
    """A load process went down: the end of a step has no arrivals."""
    rows = written.requests
    step = int(rng.choice(rows["step"].unique()))
    mine = np.flatnonzero(rows["step"] == step)
    gone = mine[len(mine) // 2 :]
    rewrite(written.folder, rows.drop(index=rows.index[gone]))
    written.manifest.totals["lost"] = len(gone)
    written.manifest.write(written.folder)
    append_event(written.folder, "worker_lost", worker=1, member="w", steps=[step])


def vanished(written: Written, rng: Rng) -> None:
    rows = written.requests
    rewrite(written.folder, rows.drop(index=rows.index[rng.integers(len(rows))]))


def shuffled(written: Written, rng: Rng) -> None:
    rewrite(written.folder, written.requests.sample(frac=1, random_state=int(rng.integers(1 << 30))))


def reordered(written: Written, rng: Rng) -> None:
    """Steps in another order in the manifest, which is a list of them."""
    steps = written.manifest.scenario["steps"]
    written.manifest.scenario["steps"] = [steps[k] for k in rng.permutation(len(steps))]
    written.manifest.write(written.folder)


def longer(written: Written, rng: Rng) -> None:
    """All times and limits twice as long; the rate asked for half of it."""
    manifest, rows = written.manifest, written.requests
    for step in manifest.scenario["steps"]:
        for name in ("start_ns", "end_ns"):
            step[name] = START_NS + 2 * (step[name] - START_NS)
        step["seconds"], step["rate"] = 2 * step["seconds"], step["rate"] / 2
    for slo in manifest.scenario["slo"]:
        if "latency_ms" in slo:
            slo["latency_ms"] *= 2
        if "min_rate_rps" in slo:
            slo["min_rate_rps"] /= 2
    manifest.finished_ns = START_NS + 2 * (manifest.finished_ns - START_NS)
    manifest.write(written.folder)
    times = {name: START_NS + 2 * (rows[name] - START_NS) for name in ("intended_ns", "sent_ns", "done_ns")}
    rewrite(written.folder, rows.assign(**times))


WORSE = (slower, failing, busier, fewer, vanished)
SAME = (shuffled, reordered, longer)


def moved(folder: Path, seed: int) -> list[tuple[str, str, str]]:
    """(change, verdict before, after) of each change of one folder that is drawn."""
    found = []
    for number, change in enumerate((*WORSE, *SAME)):
        rng = np.random.default_rng(seed)
        written = drawn(folder / f"{seed}-{number}", rng)
        before = verdict(written)
        change(written, np.random.default_rng((seed, number)))
        found.append((change.__name__, before, verdict(written)))
    return found
