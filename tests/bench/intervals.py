"""How often the intervals of analysis/sketch.py hold the truth, and how often two equal systems are called different.

Latencies are drawn from systems whose true percentiles are known, by formula or from one very long simulation: values
independent of each other, an autoregressive series, and queues at five loads that start in steady state. Every seed is
one window with Poisson arrivals, cut into equal slices of time.

Prints per system, load and size: of the intervals that were given, how many hold the true percentile; how many were
refused; how many of all windows got a wrong one; the effective size; the width. A row with `<` covers less than 91 of
100 where one in ten windows or more has an interval. Then how often two runs of one system are called different, by
independent and by shared arrivals, in one and over rounds, and how often a true change is. The last line is JSON.

    python tests/bench/intervals.py                     50 seeds, some five minutes
    python tests/bench/intervals.py --seeds 200         twenty minutes
    python tests/bench/intervals.py --seeds 200 --percent 50
    python tests/bench/intervals.py --seeds 10 --systems M/M/1,autoregressive
"""

from __future__ import annotations

import argparse
import math
import sys
import zlib
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import signal, special

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "tests")]  # in the place of this folder: no file of it may pass for a package

from bench._rounds import last_line  # noqa: E402

from analysis.sketch import (  # noqa: E402
    SLICES,
    Doubt,
    Floats,
    Sketch,
    differs,
    effective_size,
    interval,
    over_rounds,
    quantile,
    ratio,
)

SIZES = (2_000, 5_000, 20_000, 100_000)
LOADS = (0.3, 0.6, 0.8, 0.9, 0.95)
Rng = np.random.Generator
Draw = Callable[[Rng, int], Floats]
System = Callable[[Rng, Rng, int], tuple[Floats, Floats]]
"""Of a generator for arrivals and one for all else, and a number: arrival instants and latencies."""


def independent(draw: Draw, failing: float = 0.0) -> System:
    def system(arrivals: Rng, rest: Rng, n: int) -> tuple[Floats, Floats]:
        values = draw(rest, n)
        if failing:
            values = np.where(rest.random(n) < failing, math.inf, values)
        return np.cumsum(arrivals.exponential(size=n)), values

    return system


def lognormal(sigma: float, mean: float | None = None) -> Draw:
    return lambda rng, n: np.exp(sigma * rng.normal(size=n) - (0 if mean is None else sigma**2 / 2))


def autoregressive(phi: float) -> Draw:
    def draw(rng: Rng, n: int) -> Floats:
        series = signal.lfilter([math.sqrt(1 - phi**2)], [1, -phi], rng.normal(size=n + 500))
        return np.exp(0.5 * series[500:])

    return draw


def warm_up(load: float) -> int:
    """Twenty relaxation times of M/M/1."""
    return 100 + int(20 / (1 - math.sqrt(load)) ** 2)


def queue(load: float, service: Draw) -> System:
    """One server, first come, first served; a mean service of 1."""

    def system(arrivals: Rng, rest: Rng, n: int) -> tuple[Floats, Floats]:
        skip = warm_up(load)
        came = np.cumsum(arrivals.exponential(1 / load, n + skip))
        served = service(rest, n + skip)
        work = np.cumsum(served)
        done = np.maximum.accumulate(came - (work - served)) + work
        # rounded: without a wait the latency is the service itself, not one of its neighbours
        return came[skip:], np.round(done - came, 9)[skip:]

    return system


def batching(load: float) -> System:
    """Takes all that wait, 32 at most, whenever it is free: 10 ms and 0.3 ms for each."""

    def system(arrivals: Rng, rest: Rng, n: int) -> tuple[Floats, Floats]:
        skip = warm_up(load)
        came = np.cumsum(arrivals.exponential((10 + 0.3 * 32) / 32 / load, n + skip))
        instants, free, first = came.tolist(), 0.0, 0
        done, sizes = [], []
        while first < n + skip:
            begin = max(instants[first], free)
            last = bisect_right(instants, begin, first, min(first + 32, n + skip))
            free = begin + 10 + 0.3 * (last - first)
            done.append(free)
            sizes.append(last - first)
            first = last
        return came[skip:], (np.repeat(done, sizes) - came)[skip:]

    return system


