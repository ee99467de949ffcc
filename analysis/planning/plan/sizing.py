"""How many replicas hold an objective at a rate, found by simulation: the fewest, also with some of them lost.

Everything is asked of the same arrivals, drawn once at a rate of one and carried to any rate, so that two fleets or two
rates differ by themselves and not by chance. The search is made with the first seed; what it finds has to hold for most
of the seeds. `holds` at a replica more usually follows from one less, but not always where a batch waits for company:
where a request that is alone would miss the objective, every tenth size is tried rather than every second power.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import median_low
from typing import Any, TypeVar, TypeVarTuple

import numpy as np

from tailrate.analysis.planning.simulator import simulate
from tailrate.analysis.planning.simulator.queueing_theory import stable_below_rps
from tailrate.analysis.planning.simulator.simulate import Fleet, Outage, Outcome
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.stats.array_types import Floats

Asked = TypeVarTuple("Asked")
Found = TypeVar("Found")
Draw = Callable[[int, int, float], Floats]
"""(count, seed, burstiness) → so many instants in seconds at a rate of one; burstiness is the shape of gamma's gaps:
1 is Poisson, below it come bursts, and infinity is an even spacing."""

SEEDS = (1, 2, 3)
MOST_ARRIVALS = 1 << 24
LONG = 500_000
LEAST_BEYOND = 1000
"""Arrivals beyond the percentile that a simulation is to have."""
PER_REPLICA = 2000
BATCHES_LONG = 500
"""A simulation lasts at least so many of the longest batches, so that its queues can come to what they come to."""
WARM = 0.1
LONELY = 0.02
"""A replica with less to do than this share of its time has one request at a time."""


class QuestionError(ValueError):
    """One that has no answer: a sentence that says what to ask instead."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a simulated outcome is held against."""

    slo: Slo

    def __post_init__(self) -> None:
        slo = self.slo
        if slo.latency_ms is None or slo.percentile is None:
            raise QuestionError(f"--slo {slo} has no latency, and replicas are counted for one: write p99<50ms")
        if slo.min_rate_rps is not None:
            raise QuestionError(f"--slo {slo} asks for a rate, which --rate says here; leave it out of the objective")
        beyond = 1 - max(slo.percentile / 100, slo.min_goodput or 0.0)
        if beyond * MOST_ARRIVALS < LEAST_BEYOND:
            raise QuestionError(
                f"p{slo.percentile:g} is decided by one request in {1 / max(beyond, 1e-12):,.0f}: that takes more than "
                f"the {MOST_ARRIVALS / 1e6:.0f} million arrivals that are simulated; ask for p99.99 at most"
            )

    @property
    def percentile(self) -> float:
        assert self.slo.percentile is not None
        return self.slo.percentile

    @property
    def latency_s(self) -> float:
        assert self.slo.latency_ms is not None
        return self.slo.latency_ms / 1000

    @property
    def least_arrivals(self) -> int:
        return math.ceil(LEAST_BEYOND / (1 - max(self.percentile / 100, self.slo.min_goodput or 0.0)) / (1 - WARM))

    def times(self, factor: float) -> Objective:
        """With a latency so many times as long."""
        assert self.slo.latency_ms is not None
        return Objective(replace(self.slo, latency_ms=self.slo.latency_ms * factor))

    def read(self, outcome: Outcome, warm: float = WARM) -> Reading:
        latency = outcome.latency_s[int(len(outcome.latency_s) * warm) :]
        at, failed = outcome.quantile(self.percentile, warm), float(np.mean(np.isinf(latency)))
        kept = at <= self.latency_s
        if self.slo.max_error_rate is not None:
            kept &= failed <= self.slo.max_error_rate
        if self.slo.min_goodput is not None:
            kept &= float(np.mean(latency <= self.latency_s)) >= self.slo.min_goodput
        mean = float(np.mean(latency[np.isfinite(latency)])) if failed < 1 else math.inf
        return Reading(kept, at, mean, failed, outcome.utilisation, outcome.mean_batch)


@dataclass(frozen=True, slots=True)
class Reading:
    """One simulation, as far as a plan needs it."""

    kept: bool
    latency_s: float
    """At the objective's percentile; infinite where too many failed."""
    mean_s: float
    """Of the requests that were answered."""
    failed: float
    utilisation: float
    mean_batch: float


