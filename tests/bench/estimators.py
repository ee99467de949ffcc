"""Which estimate of a variance makes the best interval: of how many arrivals of a window are beyond its percentile.

Arrivals depend on their neighbours, so their number beyond a limit varies more than of independent ones. Each way to
estimate by how much, from 200 slices of one window, says what the arrivals are worth, hence an interval of P99; here on
the systems of intervals.py, each as it is and with `sketch.CLUSTERS`, which counts dependence for more where few
arrivals are beyond.

Prints for each way and kind of system: how many intervals hold the truth (an open end holds), of all windows and in the
worst cell of one system, load and size; how many have no upper end; the median width of the others against those of
`worth`, which is what the harness uses. The last line is JSON.

    python tests/bench/estimators.py                  30 seeds, some four minutes
    python tests/bench/estimators.py --seeds 200      half an hour
"""

from __future__ import annotations

import argparse
import math
import sys
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line  # noqa: E402
from bench.intervals import SIZES, systems, truth, window  # noqa: E402

from tailrate.analysis.stats.array_types import Floats  # noqa: E402
from tailrate.analysis.stats.dependence import allowed, beyond, excess, variance, worth  # noqa: E402
from tailrate.analysis.stats.interval import bounds  # noqa: E402
from tailrate.analysis.stats.sketch import SLICES, quantile  # noqa: E402

Way = Callable[[Floats, float], tuple[float, int]]
"""Of deviations by slice, and their variance if all were independent: by what it is larger; from how many values."""


def batches(count: int, deviations: Floats, independent: float) -> tuple[float, int]:
    sums = deviations.reshape(count, -1).sum(axis=1)
    return count / (count - 1) * float(sums @ sums) / independent, count - 1


def overlapping(long: int, deviations: Floats, independent: float) -> tuple[float, int]:
    until = np.concatenate([[0.0], np.cumsum(deviations)])
    sums = until[long:] - until[:-long]
    return SLICES / long * float(np.mean(sums**2)) / independent / (1 - long / SLICES), round(1.5 * SLICES / long) - 1


def bootstrap(long: int, deviations: Floats, independent: float) -> tuple[float, int]:
    """Windows put together at random from blocks of neighbours, end joined to beginning."""
    starts = np.random.default_rng(1).integers(0, SLICES, (400, SLICES // long))
    drawn = deviations[(starts[..., None] + np.arange(long)) % SLICES]
    return float(np.var(drawn.sum(axis=(1, 2)))) / independent, SLICES // long - 1


def spectral(degree: int, deviations: Floats, independent: float) -> tuple[float, int]:
    """Heidelberger and Welch: a polynomial through the logarithms of 25 pairs of the periodogram, its value at 0."""
    power = np.abs(np.fft.rfft(deviations)[1:51]) ** 2
    logs = np.log((power[::2] + power[1::2]) / 2 + 1e-12) + 0.270
    terms = np.vander((4 * np.arange(1, 26) - 1) / (2 * SLICES), degree + 1, increasing=True)
    spread = 0.645 * float(np.linalg.inv(terms.T @ terms)[0, 0])
    at_zero = float((np.linalg.pinv(terms) @ logs)[0])
    return math.exp(at_zero - spread / 2) / independent, {1: 10, 2: 7}[degree]


def cosines(waves: int, deviations: Floats, independent: float) -> tuple[float, int]:
    """As `worth`, with another number of them."""
    return variance([deviations], waves) / independent, waves


WAYS: dict[str, Way] = {
    "independent": lambda deviations, independent: (1.0, SLICES),
    "10 batches": partial(batches, 10),
    "25 batches": partial(batches, 25),
    "overlapping, 10 slices": partial(overlapping, 10),
    "overlapping, 20 slices": partial(overlapping, 20),
    "bootstrap, 10 slices": partial(bootstrap, 10),
    "spectrum, linear": partial(spectral, 1),
    "spectrum, quadratic": partial(spectral, 2),
    "30 cosines": partial(cosines, 30),
    "12 cosines": partial(cosines, 12),
    "8 cosines": partial(cosines, 8),
    "5 cosines": partial(cosines, 5),
}


def size(way: Way, clusters: bool, arrivals: Floats, late: Floats) -> float:
    n, over = float(arrivals.sum()), float(late.sum())
    share = over / n
    inflation, freedom = way(late - share * arrivals, n * share * (1 - share))
    more = excess(inflation, freedom)
    return n / (allowed(more, over) if clusters else 1 + more)


def kind(name: str) -> str:
    kinds = {"M/": "queues", "batching": "queues", "stalls": "pauses", "hiccups": "pauses", "bursty": "bursty"}
    kinds |= {"wander": "wander", "auto": "autoregressive"}
    return next((kind for start, kind in kinds.items() if name.startswith(start)), "independent")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--seeds", type=int, default=30)
    found.add_argument("--percent", type=float, default=99)
    found.add_argument("--systems", default="", help="parts of their names; empty: all")
    return found


def main() -> None:
    options = parser().parse_args()
    p = options.percent
    sizes: dict[str, Callable[[Floats, Floats], float]] = {"worth": worth}
    for name, way in WAYS.items():
        sizes |= {name: partial(size, way, False), f"{name}, clusters": partial(size, way, True)}
    # by kind and way: of each cell the share that holds, the share that is open, the median width
    cells: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for (name, load), system in systems().items():
        if not any(part in name for part in options.systems.split(",")):
            continue
        print(f"{name} {load or ''}", file=sys.stderr, flush=True)
        goal, key = truth(name, load, system, p), zlib.crc32(f"{name} {load}".encode())
        for n in SIZES:
            windows = [window(system, n, seed, n, key, arrivals=seed) for seed in range(options.seeds)]
            seen = [beyond(one, p) for one in windows]
            for label, worth_of in sizes.items():
                holds, widths = [], []
                for one, (arrivals, over) in zip(windows, seen, strict=True):
                    low, high = bounds(p, worth_of(arrivals, over)) or (0.0, None)
                    ends = quantile(one, low), math.inf if high is None else quantile(one, high)
                    holds.append(ends[0] <= goal <= ends[1])
                    widths += [math.log(ends[1] / ends[0])] if high is not None and ends[1] < math.inf else []
                open_share = 1 - len(widths) / len(windows)
                width = float(np.median(widths)) if open_share < 0.5 else math.nan
                cells.setdefault((kind(name), label), []).append((float(np.mean(holds)), open_share, width))
    rows = []
    for of in dict.fromkeys(kind for kind, _ in cells):
        print(f"\n{of:<34} {'holds':>6} {'least':>6} {'open':>6} {'width against worth':>20}")
        ours = np.array(cells[of, "worth"])
        for label in sizes:
            found = np.array(cells[of, label])
            both = np.isfinite(ours[:, 2]) & np.isfinite(found[:, 2]) & (ours[:, 2] > 0)
            width = (found[both, 2] / ours[both, 2]).mean() if both.any() else math.nan
            holds, open_share, _ = found.T
            row = {
                "kind": of, "way": label, "holds": holds.mean(), "least": holds.min(), "open": open_share.mean(),
                "width": width,
            }  # fmt: skip
            print(f"{label:<34} {row['holds']:6.1%} {row['least']:6.1%} {row['open']:6.1%} {row['width']:20.2f}")
            rows.append(row)
    last_line("estimators", seeds=options.seeds, percent=p, rows=rows)


if __name__ == "__main__":
    main()
