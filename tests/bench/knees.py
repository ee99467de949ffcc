"""The knee search in virtual time, through the live path: how often its interval holds the true knee, and what it
costs.

Endpoints whose knee is known: M/D/1, batches of up to 8, and two that stream, with limits on TTFT and TPOT together.
Each search is `KneeSearch.searches`; each probe's rows go through `Live`, second by second, which cuts it or says what
it showed, as the conductor does. Searches begin at several rates and with several settle times.

Prints a row for each cell (share of searches that came to their end; of these, how often the interval holds the
knee, and how often each end has a probe that does not contradict it; width; seconds of load), then one JSON line.

    python tests/bench/knees.py --seeds 20
    python tests/bench/knees.py --seeds 200 --jobs 2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

import slots  # noqa: E402
from bench._rounds import last_line  # noqa: E402
from slots import BY_BATCH, BY_QUEUE, Slots  # noqa: E402

from tailrate.analysis.records.objective import Slo  # noqa: E402
from tailrate.analysis.records.rows import REQUEST_COLUMNS  # noqa: E402
from tailrate.loadtest.engine.live.step_stats import Live  # noqa: E402
from tailrate.loadtest.engine.modes.knee import KneeSearch  # noqa: E402
from tailrate.loadtest.engine.record.segments import schema_of  # noqa: E402
from tailrate.loadtest.engine.scenario.arrivals import Pattern  # noqa: E402
from tailrate.loadtest.engine.scenario.knee_search import Knee, ProbeOutcome  # noqa: E402
from tailrate.loadtest.engine.scenario.scenario import Scenario  # noqa: E402
from tailrate.loadtest.engine.scenario.steps import LoadStep  # noqa: E402

Floats = npt.NDArray[np.float64]
START_NS = 10**18
LOOK_S, FIRST_LOOK_S = 1.0, 0.7
SCHEMA = schema_of(REQUEST_COLUMNS)


@dataclass(frozen=True)
class System:
    name: str
    fixed_s: float
    each_s: float
    most: int
    limit_ms: float

    @property
    def slo(self) -> str:
        return f"p99<{self.limit_ms:g}ms"


SYSTEMS: tuple[System | Slots, ...] = (
    System("M/D/1", 0.005, 0.0, 1, 50.0),
    System("batches of 8", 0.008, 0.002, 8, 60.0),
    BY_QUEUE,
    BY_BATCH,
)


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def answered(at_s: Floats, fixed_s: float, each_s: float, most: int) -> Floats:
    """When each is answered by a server that takes all that wait, up to so many, at once."""
    done = np.empty_like(at_s)
    free, i = 0.0, 0
    while i < len(at_s):
        begun = max(free, at_s[i])
        end = i + 1
        while end < len(at_s) and end < i + most and at_s[end] <= begun:
            end += 1
        free = begun + fixed_s + each_s * (end - i)
        done[i:end] = free
        i = end
    return done


@cache
def true_knee(system: System | Slots) -> float:
    """The rate with just that share beyond the limit, on twenty million arrivals that are the same at every rate."""
    if isinstance(system, Slots):
        return slots.true_knee(system)
    gaps = np.random.default_rng(0).exponential(1.0, 20_000_000)
    low, high = 0.0, system.most / (system.fixed_s + system.each_s * system.most)
    for _ in range(16):
        rate = (low + high) / 2
        at_s = np.cumsum(gaps / rate)
        late = (answered(at_s, system.fixed_s, system.each_s, system.most) - at_s) * 1e3 > system.limit_ms
        low, high = (low, rate) if late.mean() > 0.01 else (rate, high)
    return (low + high) / 2


Answers = dict[str, Any]
"""Of each arrival, by column; instants in seconds from the start."""


def answers(system: System | Slots, at_s: Floats, seed: int) -> Answers:
    if isinstance(system, Slots):
        first, last, tokens = system.answers(at_s, np.random.default_rng(seed))
        return {
            "intended_ns": at_s,
            "done_ns": last,
            "first_ns": first,
            "last_ns": last,
            "events": tokens,
            "tokens_out": tokens,
        }
    return {"intended_ns": at_s, "done_ns": answered(at_s, system.fixed_s, system.each_s, system.most)}


def rows(found: Answers, which: Any) -> Any:
    n = int(np.count_nonzero(which))
    columns = {name: pa.nulls(n, SCHEMA.field(name).type) for name in REQUEST_COLUMNS}
    for name, values in found.items():
        instants = name.endswith("_ns")
        columns[name] = pa.array(
            START_NS + np.rint(1e9 * values[which]).astype(np.int64) if instants else values[which]
        )
    columns |= {"worker": pa.array(np.zeros(n, np.int32)), "endpoint": pa.array(["m/a"] * n).dictionary_encode()}
    columns["sent_ns"] = pa.array(np.asarray(columns["intended_ns"]) + 50_000)
    columns["status"] = pa.array(["200"] * n)
    return pa.record_batch([columns[name].cast(SCHEMA.field(name).type) for name in REQUEST_COLUMNS], schema=SCHEMA)


def probed(system: System | Slots, step: LoadStep, scenario: Scenario) -> ProbeOutcome:
    """One step as the conductor drives it: looked at every second, and cut when its queue grows without bound."""
    objective = scenario.objective
    assert objective is not None
    at_s = step.offsets(scenario.pattern) / 1e9
    found = answers(system, at_s, step.seed)
    done_s = found["done_ns"]
    live = Live(step, START_NS, at_s, keep=True)
    told, cut, look_s = 0.0, False, FIRST_LOOK_S
    # else nothing can be cut
    waits = float((done_s - at_s).max(initial=0.0)) * 1e3 > min(limit_ms for _, limit_ms in objective.limits)
    while waits and look_s < step.seconds and not cut:
        new = (done_s > told) & (done_s <= look_s - 0.3)
        if new.any():
            live.see(rows(found, new))
        told = max(told, look_s - 0.3)
        cut = live.drowning(look_s, objective)
        look_s += 0.0 if cut else LOOK_S
    seconds = look_s if cut else step.seconds
    rest = (done_s > told) & (at_s < seconds)
    if rest.any():
        live.see(rows(found, rest))
    outcome = live.outcome(objective, seconds, 10.0, cut, scenario.vetoes)
    over_s = max(seconds, float(done_s[at_s < seconds].max(initial=0.0)))
    return replace(outcome, seconds=over_s + 0.3)


def search(system: System | Slots, first: float, settle_s: float, seed: int) -> tuple[Knee, list[ProbeOutcome]]:
    scenario = Scenario(
        "x", "m", (), mode=KneeSearch(), rates=(first,), pattern=Pattern("poisson"), step_seconds=30.0,
        settle_seconds=settle_s, slos=(Slo.parse(system.slo),), seed=seed,
    )  # fmt: skip
    found: dict[str, Knee] = {}
    seen: list[ProbeOutcome] = []
    steps = KneeSearch().searches(scenario, ["m/a"], found)
    told: Any = None
    while True:
        try:
            (step,) = steps.send(told)
        except StopIteration:
            return found["m/a"], seen
        told = [probed(system, step, scenario)]
        seen += told


def cell(job: tuple[System | Slots, float, float, int]) -> dict[str, Any]:
    system, first, settle_s, seeds = job
    truth = true_knee(system)
    found = [search(system, first, settle_s, seed) for seed in range(1, seeds + 1)]
    ended = [(knee, seen) for knee, seen in found if knee.reason is None and knee.low_rps and knee.high_rps]
    holds = [knee.low_rps <= truth <= knee.high_rps for knee, _ in ended]  # type: ignore[operator]
    reasons = sorted({str(knee.reason).split(" at ")[0] for knee, _ in found if knee.reason})
    return {
        "system": system.name, "first": first, "settle_s": settle_s, "searches": seeds, "resolved": len(ended),
        "holds": sum(holds), "probed": sum(both_ends(knee, seen) for knee, seen in ended),
        "width": float(np.median([knee.high_rps / knee.low_rps - 1 for knee, _ in ended])) if ended else None,  # type: ignore[operator]
        "seconds": float(np.median([sum(one.seconds for one in seen) for _, seen in found])), "reasons": reasons,
    }  # fmt: skip


def both_ends(knee: Knee, seen: list[ProbeOutcome]) -> bool:
    """Whether each end was probed, within a thousandth."""
    return all(any(abs(one.rate / end - 1) < 1e-3 for one in seen) for end in (knee.low_rps, knee.high_rps) if end)


def jobs(options: argparse.Namespace) -> Iterator[tuple[System | Slots, float, float, int]]:
    for system, first, settle_s in product(SYSTEMS, numbers(options.first), numbers(options.settle)):
        if not options.systems or system.name in options.systems.split(","):
            yield system, first, settle_s, options.seeds


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--seeds", type=int, default=10)
    found.add_argument("--systems", default="")
    found.add_argument("--first", default="10,20,50,100")
    found.add_argument("--settle", default="0,2,10")
    found.add_argument("--jobs", type=int, default=2)
    return found


def main() -> None:
    options = parser().parse_args()
    print(f"{'system':>17} {'first':>6} {'settle':>7} {'resolved':>9} {'holds':>8} {'probed':>8} {'width':>7} {'s':>6}")
    found = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for row in pool.map(cell, jobs(options)):
            found.append(row)
            n, width = max(1, row["resolved"]), "–" if row["width"] is None else f"{row['width']:.1%}"
            share = row["resolved"] / row["searches"]
            print(
                f"{row['system']:>17} {row['first']:6g} {row['settle_s']:5g} s {share:8.0%} "
                f"{row['holds'] / n:8.1%} {row['probed'] / n:8.1%} {width:>7} {row['seconds']:6.0f}  "
                f"{'; '.join(row['reasons'])[:70]}",
                flush=True,
            )
    resolved = max(1, sum(row["resolved"] for row in found))
    held = sum(row["holds"] for row in found) / resolved
    print(f"pooled: holds {held:.1%} of {resolved}")
    last_line("knees", seeds=options.seeds, pooled=held, rows=found)


if __name__ == "__main__":
    main()
