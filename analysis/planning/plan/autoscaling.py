"""How an autoscaler should be set, from simulating it over the curve of a day or over a burst.

Ray Serve adds and takes away replicas by how many requests each has under way. The higher that target, the fewer
replicas stand by, and the later there are enough of them: a new one takes requests after its cold start, which is as
it was measured. Every setting is simulated on the same arrivals; of those that keep the objective over all of them the
one that takes the fewest replica-hours is advised. A curve too long to be simulated whole is simulated around its
steepest rise, where an autoscaler is late, and its replica-hours are those of an autoscaler that is on time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.planning.plan.sizing import QuestionError, Sizing
from tailrate.analysis.planning.simulator import simulate
from tailrate.analysis.planning.simulator.simulate import Autoscaling, Fleet
from tailrate.analysis.stats.array_types import Floats
from tailrate.analysis.text.words import duration

if TYPE_CHECKING:
    from tailrate.analysis.planning.plan.candidates import PlannedVariant
    from tailrate.analysis.planning.plan.question import Question
    from tailrate.analysis.planning.plan.sized_fleet import SizedFleet

MOST_ARRIVALS = {"sine": 3e6, "spike": 8e6}
POINTS = 20_000
LOADS = (0.6, 0.75, 0.9, 1.0)
"""Of what a replica of the plan takes at the peak: the targets that are tried lie at these."""
UPSCALE_S, DOWNSCALE_S = (5.0, 30.0), (120.0, 600.0)
ROOM = 1.25
"""More replicas than the peak takes, so that what has queued up can be caught up with."""
BEFORE_S, AFTER_S = 300.0, 900.0
"""Of a spike."""
WARM = 0.02


@dataclass(frozen=True, slots=True)
class RateCurve:
    """How a rate changes: sine:DEPTH:PERIOD_S around its mean, or spike:FACTOR:AT_S:SECONDS above it."""

    kind: str
    height: float
    """Depth of a sine, factor of a spike."""
    period_s: float
    """Of a spike its length."""

    @classmethod
    def parse(cls, shape: str) -> RateCurve:
        """
        >>> Curve.parse("sine:0.5:86400").trough
        0.5
        """
        kind, *numbers = shape.split(":")
        if kind == "sine" and len(numbers) == 2:
            return cls(kind, float(numbers[0]), float(numbers[1]))
        if kind == "spike" and len(numbers) == 3:
            return cls(kind, float(numbers[0]), float(numbers[2]))
        raise QuestionError(
            f"--autoscale needs a rate that changes, and --shape {shape} is not one it knows: "
            f"write sine:0.5:86400 or spike:3:0:600"
        )

    @property
    def trough(self) -> float:
        """The lowest factor."""
        return 1 - self.height if self.kind == "sine" else min(1.0, self.height)

    @property
    def span_s(self) -> tuple[float, float]:
        """A day, or the spike with what is before and after it; the steepest rise is at 0."""
        return (-self.period_s / 2, self.period_s / 2) if self.kind == "sine" else (-BEFORE_S, self.period_s + AFTER_S)

    @property
    def over(self) -> str:
        """That in words; how often a spike comes is not known, so what is saved in a day is not, either."""
        first_s, last_s = self.span_s
        if self.kind == "sine":
            return f"a whole period of {duration(self.period_s)}"
        before, after = duration(-first_s), duration(last_s - self.period_s)
        return f"the spike of {duration(self.period_s)} with {before} before and {after} after it"

    def factor(self, at_s: Floats) -> Floats:
        if self.kind == "sine":
            return 1 + self.height * np.sin(2 * math.pi * at_s / self.period_s)
        return np.where((at_s >= 0) & (at_s < self.period_s), self.height, 1.0)

    def window(self, rate_rps: float) -> tuple[float, float]:
        """As much of the span as can be simulated."""
        first_s, last_s = self.span_s
        longest_s = MOST_ARRIVALS[self.kind] / rate_rps / (1.0 if self.kind == "sine" else max(1.0, self.height))
        if last_s - first_s <= longest_s:
            return first_s, last_s
        return max(first_s, -longest_s / 2), min(last_s, longest_s / 2)

    def arrivals(self, sizing: Sizing, rate_rps: float, seed: int) -> tuple[Floats, bool]:
        """In seconds from the window's start, and whether that is the whole span."""
        window = self.window(rate_rps)
        times = np.linspace(*window, POINTS)
        factors = self.factor(times) * rate_rps
        expected = np.concatenate([[0.0], np.cumsum((factors[1:] + factors[:-1]) / 2 * np.diff(times))])
        events = sizing.traffic.at(1.0, math.ceil(1.1 * expected[-1]) + 100, seed)
        inside = events[events < expected[-1]]
        return np.interp(inside, expected, times) - window[0], window == self.span_s


@dataclass(frozen=True, slots=True)
class Setting:
    """One that was simulated."""

    target_ongoing: float
    min_replicas: int
    max_replicas: int
    upscale_delay_s: float
    downscale_delay_s: float
    kept: bool
    latency_ms: float
    """At the objective's percentile, over the whole window."""
    missed: float
    """Share of requests beyond the objective's latency."""
    replicas_mean: float
    """Replica-hours per hour."""


