"""How often the intervals of `stats.interval` hold the truth, and how often two equal systems are called different.

Latencies are drawn from systems whose true percentiles are known, by formula or from one very long simulation: values
independent of each other, an autoregressive series, pauses at random and at regular times, a slow wander, queues at
seven loads that start in steady state, and a server that streams (first tokens, and times per token). Every seed is one
window with Poisson arrivals, cut into equal slices of time.

Prints per system, load and size: how many intervals hold the true percentile; how many have no upper end, which counts
as held; how many windows have none; the effective size; the width of those with both ends, as a factor. A row with `<`
covers less than 91 of 100. Then how often two runs of one system are called different, by independent and by shared
arrivals, at the same time on one device, in one and over rounds, and how often a true change is. The last line is JSON.

    python tests/bench/intervals.py                     50 seeds, some seven minutes
    python tests/bench/intervals.py --seeds 200         half an hour
    python tests/bench/intervals.py --seeds 200 --percent 50
    python tests/bench/intervals.py --seeds 10 --systems M/M/1,autoregressive
    python tests/bench/intervals.py --seeds 1000 --only together
"""

from __future__ import annotations

import argparse
import math
import sys
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from scipy import signal, special

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line  # noqa: E402
from slots import BY_BATCH, BY_QUEUE, Slots  # noqa: E402
from told_apart import differs  # noqa: E402

from tailrate.analysis.stats.array_types import Floats  # noqa: E402
from tailrate.analysis.stats.dependence import effective_size  # noqa: E402
from tailrate.analysis.stats.interval import interval  # noqa: E402
from tailrate.analysis.stats.ratio import Doubt, over_rounds, ratio  # noqa: E402
from tailrate.analysis.stats.sketch import SLICES, Sketch, quantile  # noqa: E402
from tailrate.loadtest.engine.modes.mixed import Mixed  # noqa: E402
from tailrate.loadtest.engine.scenario.arrivals import Pattern  # noqa: E402
from tailrate.loadtest.engine.scenario.scenario import Scenario  # noqa: E402
from tailrate.loadtest.engine.scenario.steps import StepPlan  # noqa: E402

SIZES = (1_000, 2_000, 6_000, 18_000, 100_000)
LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
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


def streaming(which: Slots, figure: str, load: float) -> System:
    """First tokens, or times per token, of a language model's server."""

    def system(arrivals: Rng, rest: Rng, n: int) -> tuple[Floats, Floats]:
        skip = 2_000
        came = np.cumsum(arrivals.exponential(1 / (load * which.most_rps), n + skip))
        return came[skip:], which.figures_ms(came, rest)[figure][skip:]

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


def hiccups(every: int) -> System:
    """At regular times all wait: three of a hundred, until the pause is over; else lognormal."""

    def system(arrivals: Rng, rest: Rng, n: int) -> tuple[Floats, Floats]:
        came = np.cumsum(arrivals.exponential(size=n))
        into = (came + every * rest.random()) % every
        return came, np.exp(0.3 * rest.normal(size=n)) + np.maximum(0, 0.03 * every - into)

    return system


def wander(size: float, share: float, tail: bool = False) -> System:
    """A slow factor on all latencies, whose time constant is this share of the window.

    With a `tail` of its own: two of a hundred are four times as long, and know nothing of the wander.
    """

    def system(arrivals: Rng, rest: Rng, n: int) -> tuple[Floats, Floats]:
        came = np.cumsum(arrivals.exponential(size=n))
        values = np.exp((0.1 if tail else 0.3) * rest.normal(size=n) + size * slow(rest, n, share * n))
        if tail:
            values = np.where(rest.random(n) < 0.02, 4 * np.exp(0.3 * rest.normal(size=n)), values)
        return came, values

    return system


def slow(rng: Rng, n: int, constant: float) -> Floats:
    """An autoregressive series of unit variance whose memory lasts so many values."""
    keeps = math.exp(-1 / constant)
    new = math.sqrt(1 - keeps**2) * rng.normal(size=n)
    new[0] = rng.normal()
    series: Floats = signal.lfilter([1], [1, -keeps], new)
    return series


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
    for apart in (200, 500, 2_000):
        found[f"stalls, one in {apart}", 0.0] = stalling(apart)
    for every in (100, 300, 1_000):
        found[f"hiccups, every {every}", 0.0] = hiccups(every)
    for size in (0.1, 0.3):
        for share in (0.003, 0.01, 0.03):
            found[f"wander {size}, {share:.1%}", 0.0] = wander(size, share)
    for share in (0.01, 0.1):
        found[f"wander below P98, {share:.0%}", 0.0] = wander(0.3, share, tail=True)
    for load in LOADS:
        found["M/M/1", load] = queue(load, lambda rng, n: rng.exponential(size=n))
        found["M/D/1", load] = queue(load, lambda rng, n: np.ones(n))
        found["M/G/1 lognormal 0.5", load] = queue(load, lognormal(0.5, mean=1))
        found["M/G/1 lognormal 1", load] = queue(load, lognormal(1.0, mean=1))
        found["batching", load] = batching(load)
    for load in (0.5, 0.7, 0.9):
        found["slots, TTFT", load] = streaming(BY_QUEUE, "ttft", load)
        found["slots, TPOT", load] = streaming(BY_BATCH, "tpot", load)
    found["bursty", 0.3] = bursty(0.3)
    found["bursty", 0.5] = bursty(0.5)
    return found


