"""What the simulation of a fleet costs, beside SimPy, and how near it comes to what theory knows.

The model: batches of up to 32 that take 10 ms and 0.3 ms a request, opportunistic, at 80 % of what they can do. Speed
is requests per CPU-second, best of some rounds, arrivals drawn beforehand; SimPy runs the same in two forms. `answers`
holds how many replicas serve 100,000/s with P99 at most 50 ms, and up to which rate 64 replicas do, both from ten
seconds of Poisson arrivals.

    python tests/bench/simulate.py [--requests 2000000] [--rounds 3]

A table, then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
# in place of this folder, whose coverage.py is not the package
sys.path[:1] = [str(ROOT), str(ROOT / "tests")]

from analysis.queueing import mdc_latency_s, mmc_latency_s  # noqa: E402
from analysis.records import Slo  # noqa: E402
from analysis.simulate import Fleet, Routing, Rule, Service, knee, simulate  # noqa: E402
from analysis.sizing import Objective, Sizing, Traffic  # noqa: E402

MOST = 32
SERVICE = Service.steady(0.010 + 0.0003 * np.arange(MOST + 1))
REPLICAS = (1, 64, 1000, 10_000)
EXPONENTIAL = -np.log((np.arange(1 << 16) + 0.5) / (1 << 16))[None, :]


def fleet(replicas: int, routing: Routing = Routing.TWO_CHOICES) -> Fleet:
    return Fleet(SERVICE, replicas, MOST, 0.0, Rule.OPPORTUNISTIC, routing)


def poisson(rate_rps: float, n: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(1).exponential(1 / rate_rps, n))


def cpu_s(what: Callable[[], Any], rounds: int) -> tuple[float, Any]:
    """The best of some rounds, and what it returned."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        found = what()
        best = min(best, time.process_time() - began)
    return best, found


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
    rows = []
    for routing in (Routing.TWO_CHOICES, Routing.LEAST):
        for replicas in REPLICAS:
            of = fleet(replicas, routing)
            arrivals_s = poisson(0.8 * of.limit_rps, n)
            took_s, found = cpu_s(lambda: simulate(arrivals_s, of), rounds)  # noqa: B023
            rows.append({"routing": routing, "replicas": replicas, "rps": n / took_s, "p99_s": found.quantile(99)})
    return rows


def against_simpy(n: int, rounds: int, replicas: int = 64) -> list[dict[str, Any]]:
    of = fleet(replicas)
    arrivals_s = poisson(0.8 * of.limit_rps, n)
    fewer = arrivals_s[: n // 40]
    ours_s, _ = cpu_s(lambda: simulate(arrivals_s, of), rounds)
    rows = []
    for name, theirs in (("usual", simpy_usual), ("lean", simpy_lean)):
        took_s, latency_s = cpu_s(lambda: theirs(fewer.tolist(), replicas), 1)  # noqa: B023
        p99_s = float(np.quantile(latency_s, 0.99, method="higher"))
        row = {"rps": len(fewer) / took_s, "times": took_s / len(fewer) / (ours_s / n), "p99_s": p99_s}
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


def answers(rounds: int) -> dict[str, float]:
    def arrivals(rate_rps: float) -> np.ndarray:
        return poisson(rate_rps, int(10 * rate_rps))

    drawn = Traffic(lambda count, seed, burstiness: poisson(1, count))
    sizing = Sizing(Objective(Slo.parse("p99<50ms")), drawn)
    sizing.fewest(fleet(1), 100_000)  # arrivals are drawn once
    took_s, replicas = cpu_s(lambda: sizing.fewest(fleet(1), 100_000), rounds)
    knee_s, rate_rps = cpu_s(lambda: knee(fleet(64), 0.050, 99, arrivals), rounds)
    assert replicas is not None
    kept = simulate(arrivals(100_000), replace(fleet(1), replicas=replicas))
    return {
        "replicas": replicas, "answer_cpu_s": took_s, "p99_s": kept.quantile(99),
        "knee_rps": rate_rps, "knee_cpu_s": knee_s,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    first_s, _ = cpu_s(lambda: [simulate(poisson(100, 1000), fleet(2, routing)) for routing in Routing], 1)
    found = {
        "first_cpu_s": first_s,
        "speeds": speeds(asked.requests, asked.rounds),
        "simpy": against_simpy(asked.requests, asked.rounds),
        "errors": errors(asked.requests),
        "answers": answers(asked.rounds),
    }
    for row in found["speeds"]:
        print(f"{row['routing']:<12} {row['replicas']:>6} replicas  {row['rps'] / 1e6:>7.1f} M requests per CPU-second")
    for row in found["simpy"]:
        print(f"SimPy, {row['form']:<5} at 64: {row['rps']:>9,.0f} per CPU-second, {row['times']:,.0f} times", end=" ")
        print(f"slower; P99 {1e3 * row['p99_s']:.2f} ms there, {1e3 * row['our_p99_s']:.2f} ms here")
    for row in found["errors"]:
        print(f"{row['of']:<34} {row['found']:>9.4f}  theory {row['theory']:>9.4f}  {row['error_pct']:>+6.2f} %")
    told = found["answers"]
    print(f"100,000/s at P99 <= 50 ms: {told['replicas']} replicas, {told['answer_cpu_s']:.2f} CPU-seconds")
    print(f"64 replicas keep it up to {told['knee_rps']:,.0f}/s, {told['knee_cpu_s']:.2f} CPU-seconds")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
