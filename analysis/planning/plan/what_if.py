"""What a planned fleet would do, and what it would take, were circumstances or the model's assumptions other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from tailrate.analysis.planning.plan import plan_text
from tailrate.analysis.planning.plan.sized_fleet import SizedFleet, bill
from tailrate.analysis.planning.plan.sizing import Traffic
from tailrate.analysis.planning.simulator.fleet import ROUTERS
from tailrate.analysis.planning.simulator.simulate import Fleet, Rule, Service

if TYPE_CHECKING:
    from tailrate.analysis.planning.plan.candidates import PlannedVariant
    from tailrate.analysis.planning.plan.question import Question

QUARTERS = 8
MOST_RPS = 1e7
OFF = 0.05
"""By how much a service time is taken to be off."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    change: str
    replicas: int | None
    """None: no number of replicas holds it."""
    cost_per_hour: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Sensitivity:
    assumption: str
    change: str
    replicas: int | None
    p99_ms: float
    """Of the planned fleet, if that were so."""
    share: float
    """By what share that is more than planned."""


@dataclass(frozen=True, slots=True)
class Later:
    when: str
    rate_rps: float
    replicas: int | None
    gpus: int | None
    cost_per_hour: float | None


def _asked(
    change: str, variant: PlannedVariant, question: Question, near: int, fleet: Fleet | None = None, rate: float = 1.0
) -> WhatIf:
    """The fleet that it takes then."""
    other = variant if fleet is None else replace(variant, fleet=fleet)
    asked = replace(question, rate_rps=question.rate_rps * rate)
    sizing = asked.sizing
    replicas = sizing.fewest_after_loss(other.fleet, asked.peak_rps, asked.n_plus, near=near)
    return _seen(change, other, asked, replicas)


def _seen(change: str, variant: PlannedVariant, question: Question, replicas: int | None) -> WhatIf:
    if not replicas:
        return WhatIf(change, None, None, None)
    readings = question.sizing.readings(replace(variant.fleet, replicas=replicas), question.peak_rps)
    p99_ms = readings[len(readings) // 2].latency_s * 1e3
    return WhatIf(change, replicas, bill(variant, replicas, question).cost_per_hour, p99_ms)


def what_if(variant: PlannedVariant, answer: SizedFleet, question: Question) -> Iterator[WhatIf]:
    """Other rates, objectives and settings, each with the fleet that it takes; a fleet of another size as it is."""
    fleet, near, sizing = variant.fleet, answer.replicas, question.sizing
    for change, rate in (("20 % less traffic", 0.8), ("20 % more traffic", 1.2), ("twice the traffic", 2.0)):
        yield _asked(change, variant, question, math.ceil(near * rate), rate=rate)
    for factor in (0.8, 1.5):
        looser = replace(question, sizing=replace(sizing, objective=sizing.objective.times(factor)))
        yield _asked(plan_text.objective(looser.slo), variant, looser, near)
    bursts = replace(question, sizing=replace(sizing, traffic=sizing.traffic.burstier(2)))
    if math.isfinite(sizing.traffic.burstiness):
        yield _asked("twice the burstiness", variant, bursts, near)
    waits = (0.0, 2 * fleet.batch_wait_s) if fleet.batch_wait_s else (sizing.objective.latency_s / 10,)
    for wait_s in waits:
        change = f"a batch wait of {plan_text.ms(wait_s)}" if wait_s else "no batch wait"
        yield _asked(change, variant, question, near, replace(fleet, batch_wait_s=wait_s))
    if fleet.max_batch > 1:
        half = fleet.max_batch // 2
        yield _asked(f"batches of at most {half}", variant, question, near, replace(fleet, max_batch=half))
    spare = replace(question, n_plus=question.n_plus + 1)
    yield _asked(f"{spare.n_plus} {'replica' if spare.n_plus == 1 else 'replicas'} lost", variant, spare, near + 1)
    if near > 1:
        yield _seen("one replica less", variant, question, near - 1)
    yield _seen("one replica more", variant, question, near + 1)


def sensitivity(variant: PlannedVariant, answer: SizedFleet, question: Question) -> Iterator[Sensitivity]:
    """What the planned fleet would do, and what it would take, if an assumption of the model were wrong."""
    planned = question.sizing.read(replace(variant.fleet, replicas=answer.replicas), question.peak_rps).latency_s
    for assumption, change, fleet, traffic in _assumptions(variant.fleet, question.sizing.traffic):
        sizing = replace(question.sizing, traffic=traffic)
        rate = question.peak_rps
        reading = sizing.read(replace(fleet, replicas=answer.replicas), rate)
        replicas = sizing.fewest_after_loss(fleet, rate, question.n_plus, near=answer.replicas)
        share = reading.latency_s / planned - 1
        yield Sensitivity(assumption, change, replicas, reading.latency_s * 1e3, share)


def _assumptions(fleet: Fleet, traffic: Traffic) -> Iterator[tuple[str, str, Fleet, Traffic]]:
    service = fleet.service

    def other(changed: Service) -> Fleet:
        return replace(fleet, service=changed)

    for factor in (1 + OFF, 1 - OFF):
        yield (
            "service time",
            f"{factor - 1:+.0%}".replace("%", " %").replace("-", "−"),
            other(service.scaled(factor)),
            traffic,
        )
    for change, factor in (("half", 0.5), ("twice", 2.0)):
        yield "overhead", change, other(service.farther(factor)), traffic
    for change, factor in (("none", 0.0), ("twice as wide", 2.0)):
        spread = np.maximum(0.0, 1 + (service.spread - 1) * factor)
        yield "spread of service times", change, other(replace(service, spread=spread)), traffic
    kinds = {"evenly spaced": math.inf, "at random": 1.0, "twice as bursty": traffic.burstiness / 2}
    for change, burstiness in kinds.items():
        if burstiness != traffic.burstiness:
            yield "arrivals", change, fleet, Traffic(traffic.draw, burstiness)
    for routing in ROUTERS:
        if routing != fleet.routing:
            yield "routing", routing.replace("_", " "), replace(fleet, routing=routing), traffic
    for rule in Rule:
        if rule != fleet.rule:
            yield "batching", rule, replace(fleet, rule=rule), traffic


def later(variant: PlannedVariant, answer: SizedFleet, question: Question, made: datetime) -> Iterator[Later]:
    if question.growth is None:
        return
    near: int | None = answer.replicas
    for quarter in range(QUARTERS + 1):
        factor = question.growth.per_quarter**quarter
        if question.peak_rps * factor > MOST_RPS:
            return
        if quarter:
            found = _asked("", variant, question, near or answer.replicas, rate=factor)
        else:
            found = WhatIf("", answer.replicas, answer.cost_per_hour, answer.p99_ms)
        near = found.replicas
        year, number = divmod(made.year * 4 + (made.month - 1) // 3 + quarter, 4)
        yield Later(
            when=f"{year} Q{number + 1}",
            rate_rps=question.rate_rps * factor,
            replicas=near,
            gpus=near and variant.gpus(near),
            cost_per_hour=found.cost_per_hour,
        )