def truth(name: str, load: float, system: System, percent: float) -> float:
    if name == "M/M/1":
        return -math.log(1 - percent / 100) / (1 - load)
    if name.startswith("auto"):
        return math.exp(0.5 * float(special.ndtri(percent / 100)))
    rngs = np.random.default_rng(12345).spawn(2)
    if name.startswith("wander"):  # its slow factor lasts a share of a window: as many windows as it takes
        values = np.concatenate([system(rngs[0], rngs[1], 2_000)[1] for _ in range(5_000)])
    else:
        values = system(rngs[0], rngs[1], 20_000_000 if name != "batching" else 8_000_000)[1]
    return float(np.quantile(values, percent / 100))


def sketch(came: Floats, values: Floats, limits: Sequence[float] = ()) -> Sketch:
    slices = (SLICES * (came - came[0]) / (came[-1] - came[0])).astype(np.int64)
    return Sketch.of(np.minimum(slices, SLICES - 1), values, limits)


def window(system: System, n: int, *seed: int, arrivals: int = 0, limits: Sequence[float] = ()) -> Sketch:
    """The same `arrivals`: the same instants."""
    rngs = np.random.default_rng([1, arrivals, *seed[1:]]), np.random.default_rng([2, *seed])
    return sketch(*system(*rngs, n), limits)


def covered(systems: dict[tuple[str, float], System], seeds: int, percent: float) -> list[dict[str, float | str]]:
    print(f"{'system':<25} {'load':>4} {'n':>7} {'covers':>7}  {'open':>6} {'none':>6} {'n_eff/n':>8} {'width':>7}")
    rows: list[dict[str, float | str]] = []
    for (name, load), system in systems.items():
        goal = truth(name, load, system, percent)
        for n in SIZES:
            key = zlib.crc32(f"{name} {load}".encode())
            windows = [window(system, n, seed, n, key, arrivals=seed) for seed in range(seeds)]
            found = [one for one in (interval(window, percent) for window in windows) if one]
            closed = [high / low for low, high in found if low > 0 and math.isfinite(high)]
            row = {
                "system": name, "load": load, "n": n, "covers": mean(low <= goal <= high for low, high in found),
                "open": mean(high == math.inf for _, high in found), "none": 1 - len(found) / seeds,
                "n_eff_share": mean((effective_size(window, percent) or math.nan) / n for window in windows),
                "width": float(np.median(closed)) if closed else math.nan,
            }  # fmt: skip
            print(
                f"{name:<25} {load or '':>4} {n:>7} {row['covers']:7.1%}{'<' if row['covers'] < 0.91 else ' '} "
                f"{row['open']:>6.1%} {row['none']:>6.1%} {row['n_eff_share']:8.4f} {row['width']:7.2f}",
                flush=True,
            )
            rows.append(row)
    return rows


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return float(np.mean(found)) if found else math.nan


class Compared:
    """What is said of pairs of windows that don't differ."""

    def __init__(self) -> None:
        self.called: dict[float | str, list[bool]] = {50: [], 99: [], "either": []}
        self.doubts: list[Doubt | None] = []

    def add(self, a: Sketch, b: Sketch, alike: bool) -> None:
        for percent in (50, 99):
            doubt = ratio([(a, b)], percent, alike)
            if doubt:
                off = math.log(quantile(a, percent / 100) / quantile(b, percent / 100))
                self.called[percent].append(off > doubt.down or -off > doubt.up)
        self.doubts.append(doubt)
        self.called["either"].append(bool(differs(a, b, alike)))

    def row(self) -> dict[str, float]:
        given = [doubt for doubt in self.doubts if doubt]
        closed = [(doubt.down + doubt.up) / 2 for doubt in given if math.isfinite(doubt.down + doubt.up)]
        return {
            **{f"p{key}" if key != "either" else key: mean(found) for key, found in self.called.items()},
            "open": mean(not math.isfinite(doubt.down + doubt.up) for doubt in given),
            "none": 1 - len(given) / len(self.doubts),
            "width": float(np.median(closed)) if closed else math.nan,
        }

    TITLE = f"{'P50':>6} {'P99':>6} {'either':>6} {'open':>6} {'none':>6} {'width':>6}"

    @staticmethod
    def line(row: Mapping[str, float]) -> str:
        shares = " ".join(f"{row[key]:6.1%}" for key in ("p50", "p99", "either", "open", "none"))
        return f"{shares} ±{row['width']:5.1%}"


