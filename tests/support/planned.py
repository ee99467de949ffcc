"""Capacity plans to look at: two variants whose batches cost what those of a small GPU model do, planned by `analysis`.

What is "measured" here is simulated with the true service, and predicted with one that is slightly off, as a fit is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
from plans import draw, sizing

from tailrate.analysis.planning.model.cross_validation import Figures, Predicted, Validation
from tailrate.analysis.planning.model.fit import Calibration
from tailrate.analysis.planning.plan import plan as plans
from tailrate.analysis.planning.plan.candidates import PlannedVariant
from tailrate.analysis.planning.plan.prices import Prices
from tailrate.analysis.planning.plan.question import DemandGrowth, Question
from tailrate.analysis.planning.simulator.simulate import Fleet, Outcome, Routing, Rule, Service, simulate
from tailrate.analysis.run.arrays import Floats

COUNT = 20_000
LOADS = (0.3, 0.5, 0.65, 0.8, 0.92, 1.0)
RUN = "20261120T101500Z-bert"
COMMAND = f"tailrate plan runs/{RUN} --rate 5000 --slo p99<50ms --n-plus 1 --growth 20%/quarter --currency EUR"
PRICES = Prices(gpu_hour=2.5, kwh=0.3, co2_kg_per_kwh=0.38, currency="EUR")


def grid(cv: float, places: int = 256) -> Floats:
    """Quantiles of a lognormal of mean 1."""
    sigma = float(np.sqrt(np.log(1 + cv * cv)))
    normal = NormalDist()
    values = np.exp([sigma * normal.inv_cdf((k + 0.5) / places) for k in range(places)])
    return np.asarray(values / values.mean())


def service(first_ms: float, each_ms: float, most: int = 16) -> Service:
    sizes = np.arange(most + 1)
    mean_s = np.where(sizes > 0, (first_ms + each_ms * (sizes - 1)) / 1e3, 0.0)
    return Service(mean_s, np.array([grid(0.08), grid(0.03)]), (sizes > 4).astype(np.int64), 0.0008 * grid(0.5))


def fleet_of(one: Service, replicas: int = 2, **changes: Any) -> Fleet:
    return replace(Fleet(one, replicas, one.max_batch, 0.002, Rule.COMPANY, Routing.LEAST, 512), **changes)


def calibration(endpoint: str, one: Service, highest_rps: float) -> Calibration:
    return Calibration(
        endpoint=endpoint, service=one, max_batch=one.max_batch, batch_wait_s=0.002, rule=Rule.COMPANY,
        declared_rule=Rule.COMPANY, queue=512, routing=Routing.LEAST, replicas=2, rows=1.0, host_share=0.2,
        lone_ms=float(one.mean_s[1]) * 1e3 + 2.8, highest_rps=highest_rps, warmup_s=31.0, idle_w=60.0, active_w=290.0,
        device="GPU-0", batches=np.arange(one.max_batch + 1) * 100,
        notes=("batches of 13–15 requests were seen in overloaded steps only",),
    )  # fmt: skip


def figures(outcome: Outcome) -> Figures:
    p50, p99 = (outcome.quantile(percent) * 1e3 for percent in (50, 99))
    begin_s, end_s = outcome.arrivals_s[len(outcome.arrivals_s) // 10], outcome.arrivals_s[-1]
    done_s = outcome.arrivals_s + outcome.latency_s
    throughput_rps = np.count_nonzero((done_s > begin_s) & (done_s <= end_s)) / (end_s - begin_s)
    return Figures(p50, p99, float(throughput_rps), outcome.mean_batch, outcome.utilisation)


def validation(endpoint: str, true: Service, fitted: Service, highest_rps: float, error: float | None) -> Validation:
    rows = []
    for n, load in enumerate(LOADS):
        rate = 2 * highest_rps * load
        arrivals_s = draw(COUNT, 11 + n, 1.0) / rate
        measured = figures(simulate(arrivals_s, fleet_of(true), 5))
        said = [figures(simulate(arrivals_s, fleet_of(fitted), seed)) for seed in (1, 2, 3)]
        between = (measured.p99_ms * 0.96, measured.p99_ms * 1.05)
        around = (min(one.p99_ms for one in said), max(one.p99_ms for one in said))
        off = said[0].over(measured)
        rows.append(Predicted(RUN, n, 1, rate, 2, False, measured, said[0], off, between, around, error))
    median = {
        name: float(np.median([abs(getattr(row.error, key)) for row in rows]))
        for name, key in (("p50", "p50_ms"), ("p99", "p99_ms"), ("throughput", "throughput_rps"))
    }
    gate = "good" if error is not None and error <= 0.05 else "refused"
    return Validation(endpoint, tuple(rows), median, error, gate, "at 1,290/s, fitted without that rate")


@cache
def variant(
    endpoint: str, first_ms: float, each_ms: float, highest_rps: float, error: float | None = 0.021
) -> PlannedVariant:
    true, fitted = service(first_ms, each_ms), service(first_ms, each_ms).scaled(1.015)
    model = calibration(endpoint, fitted, highest_rps)
    tried = validation(endpoint, true, fitted, highest_rps, error)
    return PlannedVariant(endpoint, model, tried, model.fleet(), arrivals=90_000)


def eager(endpoint: str = "bert/eager") -> PlannedVariant:
    return variant(endpoint, 9.0, 1.05, 610.0)


def compiled(endpoint: str = "bert/compiled") -> PlannedVariant:
    return variant(endpoint, 4.2, 0.68, 1010.0)


def planned(
    rate_rps: float = 5000.0,
    slo: str = "p99<50ms",
    n_plus: int = 1,
    among: Sequence[PlannedVariant] = (),
    growth: str | None = "20%/quarter",
    burstiness: float = 1.0,
    prices: Prices = PRICES,
) -> dict[str, Any]:
    """What `plan.json` holds."""
    later = DemandGrowth.parse(growth) if growth else None
    question = Question(rate_rps, sizing(slo, burstiness), prices, n_plus, growth=later)
    made = plans.plan([RUN], among or [eager(), compiled()], question)
    return made.as_json() | {"command": COMMAND}
