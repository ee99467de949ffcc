"""The guided knee search beside the ordinary one: how long each takes, and how far its answer is from the truth.

Endpoints in virtual time (`support/batched.py`), whose knee is known: M/D/1, a batching replica, and one with a batch
wait whose times vary more. Each search is run with many seeds; what is compared is the middle of its interval. Both get
the same length of a probe. The guide is `planning.knee_guess` on the rows of the probes, as a run folder has them.

Prints a table (seconds of load: the median of the seeds, the lowest and the highest; root mean square error of the
rate; how often the truth lies in the interval), then one JSON line. With `--live` both searches also drive a live
`null` of 20 ms and batches of 8: about twelve minutes.

    python tests/bench/guided_knee.py --seeds 10
    python tests/bench/guided_knee.py --seeds 100
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from batched import Server, linear, poisson, rows_of  # noqa: E402
from bench._rounds import last_line, shown, spread  # noqa: E402

PROBE_S, SETTLE_S, BUDGET_S = 30.0, 3.0, 1800.0


@dataclass(frozen=True)
class Case:
    name: str
    server: Server
    limit_ms: float
    first_rps: float
    fixed_s: float
    each_s: float
    spread: float = 0.0

    @property
    def limit_rps(self) -> float:
        """What the replicas can take."""
        most = self.server.max_batch
        return self.server.replicas * most / (self.fixed_s + self.each_s * most + self.server.gap_s)


def case(name: str, limit_ms: float, first: float, fixed_s: float, each_s: float, spread: float, **more: Any) -> Case:
    return Case(name, Server(linear(fixed_s, each_s, spread), **more), limit_ms, first, fixed_s, each_s, spread)


CASES = (
    case("M/D/1", 50.0, 50.0, 0.005, 0.0, 0.0, max_batch=1, way_s=0.0),
    case("batching", 60.0, 50.0, 0.008, 0.002, 0.1, max_batch=8, gap_s=0.0003),
    case("batch wait", 80.0, 50.0, 0.012, 0.001, 0.3, max_batch=16, wait_s=0.006, gap_s=0.0003),
)


@cache
def unit() -> Any:
    from tailrate.analysis.planning.knee_guess import unit_arrivals

    return unit_arrivals({"arrivals": "poisson"})


def true_knee(one: Case) -> float:
    from tailrate.analysis.planning.simulator.simulate import Fleet, Routing, Rule, Service, knee

    server = one.server
    sizes = np.arange(server.max_batch + 1)
    mean_s = (one.fixed_s + one.each_s * sizes + server.gap_s) * (sizes > 0)
    sigma = np.sqrt(np.log1p(one.spread**2))
    from scipy.stats import norm

    drawn = np.exp(sigma * norm.ppf((np.arange(4096) + 0.5) / 4096) - sigma**2 / 2)
    way = 2.5 * server.way_s - server.gap_s
    service = Service(mean_s, (drawn / drawn.mean())[None, :], np.zeros(len(sizes), dtype=np.int64), np.array([way]))
    fleet = Fleet(service, server.replicas, server.max_batch, server.wait_s, Rule.COMPANY, Routing.ROUND_ROBIN)
    many = np.cumsum(np.random.default_rng(0).exponential(1.0, 8_000_000))
    return knee(fleet, one.limit_ms / 1e3, 99.0, lambda rate: many / rate, tolerance=0.0005)


class Probes:
    """Drives the case in virtual time, and keeps the rows that a run folder would have."""

    def __init__(self, one: Case, seed: int) -> None:
        self.one, self.seed = one, seed
        self.seen: list[Any] = []

    def probe(self, rate: float, seconds: float) -> Any:
        from tailrate.analysis.planning.model.observed_batches import of_rows
        from tailrate.loadtest.engine.scenario.knee_search import ProbeOutcome

        number = 1000 * self.seed + len(self.seen)
        arrivals_s = poisson(rate, seconds, number)
        rows = rows_of(arrivals_s, self.one.server, 0, "m/a", 0.0, number)
        rows["ok"], rows["whole_ns"], rows["replica"] = True, rows["done_ns"], rows["replica"].astype("category")
        start_ns = int(rows["intended_ns"].iloc[0]) - round(1e9 * float(arrivals_s[0]))
        found = of_rows(rows, start_ns, seconds, SETTLE_S)
        overloaded = rate > 1.01 * self.one.limit_rps
        self.seen.append(replace(found, index=len(self.seen), rate=rate, overloaded=overloaded))
        missed = 1e3 * found.latency_s[found.window] > self.one.limit_ms
        share = float(missed.mean())
        means = np.array([batch.mean() for batch in np.array_split(missed, 20)])
        spread = means.var(ddof=1) / 20 * len(missed) / (share * (1 - share)) if 0 < share < 1 else 1.0
        return ProbeOutcome(rate, len(missed), int(missed.sum()), float(spread), overloaded, seconds=seconds)

    def ask(self) -> Any:
        from tailrate.analysis.planning import knee_guess

        server = self.one.server
        said = {"max_batch": server.max_batch, "max_wait_ms": 1e3 * server.wait_s}
        return knee_guess.guess("m/a", self.seen, said, self.one.limit_ms / 1e3, 99.0, unit())


def search(one: Case, seed: int, guided: bool) -> dict[str, Any]:
    from tailrate.loadtest.engine.scenario.knee_guide import Guide
    from tailrate.loadtest.engine.scenario.knee_search import WIDTH, KneeObjective, Search

    probes = Probes(one, seed)
    guide = Guide(probes.ask, WIDTH) if guided else None
    objective = KneeObjective((("", one.limit_ms),), 0.01)
    made = Search(objective, one.first_rps, np.inf, PROBE_S, SETTLE_S, BUDGET_S, guide)
    spent_s, count, began = 0.0, 0, time.monotonic()
    while (wanted := made.probe(spent_s)) is not None:
        spent_s += wanted[1]
        count += 1
        made.see(probes.probe(*wanted))
    knee = made.knee
    return {
        "seconds": spent_s, "probes": count, "low": knee.low_rps, "high": knee.high_rps, "reason": knee.reason,
        "guide": knee.guide, "wall_s": time.monotonic() - began,
    }  # fmt: skip


def summed_up(found: list[dict[str, Any]], truth: float) -> dict[str, Any]:
    resolved = [one for one in found if one["reason"] is None]
    middles = np.array([(one["low"] + one["high"]) / 2 for one in resolved])
    held = [one["low"] <= truth <= one["high"] for one in resolved]
    return {
        "searches": len(found), "resolved": len(resolved), "truth_rps": truth,
        "seconds": spread(one["seconds"] for one in found),
        "probes": float(np.mean([one["probes"] for one in found])),
        "error": float(np.sqrt(np.mean((middles / truth - 1) ** 2))) if len(middles) else None,
        "bias": float(np.mean(middles / truth - 1)) if len(middles) else None,
        "width": float(np.mean([one["high"] / one["low"] - 1 for one in resolved])) if resolved else None,
        "holds": float(np.mean(held)) if held else None,
        "by_trying": [one["guide"] for one in found if "by trying" in (one["guide"] or "")],
    }  # fmt: skip


def live(name: str) -> dict[str, Any]:
    """The same on an endpoint whose knee nobody knows: the two intervals should meet."""
    from serving import served

    from tailrate import analysis

    with tempfile.TemporaryDirectory() as scratch:
        more = {"settings": {"delay_ms": "20"}, "max_batch": 8, "parity_share": 0}
        words = [sys.executable, "-m", "locust", "-f", "loadtest/null.py", "--headless", "--only-summary"]
        words += ["--variants", "eager", "--mode", "knee", "--slo", "p99<80ms", "--rates", "50", "--idle-seconds", "0"]
        words += ["--guided", "on" if name == "guided" else "off", "--run-dir", scratch, "--run-id", "it"]
        words += ["--step-seconds", str(PROBE_S), "--settle-seconds", str(SETTLE_S)]
        with served(Path(scratch), models=["null"], variants=["eager"], device="cpu", **more) as server:
            began = time.monotonic()
            subprocess.run([*words, "--host", server.url], cwd=ROOT, capture_output=True)
            took_s = time.monotonic() - began
        run = analysis.load(Path(scratch) / "it")
    knee = next(event for event in run.events if event["event"] == "knee")
    print(
        f"live null: {name} {knee['low_rps'] or 0:.1f} to {knee['high_rps'] or 0:.1f}/s in {took_s:.0f} s, "
        f"{len(run.manifest.scenario['steps'])} probes; {knee['reason'] or knee['guide'] or ''}",
        flush=True,
    )
    return {key: knee[key] for key in ("low_rps", "high_rps", "reason", "guide")} | {"seconds": took_s}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--seeds", type=int, default=10)
    found.add_argument("--live", action="store_true")
    found.add_argument("--cases", default="", help="a part of the names; empty: all")
    return found


def main() -> None:
    options = parser().parse_args()
    print(
        f"{'endpoint':<20} {'search':<9} {'truth/s':>8} {'resolved':>9} {'load s':>16} {'probes':>6} {'error':>7} "
        f"{'bias':>7} {'width':>6} {'holds':>6} {'fell back':>9}"
    )
    rows = []
    ways: dict[str, Callable[[Case, int], dict[str, Any]]] = {
        "ordinary": lambda one, seed: search(one, seed, guided=False),
        "guided": lambda one, seed: search(one, seed, guided=True),
    }
    for one in (one for one in CASES if options.cases in one.name):
        truth = true_knee(one)
        for name, way in ways.items():
            found = summed_up([way(one, seed) for seed in range(1, options.seeds + 1)], truth)
            rows.append({"case": one.name, "search": name, **found})
            print(
                f"{one.name:<20} {name:<9} {truth:8.1f} {found['resolved']:>4} of {found['searches']:<3}"
                f"{shown(found['seconds'], '.0f', 16)} {found['probes']:6.1f} {found['error'] or np.nan:7.2%} "
                f"{found['bias'] or np.nan:7.2%} {found['width'] or np.nan:6.1%} {found['holds'] or np.nan:6.0%} "
                f"{len(found['by_trying']):>9}",
                flush=True,
            )
    found = {name: live(name) for name in ways} if options.live else {}
    last_line("guided_knee", rows=rows, live=found)


if __name__ == "__main__":
    main()
