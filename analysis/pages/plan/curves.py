"""What is drawn of a plan besides its figures: latency over rate and over replicas, and the knee by replicas.

Simulated from the fleets that `plan.json` holds, on arrivals of the page's own, since those of the plan are not in it;
the page's script works the same out again for other circumstances.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tailrate.analysis.planning.plan import sizing
from tailrate.analysis.planning.plan.sizing import WARM, Objective, Sizing, Traffic
from tailrate.analysis.planning.simulator import simulate
from tailrate.analysis.planning.simulator.simulate import Fleet
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.stats.array_types import Floats

PLACES = 14
"""Rates of a curve."""
SIZES = 8
"""Numbers of replicas whose latency is drawn, around the one that is planned."""
SEEN = 40
"""Of so many replicas one is hardly seen."""

Knees = Sequence[tuple[int, float]]
"""(replicas, the highest rate that they hold), ascending; what lies between is taken to be in proportion."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Of one variant; latencies in ms, at the median and at the objective's percentile."""

    by_rate: list[tuple[float, float, float]]
    """(rate, P50, P99) of the planned fleet."""
    by_size: list[tuple[int, float]]
    """(replicas, P99) at the planned rate."""
    knees: Knees


def draw(count: int, seed: int, burstiness: float) -> Floats:
    """As `sizing.Draw`."""
    if math.isinf(burstiness):
        return np.arange(count, dtype=np.float64)
    return np.cumsum(np.random.default_rng(seed).standard_gamma(burstiness, count) / burstiness)


def asking(demand: Mapping[str, Any]) -> Sizing:
    burstiness = math.inf if demand["burstiness"] is None else float(demand["burstiness"])
    return Sizing(Objective(Slo.parse(demand["slo"])), Traffic(draw, burstiness), seeds=(1,))


def curves(fleet: Fleet, asked: Sizing, rate_rps: float, spare: int, most_rps: float) -> Curves:
    """`spare`: replicas that may be lost; `most_rps`: to which rate its knees are wanted."""

    def latencies(fleet: Fleet, rate: float) -> tuple[float, float]:
        arrivals_s = asked.traffic.at(rate, asked.count(fleet, rate), asked.seeds[0])
        found = simulate.simulate(arrivals_s, fleet, asked.seeds[0])
        return found.quantile(50, WARM) * 1e3, found.quantile(asked.objective.percentile, WARM) * 1e3

    by_rate = [(rate, *latencies(fleet, rate)) for rate in rates(fleet.limit_rps)]
    around = sizes(fleet.replicas, sizing.stable_from(fleet, rate_rps), spare)
    by_size = [(n, latencies(replace(fleet, replicas=n), rate_rps)[1]) for n in around]
    knees = []
    for replicas in spaced(math.ceil(most_rps / replace(fleet, replicas=1).limit_rps)):
        knees.append((replicas, asked.knee_rps(replace(fleet, replicas=replicas))))
        if not 0 < knees[-1][1] < most_rps:
            break
    return Curves(by_rate, by_size, knees)


def rates(limit_rps: float) -> list[float]:
    """Up to where queues grow for ever, closer together where the curve bends."""
    return [limit_rps * (1 - (1 - k / PLACES) ** 1.7) for k in range(1, PLACES + 1)]


def sizes(replicas: int, least: int, spare: int) -> range:
    """Around the number that is planned, with what is left where some are lost."""
    first = max(1, min(least, replicas), replicas - spare - SIZES // 2)
    return range(first, replicas + SIZES // 2)


def spaced(last: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12 … without end, but for those of no account beside `last`.

    >>> list(itertools.islice(spaced(1000), 4))
    [32, 48, 64, 96]
    """
    for replicas in itertools.chain((1, 2, 3), (part << n for n in range(1, 30) for part in (2, 3))):
        if replicas * SEEN >= last:
            yield replicas


def needed(knees: Knees, rate_rps: float) -> int | None:
    """The fewest replicas whose knee is not below a rate; None beyond the last."""
    before, at = 0, 0.0
    for replicas, knee in knees:
        if knee >= rate_rps:
            share = (rate_rps - at) / (knee - at)
            return max(before + 1, math.ceil(before + share * (replicas - before) - 1e-9))
        before, at = replicas, knee
    return None