@dataclass(frozen=True, eq=False)
class Traffic:
    """Arrivals at any rate."""

    draw: Draw
    burstiness: float = 1.0

    @classmethod
    def parse(cls, text: str, draw: Draw) -> Traffic:
        """Of `poisson`, `constant` or `gamma:SHAPE`, as `tailrate run` has them."""
        kind, _, number = text.partition(":")
        try:
            shape = {"poisson": 1.0, "constant": math.inf}[text] if not number else float(number)
        except (KeyError, ValueError):
            shape = 0.0
        if not shape > 0 or (number and (kind != "gamma" or not 0.01 <= shape <= 100)):
            raise QuestionError(
                f"--burst '{text}' is not understood; write poisson, constant, or gamma:0.25 (below 1 in bursts, above "
                f"it more and more even; from 0.01 to 100)"
            )
        return cls(draw, shape)

    @cached_property
    def _drawn(self) -> dict[int, Floats]:
        return {}

    @cached_property
    def known(self) -> dict[tuple[object, ...], Any]:
        """What `Sizing` has asked of these arrivals."""
        return {}

    def at(self, rate_rps: float, count: int, seed: int) -> Floats:
        known = self._drawn.get(seed)
        if known is None or len(known) < count:
            known = self._drawn[seed] = self.draw(count, seed, self.burstiness)
        return known[:count] / rate_rps

    def burstier(self, factor: float) -> Traffic:
        """With gaps whose variance is so many times as large; an even spacing has none to multiply."""
        return Traffic(self.draw, self.burstiness / factor)


def _once(ask: Callable[[Sizing, *Asked], Found]) -> Callable[[Sizing, *Asked], Found]:
    """Simulated the first time: a plan comes back to fleets and rates that it has had."""

    def known(sizing: Sizing, *args: *Asked) -> Found:
        key = (ask.__name__, sizing.objective, *sizing.seeds, sizing.sparing, *args)
        if key not in sizing.traffic.known:
            sizing.traffic.known[key] = ask(sizing, *args)
        found: Found = sizing.traffic.known[key]
        return found

    return known


