"""Variants for plans, made by hand, so that what a plan says of them is known without it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from tailrate.analysis.planning.model.cross_validation import Validation
from tailrate.analysis.planning.model.fit import Calibration
from tailrate.analysis.planning.plan.candidates import PlannedVariant
from tailrate.analysis.planning.plan.question import Question
from tailrate.analysis.planning.plan.sizing import Objective, Sizing, Traffic
from tailrate.analysis.planning.simulator.simulate import Fleet, Routing, Rule, Service
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.run.arrays import Floats


def draw(count: int, seed: int, burstiness: float) -> Floats:
    """Arrivals at a rate of one."""
    if math.isinf(burstiness):
        return np.arange(count, dtype=np.float64)
    return np.cumsum(np.random.default_rng(seed).standard_gamma(burstiness, count) / burstiness)


@cache
def traffic(burstiness: float) -> Traffic:
    """One for all tests of a process, so that what one has had simulated is there for the next."""
    return Traffic(draw, burstiness)


@pytest.fixture(scope="module", autouse=True)
def roughly() -> Iterator[None]:
    """For a file that imports it: a tenth of the requests simulated, where their answer is not what is tested."""
    traffic.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailrate.analysis.planning.plan.sizing.LEAST_BEYOND", 100)
        yield
    traffic.cache_clear()


def sizing(slo: str = "p99<50ms", burstiness: float = 1.0, **more: Any) -> Sizing:
    return Sizing(Objective(Slo.parse(slo)), traffic(burstiness), **more)


@cache
def service(fixed_s: float, each_s: float, most: int = 16) -> Service:
    """Always the same time: so much, and so much more for each request."""
    return Service.steady(fixed_s + each_s * np.arange(most + 1))


def fleet(made: Service, **more: Any) -> Fleet:
    how: dict[str, Any] = {"rule": Rule.COMPANY, "routing": Routing.LEAST, "batch_wait_s": 0.0, "queue": 0}
    return Fleet(made, 1, made.max_batch, **how | more)


def variant(
    endpoint: str = "m/compiled", made: Service | None = None, *, error: float | None = 0.01, highest_rps: float = 1e6,
    idle_w: float | None = None, active_w: float | None = None, per_gpu: int = 1, failed: float = 0.0,
    arrivals: int = 1_000_000, warmup_s: float | None = 20.0, device: str | None = "NVIDIA H200", rows: float = 1.0,
    **more: Any,
) -> PlannedVariant:  # fmt: skip
    made = made or service(0.004, 0.0005)
    how = fleet(made, **more)
    seen = np.full(made.max_batch + 1, 1000)
    calibration = Calibration(
        endpoint=endpoint, service=made, max_batch=how.max_batch, batch_wait_s=how.batch_wait_s, rule=how.rule,
        declared_rule=Rule.COMPANY, queue=how.queue, routing=how.routing, replicas=1, rows=rows, host_share=0.1,
        lone_ms=made.mean_s[1] * 1e3, highest_rps=highest_rps, warmup_s=warmup_s, idle_w=idle_w, active_w=active_w,
        device=device, batches=seen, notes=(),
    )  # fmt: skip
    gate = "good" if error is not None and error <= 0.05 else "refused"
    reason = "no other rate was there to predict" if error is None else f"the model is off by {error:.1%}"
    validation = Validation(endpoint, (), {"p50": 0.01, "p99": 0.02, "throughput": 0.0}, error, gate, reason)
    return PlannedVariant(endpoint, calibration, validation, how, per_gpu, 1, failed, arrivals)


def question(rate: float = 5000, slo: str = "p99<50ms", **more: Any) -> Question:
    return Question(rate, more.pop("sizing", None) or sizing(slo), **more)
