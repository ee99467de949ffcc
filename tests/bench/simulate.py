"""What the simulation of a fleet costs, beside SimPy, and how near it comes to what theory knows.

The model: batches of up to 32 that take 10 ms and 0.3 ms a request, opportunistic, at 80 % of what they can do. Speed
is requests per CPU-second, arrivals drawn beforehand; SimPy runs the same in two forms. `answers`
holds how many replicas serve 100,000/s with P99 at most 50 ms, and up to which rate 64 replicas do, both from ten
seconds of Poisson arrivals.

    python tests/bench/simulate.py [--requests 2000000] [--rounds 3]

A table (medians of the rounds, the lowest and the highest), then one JSON line.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import in_turns, last_line, over, shown, spread  # noqa: E402
from queues import mdc_latency_s, mmc_latency_s  # noqa: E402

from tailrate.analysis.planning.plan.sizing import Objective, Sizing, Traffic  # noqa: E402
from tailrate.analysis.planning.simulator.simulate import Fleet, Routing, Rule, Service, knee, simulate  # noqa: E402
from tailrate.analysis.records.objective import Slo  # noqa: E402

MOST = 32
SERVICE = Service.steady(0.010 + 0.0003 * np.arange(MOST + 1))
REPLICAS = (1, 64, 1000, 10_000)
EXPONENTIAL = -np.log((np.arange(1 << 16) + 0.5) / (1 << 16))[None, :]


def fleet(replicas: int, routing: Routing = Routing.TWO_CHOICES) -> Fleet:
    return Fleet(SERVICE, replicas, MOST, 0.0, Rule.OPPORTUNISTIC, routing)


def poisson(rate_rps: float, n: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(1).exponential(1 / rate_rps, n))


def cpu_s(what: Callable[[], Any]) -> tuple[float, Any]:
    """CPU-seconds, and what it returned."""
    began = time.process_time()
    found = what()
    return time.process_time() - began, found


def simpy_usual(arrivals_s: list[float], replicas: int) -> list[float]:
    """As SimPy's own examples do it: a process for each request, a store for each queue."""
    import simpy

    env, rng = simpy.Environment(), random.Random(1)
    latency_s, mean_s = [0.0] * len(arrivals_s), SERVICE.mean_s.tolist()
    stores, holds = [simpy.Store(env) for _ in range(replicas)], [0] * replicas

    def request(i: int) -> Any:
        r = emptier(rng, holds)
        holds[r] += 1
        answered = env.event()
        yield stores[r].put(answered)
        yield answered
        holds[r] -= 1
        latency_s[i] = env.now - arrivals_s[i]

    def replica(store: Any) -> Any:
        while True:
            batch = [(yield store.get())]
            batch += [store.items.pop(0) for _ in range(min(MOST - 1, len(store.items)))]
            yield env.timeout(mean_s[len(batch)])
            for answered in batch:
                answered.succeed()

    def source() -> Any:
        for i, at_s in enumerate(arrivals_s):
            yield env.timeout(at_s - env.now)
            env.process(request(i))

    for store in stores:
        env.process(replica(store))
    env.process(source())
    env.run()
    return latency_s


def simpy_lean(arrivals_s: list[float], replicas: int) -> list[float]:
    """With no process for a request, lists for queues, and an event only to wake a replica that has nothing to do."""
    import simpy

    env, rng = simpy.Environment(), random.Random(1)
    latency_s, mean_s = [0.0] * len(arrivals_s), SERVICE.mean_s.tolist()
    queues: list[list[int]] = [[] for _ in range(replicas)]
    holds, bells = [0] * replicas, [env.event() for _ in range(replicas)]

    def replica(r: int) -> Any:
        while True:
            if not queues[r]:
                bells[r] = env.event()
                yield bells[r]
            batch, queues[r] = queues[r][:MOST], queues[r][MOST:]
            yield env.timeout(mean_s[len(batch)])
            holds[r] -= len(batch)
            for i in batch:
                latency_s[i] = env.now - arrivals_s[i]

    def source() -> Any:
        for i, at_s in enumerate(arrivals_s):
            yield env.timeout(at_s - env.now)
            r = emptier(rng, holds)
            holds[r] += 1
            queues[r].append(i)
            if not bells[r].triggered:
                bells[r].succeed()

    for r in range(replicas):
        env.process(replica(r))
    env.process(source())
    env.run()
    return latency_s


def emptier(rng: random.Random, holds: list[int]) -> int:
    """Of two at random."""
    r, other = rng.sample(range(len(holds)), 2)
    return other if holds[other] < holds[r] else r


def speeds(n: int, rounds: int) -> list[dict[str, Any]]:
    fleets = {
        (routing, replicas): fleet(replicas, routing)
        for routing in (Routing.TWO_CHOICES, Routing.LEAST)
        for replicas in REPLICAS
    }

    def one(of: Fleet) -> tuple[float, float]:
        arrivals_s = poisson(0.8 * of.limit_rps, n)
        took_s, found = cpu_s(lambda: simulate(arrivals_s, of))
        return n / took_s, found.quantile(99)

    rows = []
    for (routing, replicas), found in in_turns(rounds, {key: partial(one, of) for key, of in fleets.items()}).items():
        rows.append({"routing": routing, "replicas": replicas, "rps": spread(rps for rps, _ in found)})
        rows[-1]["p99_s"] = found[0][1]
    return rows