@dataclass(frozen=True, slots=True)
class AutoscalingAdvice:
    chosen: Setting
    settings: tuple[Setting, ...]
    cold_start_s: float
    static_replicas: int
    """What the plan takes without an autoscaler."""
    whole: bool
    """The curve was simulated from end to end."""
    window_s: float
    over: str
    """The time that the replicas on average are of, and what is saved."""

    @property
    def saved(self) -> float:
        """Share of the replica-hours of a fleet that stands all the time."""
        return 1 - self.chosen.replicas_mean / self.static_replicas

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"saved": self.saved}


def advise(
    variant: PlannedVariant, answer: SizedFleet, question: Question, cold_start_s: float | None = None
) -> AutoscalingAdvice:
    """For the planned variant; `cold_start_s` in place of what was measured."""
    curve, sizing = RateCurve.parse(question.shape), question.sizing
    start_s = variant.calibration.warmup_s if cold_start_s is None else cold_start_s
    if start_s is None:
        raise QuestionError(
            f"the runs do not say how long a replica of {variant.endpoint} takes to start; say it with --cold-start"
        )
    if not 0 <= start_s < 1e6:
        raise QuestionError(f"--cold-start {start_s:g} must be zero or more seconds")
    arrivals_s, whole = curve.arrivals(sizing, question.rate_rps, sizing.seeds[0])
    lowest = sizing.fewest_after_loss(variant.fleet, question.rate_rps * curve.trough, question.n_plus) or 1
    first_rps = question.rate_rps * curve.factor(np.array(curve.window(question.rate_rps)[:1]))
    found = []
    for scaling, per_replica_rps in _settings(variant.fleet, answer, question, lowest, start_s):
        (initial,) = _needed(first_rps, per_replica_rps, scaling)
        fleet = replace(variant.fleet, outages=(), autoscaling=replace(scaling, initial=int(initial)))
        sizing.tell(f"autoscaling at {scaling.target_ongoing:.3g} requests a replica")
        outcome = simulate.simulate(arrivals_s, fleet, sizing.seeds[0])
        reading = sizing.objective.read(outcome, WARM)
        mean = outcome.replica_s / outcome.span_s
        if not whole:
            mean = replicas_on_time(curve, question.rate_rps, per_replica_rps, scaling)
        missed = float(np.mean(outcome.latency_s > sizing.objective.latency_s))
        found.append(
            Setting(
                scaling.target_ongoing, scaling.min_replicas, scaling.max_replicas, scaling.upscale_delay_s,
                scaling.downscale_delay_s, reading.kept, reading.latency_s * 1e3, missed, mean,
            )
        )  # fmt: skip
    chosen = min(found, key=lambda one: (not one.kept, one.replicas_mean if one.kept else one.missed, one.latency_ms))
    return AutoscalingAdvice(chosen, tuple(found), start_s, answer.replicas, whole, float(arrivals_s[-1]), curve.over)


def _settings(
    fleet: Fleet, answer: SizedFleet, question: Question, lowest: int, cold_start_s: float
) -> Iterator[tuple[Autoscaling, float]]:
    """Each with the rate per replica at which it neither adds nor takes away; the last one is no autoscaler at all."""
    planned = answer.replicas  # those that may be lost are among them at the peak, and in proportion below it
    most = math.ceil(ROOM * planned)
    outside_s = float(np.mean(fleet.service.overhead_s))
    for load in LOADS:
        rate = load * question.peak_rps
        reading = question.sizing.read(replace(fleet, replicas=planned), rate)
        target = max(0.1, rate / planned * (reading.mean_s - outside_s))  # Little's law
        least = sorted({min(lowest, most), min((lowest + planned) // 2, most)})
        for low, up_s, down_s in product(least, UPSCALE_S, DOWNSCALE_S):
            scaling = Autoscaling(
                float(f"{target:.3g}"), low, most, upscale_delay_s=up_s, downscale_delay_s=down_s,
                cold_start_s=cold_start_s,
            )  # fmt: skip
            yield scaling, rate / planned
    stands = Autoscaling(float(f"{target:.3g}"), planned, planned, cold_start_s=cold_start_s)
    yield stands, question.peak_rps / planned


def _needed(rates_rps: Floats, per_replica_rps: float, scaling: Autoscaling) -> Floats:
    return np.clip(np.ceil(rates_rps / per_replica_rps), scaling.min_replicas, scaling.max_replicas)


def replicas_on_time(curve: RateCurve, rate_rps: float, per_replica_rps: float, scaling: Autoscaling) -> float:
    """The mean number of replicas over the curve, if none came late and each stayed for the downscale delay."""
    times = np.linspace(*curve.span_s, POINTS)
    needed = _needed(rate_rps * curve.factor(times), per_replica_rps, scaling)
    delay = min(len(times), math.ceil(scaling.downscale_delay_s / (times[1] - times[0])))
    around = np.concatenate([needed[-delay:] if curve.kind == "sine" else needed[:1].repeat(delay), needed])
    return float(np.mean(np.lib.stride_tricks.sliding_window_view(around, delay + 1).max(axis=1)))
