"""The fleet of one variant that does what a plan is asked for, or the sentence why no number of replicas does.

Says for itself whether it may be trusted: its model must have predicted rates that it had not seen within the gate, and
no replica may be asked for more than was ever measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tailrate.analysis.planning.plan import plan_text
from tailrate.analysis.planning.plan.prices import Bill
from tailrate.analysis.planning.plan.sizing import lonely_from, stable_from
from tailrate.analysis.planning.simulator import queueing_theory

if TYPE_CHECKING:
    from tailrate.analysis.planning.plan.candidates import PlannedVariant
    from tailrate.analysis.planning.plan.question import Question


@dataclass(frozen=True, slots=True)
class SizedFleet:
    """The fleet of one variant that does it."""

    replicas: int
    gpus: int
    """Devices; machines where the CPU serves."""
    rate_rps: float
    p99_ms: float
    """At the objective's percentile, with every replica up; so the next two, between which it lies."""
    p99_low_ms: float | None
    p99_high_ms: float | None
    p99_after_loss_ms: float | None
    replicas_sure: int | None
    """Enough even where the model is off by as much as it was on rates it had not seen, to the wrong side."""
    least_replicas: int
    """By theory: below it queues grow for ever, or no routing and no batching could hold the objective."""
    p99_bound_ms: float
    """By theory: below it nothing could bring the percentile of so many replicas."""
    utilisation: float
    mean_batch: float
    knee_rps: float
    headroom_pct: float
    cost_per_hour: float | None
    cost_per_million: float | None
    energy_cost_per_hour: float | None
    joules_per_request: float | None
    co2_g_per_million: float | None
    trusted: bool
    warnings: tuple[str, ...]


def answered(variant: PlannedVariant, question: Question) -> SizedFleet | str:
    sizing, rate, n_plus = question.sizing, question.peak_rps, question.n_plus
    limit_s, percentile = sizing.objective.latency_s, sizing.objective.percentile
    if why := variant.unfit(question.slo):
        return why
    replicas = sizing.fewest_after_loss(variant.fleet, rate, n_plus)
    if replicas is None:
        return _hopeless(variant, question)
    fleet = replace(variant.fleet, replicas=replicas)
    readings = sizing.readings(fleet, rate)
    middle = readings[len(readings) // 2]
    low_s = high_s = sure = None
    if (error := variant.error) is not None:
        low_s = min(reading.latency_s for reading in sizing.readings(fleet, rate * (1 - error)))
        high_s = max(reading.latency_s for reading in sizing.readings(fleet, rate * (1 + error)))
        sure = sizing.fewest_after_loss(variant.fleet, rate * (1 + error), n_plus, near=replicas)
    knee = sizing.knee_rps(fleet)
    lost = [sizing.after_loss(fleet, rate, n_plus, seed).latency_s for seed in sizing.seeds] if n_plus else []
    gpus = variant.gpus(replicas)
    paid = bill(variant, replicas, question)
    warnings = [*variant.doubts(), *_beyond(variant, rate / (replicas - n_plus), question)]
    return SizedFleet(
        replicas=replicas,
        gpus=gpus,
        rate_rps=rate,
        p99_ms=middle.latency_s * 1e3,
        p99_low_ms=None if low_s is None else min(low_s, middle.latency_s) * 1e3,
        p99_high_ms=None if high_s is None else max(high_s, middle.latency_s) * 1e3,
        p99_after_loss_ms=float(np.median(lost)) * 1e3 if lost else None,
        replicas_sure=sure,
        least_replicas=max(
            stable_from(fleet, rate), math.ceil(queueing_theory.needed(fleet, rate, limit_s, percentile))
        ),
        p99_bound_ms=queueing_theory.quickest_s(fleet, rate, percentile) * 1e3,
        utilisation=middle.utilisation,
        mean_batch=middle.mean_batch,
        knee_rps=knee,
        headroom_pct=100 * (knee / rate - 1),
        trusted=not warnings,
        warnings=(*warnings, *_reservations(variant, replicas, sure, question)),
        **asdict(paid),
    )


def bill(variant: PlannedVariant, replicas: int, question: Question) -> Bill:
    reading = question.sizing.read(replace(variant.fleet, replicas=replicas), question.mean_rps)
    power_w = variant.power_w(replicas, reading.utilisation)
    return question.prices.bill(variant.gpus(replicas), question.mean_rps, power_w)


def _hopeless(variant: PlannedVariant, question: Question) -> str:
    fleet, service = variant.fleet, variant.fleet.service
    lone, slo = question.sizing.alone(fleet), question.slo
    if lone.kept:
        most = lonely_from(fleet, question.peak_rps)
        return f"not even {most:,} replicas, each almost idle, hold {slo}"
    parts = {
        "occupy the replica": float(service.mean_s[1]),
        "are the batch wait": fleet.batch_wait_s,
        "are the way there and back": float(np.median(service.overhead_s)) + service.answer_s,
    }
    known = ", ".join(f"{plan_text.ms(seconds)} {what}" for what, seconds in parts.items() if seconds > 0)
    return (
        f"no number of replicas helps: a request that is alone takes {plan_text.ms(lone.latency_s)} at "
        f"P{slo.percentile:g} (as a rule {known}), and {slo} is asked for"
    )


def certain(variant: PlannedVariant, question: Question) -> bool:
    """Whether a refusal stands: by a model that holds, or because half of the lone requests were measured beyond it."""
    limit_ms = question.sizing.objective.latency_s * 1e3
    return (
        not any(variant.doubts()) or variant.calibration.lone_ms > limit_ms or variant.unfit(question.slo) is not None
    )


def _beyond(variant: PlannedVariant, per_replica_rps: float, question: Question) -> Iterator[str]:
    """Whether a replica is to take more than was ever measured, which it may not where others are lost either."""
    most = variant.calibration.highest_rps
    if not most:
        yield "it was driven in closed loops only, which say nothing of the rate that a replica stands"
    elif per_replica_rps > most * (1 + 1e-9):
        enough = math.ceil(question.peak_rps / most - 1e-9) + question.n_plus
        yield (
            f"a replica is to take up to {per_replica_rps:,.4g}/s, and none was measured above {most:,.4g}/s: measure "
            f"up to there, or take {enough:,} replicas"
        )


def _reservations(variant: PlannedVariant, replicas: int, sure: int | None, question: Question) -> Iterator[str]:
    """What is to be known, although it leaves the plan standing."""
    if sure is not None and sure > replicas:
        yield (f"the model's error alone can miss the objective with {replicas:,} replicas; {sure:,} hold it even then")
    elif sure is None and variant.error is not None:
        yield "the model's error alone can miss the objective, whatever the number of replicas"
    yield from variant.reservations(question.slo)