def against_simpy(n: int, rounds: int, replicas: int = 64) -> list[dict[str, Any]]:
    try:
        import simpy  # noqa: F401
    except ImportError:
        print("SimPy is left out, it is not installed (it is in the extra bench)")
        return []
    of = fleet(replicas)
    arrivals_s = poisson(0.8 * of.limit_rps, n)
    fewer = arrivals_s[: n // 40]
    ways = {
        "ours": lambda: cpu_s(lambda: simulate(arrivals_s, of)),
        "usual": lambda: cpu_s(lambda: simpy_usual(fewer.tolist(), replicas)),
        "lean": lambda: cpu_s(lambda: simpy_lean(fewer.tolist(), replicas)),
    }
    found = in_turns(rounds, ways)
    ours_s = [took_s / n for took_s, _ in found.pop("ours")]
    rows = []
    for name, runs in found.items():
        each_s = [took_s / len(fewer) for took_s, _ in runs]
        p99_s = float(np.quantile(runs[0][1], 0.99, method="higher"))
        row = {"rps": spread(1 / took_s for took_s in each_s), "times": over(each_s, ours_s), "p99_s": p99_s}
        rows.append({"form": name, **row, "our_p99_s": simulate(fewer, of).quantile(99, 0)})
    return rows


def errors(n: int) -> list[dict[str, Any]]:
    rows = []

    def row(name: str, found: float, wanted: float) -> None:
        rows.append({"of": name, "found": found, "theory": wanted, "error_pct": 100 * (found / wanted - 1)})

    for name, grid, theory in (("M/M/1", EXPONENTIAL, mmc_latency_s), ("M/D/1", np.ones((1, 1)), mdc_latency_s)):
        service = Service(np.array([0.0, 1.0]), grid, np.zeros(2, dtype=np.int64), np.zeros(1))
        one = Fleet(service, 1, 1, 0.0, Rule.OPPORTUNISTIC, Routing.LEAST)
        for load in (0.5, 0.8):
            found = simulate(poisson(load, n), one)
            for percent in (50, 90, 99):
                row(f"{name} at {load}, P{percent}", found.quantile(percent), theory(load, 1.0, 1, percent))
    turns = Fleet(Service.steady(np.array([0.0, 1.0])), 20, 1, 0.0, Rule.OPPORTUNISTIC, Routing.ROUND_ROBIN)
    found = simulate(poisson(0.9 * 20, n), turns)
    for percent in (50, 90, 99):
        row(f"M/D/20 at 0.9, P{percent}", found.quantile(percent), mdc_latency_s(18, 1.0, 20, percent))
    service = Service(np.array([0.0, 1.0]), EXPONENTIAL, np.zeros(2, dtype=np.int64), np.zeros(1))
    many = Fleet(service, 1000, 1, 0.0, Rule.OPPORTUNISTIC, Routing.TWO_CHOICES)
    mean_s = float(simulate(poisson(900, n), many).latency_s[n // 3 :].mean())
    row("two choices of 1000 at 0.9, mean", mean_s, sum(0.9 ** (2**i - 2) for i in range(1, 30)))
    return rows


def answers(rounds: int) -> dict[str, Any]:
    def arrivals(rate_rps: float) -> np.ndarray:
        return poisson(rate_rps, int(10 * rate_rps))

    drawn = Traffic(lambda count, seed, burstiness: poisson(1, count))
    sizing = Sizing(Objective(Slo.parse("p99<50ms")), drawn)
    sizing.fewest(fleet(1), 100_000)  # arrivals are drawn once
    ways = {
        "fewest": lambda: cpu_s(lambda: sizing.fewest(fleet(1), 100_000)),
        "knee": lambda: cpu_s(lambda: knee(fleet(64), 0.050, 99, arrivals)),
    }
    found = in_turns(rounds, ways)
    took_s, knee_s = (spread(seconds for seconds, _ in found[name]) for name in ways)
    replicas, rate_rps = (found[name][0][1] for name in ways)
    assert replicas is not None
    kept = simulate(arrivals(100_000), replace(fleet(1), replicas=replicas))
    return {
        "replicas": replicas, "answer_cpu_s": took_s, "p99_s": kept.quantile(99),
        "knee_rps": rate_rps, "knee_cpu_s": knee_s,
    }  # fmt: skip


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--requests", type=int, default=2_000_000)
    found.add_argument("--rounds", type=int, default=3)
    return found


def main() -> None:
    asked = parser().parse_args()
    first_s, _ = cpu_s(lambda: [simulate(poisson(100, 1000), fleet(2, routing)) for routing in Routing])
    found: dict[str, Any] = {
        "first_cpu_s": first_s,
        "speeds": speeds(asked.requests, asked.rounds),
        "simpy": against_simpy(asked.requests, asked.rounds),
        "errors": errors(asked.requests),
        "answers": answers(asked.rounds),
    }
    for row in found["speeds"]:
        speed = shown({key: row["rps"][key] / 1e6 for key in ("median", "low", "high")}, ".1f", 20)
        print(f"{row['routing']:<12} {row['replicas']:>6} replicas {speed} M requests per CPU-second")
    for row in found["simpy"]:
        print(f"SimPy, {row['form']:<5} at 64: {shown(row['rps'], ',.0f')} per CPU-second", end=", ")
        print(f"{shown(row['times'], ',.0f')} times slower", end="; ")
        print(f"P99 {1e3 * row['p99_s']:.2f} ms there, {1e3 * row['our_p99_s']:.2f} ms here")
    for row in found["errors"]:
        print(f"{row['of']:<34} {row['found']:>9.4f}  theory {row['theory']:>9.4f}  {row['error_pct']:>+6.2f} %")
    told = found["answers"]
    print(f"100,000/s at P99 <= 50 ms: {told['replicas']} replicas, {shown(told['answer_cpu_s'], '.2f')} CPU-seconds")
    print(f"64 replicas keep it up to {told['knee_rps']:,.0f}/s, {shown(told['knee_cpu_s'], '.2f')} CPU-seconds")
    last_line("simulate", **found)


if __name__ == "__main__":
    main()