def stalling(apart: int) -> System:
    """Every now and then all wait: two of a hundred, until the stall is over; else lognormal."""

    def system(arrivals: Rng, rest: Rng, n: int) -> tuple[Floats, Floats]:
        came = np.cumsum(arrivals.exponential(size=n))
        begins = np.cumsum(rest.exponential(apart, 30 + 2 * n // apart))
        latest = np.searchsorted(begins, came) - 1
        ends = np.where(latest >= 0, begins[np.maximum(latest, 0)] + 0.02 * apart, 0)
        return came, np.exp(0.3 * rest.normal(size=n)) + np.maximum(0, ends - came)

    return system


def bursty(load: float) -> System:
    """M/M/1 with 2.3 times the rate in every other phase, of 200 arrivals on average."""

    def system(arrivals: Rng, rest: Rng, n: int) -> tuple[Floats, Floats]:
        skip = 5 * warm_up(load) + 5_000
        phases = arrivals.geometric(1 / 200, 30 + (n + skip) // 50)
        slower = np.repeat(np.where(np.arange(len(phases)) % 2, 1 / 1.4, 1 / 0.6), phases)[: n + skip]
        came = np.cumsum(arrivals.exponential(1 / load, n + skip) * slower)
        served = rest.exponential(1.19, n + skip)  # 1.19: what the mean gap is stretched by
        work = np.cumsum(served)
        return came[skip:], (np.maximum.accumulate(came - (work - served)) + work - came)[skip:]

    return system


def systems() -> dict[tuple[str, float], System]:
    def bimodal(rng: Rng, n: int) -> Floats:
        return np.where(rng.random(n) < 0.97, 10, 50) * np.exp(0.1 * rng.normal(size=n))

    found = {
        ("lognormal 0.3", 0.0): independent(lognormal(0.3)),
        ("lognormal 0.5", 0.0): independent(lognormal(0.5)),
        ("lognormal 0.5, 0.5% fail", 0.0): independent(lognormal(0.5), 0.005),
        ("exponential", 0.0): independent(lambda rng, n: rng.exponential(size=n)),
        ("exponential, 0.5% fail", 0.0): independent(lambda rng, n: rng.exponential(size=n), 0.005),
        ("bimodal", 0.0): independent(bimodal),
        ("nearly constant, ties", 0.0): independent(lambda rng, n: np.round(10 + 0.02 * rng.normal(size=n), 2)),
        ("autoregressive 0.5", 0.0): independent(autoregressive(0.5)),
        ("autoregressive 0.9", 0.0): independent(autoregressive(0.9)),
    }
    for apart in (500, 2_000):
        found[f"stalls, one in {apart}", 0.0] = stalling(apart)
    for load in LOADS:
        found["M/M/1", load] = queue(load, lambda rng, n: rng.exponential(size=n))
        found["M/D/1", load] = queue(load, lambda rng, n: np.ones(n))
        found["M/G/1 lognormal 0.5", load] = queue(load, lognormal(0.5, mean=1))
        found["M/G/1 lognormal 1", load] = queue(load, lognormal(1.0, mean=1))
        found["batching", load] = batching(load)
    found["bursty", 0.3] = bursty(0.3)
    found["bursty", 0.5] = bursty(0.5)
    return found


def truth(name: str, load: float, system: System, percent: float) -> float:
    if name == "M/M/1":
        return -math.log(1 - percent / 100) / (1 - load)
    if name.startswith("auto"):
        return math.exp(0.5 * float(special.ndtri(percent / 100)))
    rngs = np.random.default_rng(12345).spawn(2)
    return float(
        np.quantile(system(rngs[0], rngs[1], 20_000_000 if name != "batching" else 8_000_000)[1], percent / 100)
    )


def sketch(came: Floats, values: Floats) -> Sketch:
    slices = (SLICES * (came - came[0]) / (came[-1] - came[0])).astype(np.int64)
    return Sketch.of(np.minimum(slices, SLICES - 1), values)


def window(system: System, n: int, *seed: int, arrivals: int = 0) -> Sketch:
    """The same `arrivals`: the same instants."""
    return sketch(*system(np.random.default_rng([1, arrivals, *seed[1:]]), np.random.default_rng([2, *seed]), n))


def covered(systems: dict[tuple[str, float], System], seeds: int, percent: float) -> list[dict[str, float | str]]:
    print(f"{'system':<25} {'load':>4} {'n':>7} {'covers':>7}  {'refused':>7} {'wrong':>6} {'n_eff/n':>8} {'width':>7}")
    rows: list[dict[str, float | str]] = []
    for (name, load), system in systems.items():
        goal = truth(name, load, system, percent)
        for n in SIZES:
            hits, widths, sizes = [], [], []
            for seed in range(seeds):
                one = window(system, n, seed, n, zlib.crc32(f"{name} {load}".encode()), arrivals=seed)
                sizes.append((effective_size(one, percent) or math.nan) / n)
                found = interval(one, percent)
                if found:
                    hits.append(found[0] <= goal <= found[1])
                    widths.append((found[1] - found[0]) / goal if math.isfinite(found[1]) else math.nan)
            share = float(np.mean(hits)) if hits else math.nan
            row = {
                "system": name, "load": load, "n": n, "covers": share, "refused": 1 - len(hits) / seeds,
                "wrong": hits.count(False) / seeds, "n_eff_share": float(np.mean(sizes)),
                "width": float(np.nanmean(widths)) if np.isfinite(widths).any() else math.nan,
            }  # fmt: skip
            low = "<" if share < 0.91 and len(hits) >= seeds / 10 else " "
            print(
                f"{name:<25} {load or '':>4} {n:>7} {share:7.1%}{low} {row['refused']:>7.1%} {row['wrong']:>6.1%} "
                f"{row['n_eff_share']:8.4f} {row['width']:7.1%}",
                flush=True,
            )
            rows.append(row)
    return rows


def compared(systems: dict[tuple[str, float], System], seeds: int, n: int = 20_000) -> list[dict[str, float | str]]:
    """Two runs of one system: how often are they called different?"""
    print(
        f"\n{'the same twice':<25} {'load':>4} {'arrivals':>9} {'P50':>6} {'P99':>6} "
        f"{'either':>6} {'no P99':>6} {'sees':>6}"
    )
    rows: list[dict[str, float | str]] = []
    for (name, load), system in systems.items():
        if load > 0.6:
            continue
        for paired in (False, True):
            if paired and name in ("M/D/1", "batching"):
                continue  # nothing but the arrivals is random: the two are one
            called: dict[float | str, list[bool]] = {50: [], 99: [], "either": []}
            visible = []
            for seed in range(seeds):
                key = zlib.crc32(f"{name} {load}".encode())
                a = window(system, n, 2 * seed, key, arrivals=2 * seed)
                b = window(system, n, 2 * seed + 1, key, arrivals=2 * seed + (not paired))
                for percent in (50, 99):
                    doubt = ratio([(a, b)], percent, paired)
                    if doubt:
                        off = log_ratio(a, b, percent)
                        called[percent].append(off > doubt.down or -off > doubt.up)
                        visible += [doubt.smallest_visible] * (percent == 99)
                called["either"].append(bool(differs(a, b, paired)))
            share = {key: float(np.mean(found)) if found else math.nan for key, found in called.items()}
            row = {
                "system": name, "load": load, "arrivals": "the same" if paired else "others", "p50": share[50],
                "p99": share[99], "either": share["either"], "refused": 1 - len(called[99]) / seeds,
                "smallest_visible": float(np.mean(visible)) if visible else math.nan,
            }  # fmt: skip
            print(
                f"{name:<25} {load or '':>4} {row['arrivals']:>9} {row['p50']:6.1%} {row['p99']:6.1%} "
                f"{row['either']:6.1%} {row['refused']:6.1%} {row['smallest_visible']:6.1%}",
                flush=True,
            )
            rows.append(row)
    return rows


def log_ratio(a: Sketch, b: Sketch, percent: float) -> float:
    return math.log(quantile(a, percent / 100) / quantile(b, percent / 100))


def changed(seeds: int, n: int = 20_000, by: float = 1.05) -> dict[str, float]:
    """A true change of all latencies: how often is it seen?"""
    system = independent(lognormal(0.5))
    slower = independent(lambda rng, n: by * lognormal(0.5)(rng, n))
    found = []
    for seed in range(seeds):
        a = window(system, n, 2 * seed, arrivals=2 * seed)
        found.append(differs(window(slower, n, 2 * seed + 1, arrivals=2 * seed + 1), a, alike=False) or ())
    share = {f"p{percent}": float(np.mean([percent in called for called in found])) for percent in (50, 99)}
    share["either"] = float(np.mean([bool(called) for called in found]))
    print(f"\n{by - 1:.0%} slower, lognormal 0.5, {n} a side: seen in {share['either']:.1%} of runs")
    return share


def rounds(seeds: int) -> list[dict[str, float]]:
    """Rounds of doubt 1 that differ by nothing, or by `between` as well: how often is no change called one?"""
    print(f"\n{'rounds':>6} {'between':>7} {'called':>7}  width against knowing both")
    rows = []
    for count in (1, 2, 3, 5, 10, 20):
        for between in (0.0, 0.5, 1.0, 2.0):
            rng = np.random.default_rng([count, int(10 * between)])
            wrong, width = 0, []
            for _ in range(10 * seeds):
                # what is known of the doubt is itself uncertain, as from 30 waves
                within = Doubt.of(0.01 * math.sqrt(rng.chisquare(30) / 30 * 1.085 / count))
                logs = 0.01 * rng.normal(0, math.hypot(1, between), count)
                value, doubt = over_rounds(list(logs), within)
                wrong += abs(value) > doubt.up
                width.append(doubt.up / (1.96 * 0.01 * math.hypot(1, between) / math.sqrt(count)))
            row = {"rounds": count, "between": between, "called": wrong / 10 / seeds, "width": float(np.mean(width))}
            print(f"{count:>6} {between:7.1f} {row['called']:7.1%}  {row['width']:.2f}")
            rows.append(row)
    return rows


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--seeds", type=int, default=50)
    found.add_argument("--percent", type=float, default=99)
    found.add_argument("--systems", default="", help="parts of their names; empty: all")
    return found


def main() -> None:
    options = parser().parse_args()
    some = {
        name: system
        for name, system in systems().items()
        if any(part in name[0] for part in options.systems.split(","))
    }
    last_line(
        "intervals",
        seeds=options.seeds,
        percent=options.percent,
        covered=covered(some, options.seeds, options.percent),
        compared=compared(some, options.seeds),
        changed=changed(options.seeds),
        rounds=rounds(options.seeds),
    )


if __name__ == "__main__":
    main()