def compared(systems: dict[tuple[str, float], System], seeds: int, n: int = 18_000) -> list[dict[str, float | str]]:
    """Two runs of one system: how often are they called different?"""
    print(f"\n{'the same twice':<25} {'load':>4} {'arrivals':>9} {Compared.TITLE}")
    rows: list[dict[str, float | str]] = []
    for (name, load), system in systems.items():
        for paired in (False, True):
            if load > 0.8 or (paired and name in ("M/D/1", "batching")):
                continue  # in the latter nothing but the arrivals is random: the two are one
            found = Compared()
            for seed in range(seeds):
                key = zlib.crc32(f"{name} {load}".encode())
                a = window(system, n, 2 * seed, key, arrivals=2 * seed)
                b = window(system, n, 2 * seed + 1, key, arrivals=2 * seed + (not paired))
                found.add(a, b, paired)
            row = found.row()
            print(
                f"{name:<25} {load or '':>4} {'the same' if paired else 'others':>9} {Compared.line(row)}",
                flush=True,
            )
            rows.append({"system": name, "load": load, "arrivals": "the same" if paired else "others", **row})
    return rows


def together(seeds: int) -> list[dict[str, float | str]]:
    """Two variants that do not differ, driven at the same time by the plan's own arrivals, first come, first served."""
    print(f"\n{'two at once on one device':<25} {'load':>4} {'n':>6} {Compared.TITLE}")
    rows: list[dict[str, float | str]] = []
    services: dict[str, Draw] = {
        "constant": lambda rng, n: np.ones(n),
        "exponential": lambda rng, n: rng.exponential(size=n),
        "lognormal 1": lognormal(1.0, mean=1),
    }
    for (name, service), load, rate in product(services.items(), (0.3, 0.6, 0.8), (200.0, 600.0)):
        found = Compared()
        for seed in range(seeds):
            scenario = Scenario(
                "two", "m", (), mode=Mixed(), rates=(rate,), pattern=Pattern("poisson"), step_seconds=30, seed=seed
            )
            (block,) = scenario.mode.blocks(StepPlan(scenario), ["m/a", "m/b"])
            came = [step.offsets(scenario.pattern) / 1e9 for step in block]
            at = np.concatenate(came)
            order = np.argsort(at, kind="stable")
            work = np.cumsum(served := service(np.random.default_rng([4, seed]), len(at)) * load / rate)
            latency = np.empty(len(at))
            latency[order] = np.maximum.accumulate(at[order] - (work - served)) + work - at[order]
            a, b = (
                Sketch.of((SLICES * mine / 30).astype(np.int64), np.round(taken, 9))
                for mine, taken in zip(came, np.split(latency, [len(came[0])]), strict=True)
            )
            found.add(a, b, alike=True)
        row, n = found.row(), round(rate * 15)
        print(f"{name:<25} {load:>4} {n:>6} {Compared.line(row)}", flush=True)
        rows.append({"service": name, "load": load, "n": n, **row})
    return rows


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


PARTS = ("covered", "compared", "together", "changed", "rounds")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--seeds", type=int, default=50)
    found.add_argument("--percent", type=float, default=99)
    found.add_argument("--systems", default="", help="parts of their names; empty: all")
    found.add_argument("--only", choices=PARTS, help="one part")
    return found


def main() -> None:
    options = parser().parse_args()
    some = {
        name: system
        for name, system in systems().items()
        if any(part in name[0] for part in options.systems.split(","))
    }
    parts: dict[str, Callable[[], object]] = {
        "covered": lambda: covered(some, options.seeds, options.percent),
        "compared": lambda: compared(some, options.seeds),
        "together": lambda: together(options.seeds),
        "changed": lambda: changed(options.seeds),
        "rounds": lambda: rounds(options.seeds),
    }
    found = {name: part() for name, part in parts.items() if options.only in (None, name)}
    last_line("intervals", seeds=options.seeds, percent=options.percent, **found)


if __name__ == "__main__":
    main()