@dataclass(frozen=True, eq=False)
class Sizing:
    """Asks the simulator about one objective under one kind of traffic."""

    objective: Objective
    traffic: Traffic
    seeds: Sequence[int] = SEEDS
    sparing: int = 1
    """By this it takes fewer arrivals than show it well."""
    tell: Callable[[str], None] = lambda _: None

    def count(self, fleet: Fleet, rate_rps: float) -> int:
        """How many arrivals show it: enough beyond the percentile, for each replica, and for queues to settle."""
        longest_s = float(fleet.service.mean_s[fleet.max_batch]) + fleet.batch_wait_s
        least = max(
            self.objective.least_arrivals, PER_REPLICA * fleet.replicas, math.ceil(BATCHES_LONG * longest_s * rate_rps)
        )
        return min(MOST_ARRIVALS, math.ceil(least / self.sparing))

    @property
    def brief(self) -> Sizing:
        """For questions beside the plan: with the first seed alone where a simulation is long."""
        return replace(self, seeds=self.seeds[:1]) if self.objective.least_arrivals > LONG else self

    def read(self, fleet: Fleet, rate_rps: float, seed: int | None = None) -> Reading:
        return self._read(fleet, rate_rps, self.seeds[0] if seed is None else seed)

    @_once
    def _read(self, fleet: Fleet, rate_rps: float, seed: int) -> Reading:
        self.tell(f"{fleet.replicas} replicas at {rate_rps:,.5g}/s")
        arrivals = self.traffic.at(rate_rps, self.count(fleet, rate_rps), seed)
        return self.objective.read(simulate.simulate(arrivals, fleet, seed))

    def readings(self, fleet: Fleet, rate_rps: float) -> list[Reading]:
        """By latency: the one in the middle holds the objective where most of the seeds do."""
        found = (self.read(fleet, rate_rps, seed) for seed in self.seeds)
        return sorted(found, key=lambda reading: reading.latency_s)

    def holds(self, fleet: Fleet, rate_rps: float) -> bool:
        """For most of the seeds."""
        return _most(self.read(fleet, rate_rps, seed).kept for seed in self.seeds)

    @_once
    def alone(self, fleet: Fleet) -> Reading:
        """Requests that never meet another one: no number of replicas makes them faster."""
        service = fleet.service
        gap_s = 10 * (fleet.batch_wait_s + float(service.mean_s[1] * service.spread[service.spread_class[1]].max()))
        arrivals = np.arange(min(self.objective.least_arrivals, 1 << 20), dtype=np.float64) * gap_s
        lone = replace(fleet, replicas=1, outages=(), autoscaling=None)
        return self.objective.read(simulate.simulate(arrivals, lone, self.seeds[0]), 0.0)

    def fewest(self, fleet: Fleet, rate_rps: float, near: int | None = None) -> int | None:
        """The fewest replicas that hold the objective at this rate; None where no number does. `near`: a guess."""
        least, most = stable_from(fleet, rate_rps), lonely_from(fleet, rate_rps)

        def keeps(replicas: int) -> bool:
            return replicas >= least and self.read(replace(fleet, replicas=replicas), rate_rps).kept

        if self.alone(fleet).kept:
            found = _bracket(keeps, least, most, min(most, max(least, near or least)))
        else:
            found = self._scanned(fleet, least, most, keeps)
        if found is None:
            return None
        low, high = found
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if keeps(middle) else (middle, high)
        return self._settled(fleet, rate_rps, high, least, most)

    def _scanned(self, fleet: Fleet, least: int, most: int, keeps: Callable[[int], bool]) -> tuple[int, int] | None:
        """Company may come in time where there are few replicas, although one that is alone waits for too long."""
        if not fleet.batch_wait_s or not self.alone(replace(fleet, batch_wait_s=0.0)).kept:
            return None
        low, replicas = least - 1, least
        while replicas <= most:
            if keeps(replicas):
                return low, replicas
            low, replicas = replicas, max(replicas + 1, math.ceil(1.1 * replicas))
        return None

    def _settled(self, fleet: Fleet, rate_rps: float, replicas: int, least: int, most: int) -> int | None:
        """Where most of the seeds agree."""

        def agreed(count: int) -> bool:
            return self.holds(replace(fleet, replicas=count), rate_rps)

        if agreed(replicas):
            while replicas > least and agreed(replicas - 1):
                replicas -= 1
            return replicas
        return next((count for count in range(replicas + 1, most + 1) if agreed(count)), None)

    @_once
    def after_loss(self, fleet: Fleet, rate_rps: float, lost: int, seed: int) -> Reading:
        """From when so many replicas are lost at once, half-way; what they held counts."""
        arrivals = self.traffic.at(rate_rps, 2 * self.count(fleet, rate_rps), seed)
        half_s = float(arrivals[len(arrivals) // 2])
        broken = replace(fleet, outages=tuple(Outage(replica, half_s) for replica in range(lost)))
        self.tell(f"{fleet.replicas} replicas at {rate_rps:,.5g}/s less {lost}")
        # a request that was under way then came at most this much earlier
        return self.objective.read(simulate.simulate(arrivals, broken, seed), 0.49)

    def survives(self, fleet: Fleet, rate_rps: float, lost: int) -> bool:
        return _most(self.after_loss(fleet, rate_rps, lost, seed).kept for seed in self.seeds)

    def fewest_after_loss(self, fleet: Fleet, rate_rps: float, lost: int, near: int | None = None) -> int | None:
        """The fewest replicas of which so many may be lost."""
        replicas = self.fewest(fleet, rate_rps, near=None if near is None else near - lost)
        if replicas is None or not lost:
            return replicas
        most = lonely_from(fleet, rate_rps) + lost
        counts = range(replicas + lost, most + 1)
        return next((count for count in counts if self.survives(replace(fleet, replicas=count), rate_rps, lost)), None)

    @_once
    def knee_rps(self, fleet: Fleet) -> float:
        """The highest rate at which this fleet holds the latency, for most of the seeds."""
        self.tell(f"the knee of {fleet.replicas} replicas")
        count, slo_s, percent = self.count(fleet, fleet.limit_rps), self.objective.latency_s, self.objective.percentile
        found = (
            simulate.knee(fleet, slo_s, percent, partial(self.traffic.at, count=count, seed=seed), seed=seed)
            for seed in self.seeds
        )
        return median_low(found)


def stable_from(fleet: Fleet, rate_rps: float) -> int:
    """The fewest replicas whose queues do not grow for ever: a bound that needs no simulation.

    Where full batches are slower by the request than small ones, few replicas may do as long as nothing disturbs them:
    once a queue has made their batches full, they never catch up again. So what counts is what full batches do.

    >>> service = simulate.Service.steady(np.array([0.0, 0.010]))
    >>> stable_from(Fleet(service, 1, 1, 0.0, simulate.Rule.COMPANY, simulate.Routing.LEAST), 1000)
    11
    """
    return math.floor(rate_rps / stable_below_rps(replace(fleet, replicas=1, autoscaling=None)) + 1e-9) + 1


def lonely_from(fleet: Fleet, rate_rps: float) -> int:
    """So many replicas that each has one request at a time."""
    occupied_s = float(fleet.service.mean_s[1]) + fleet.batch_wait_s
    return max(stable_from(fleet, rate_rps), math.ceil(rate_rps * occupied_s / LONELY))


def _bracket(keeps: Callable[[int], bool], least: int, most: int, start: int) -> tuple[int, int] | None:
    """(fails, holds), by steps that double, from where the answer is thought to be."""
    step, low, high = 1, start - 1, start
    if keeps(start):
        while low >= least and keeps(low):
            step *= 2
            low, high = max(least - 1, low - step), low
        return low, high
    while not keeps(high):
        if high >= most:
            return None
        low, high = high, min(most, high + step)
        step *= 2
    return low, high


def _most(answers: Iterable[bool]) -> bool:
    found = list(answers)
    return 2 * sum(found) > len(found)
