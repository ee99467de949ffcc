"""The endpoints that a plan chooses from: each with its model, how well that predicts, and what runs say beyond it.

An endpoint that no model can be fitted to is left out with the reason, as long as there is another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from tailrate.analysis.planning.model.cross_validation import GATE, Validation, validated
from tailrate.analysis.planning.model.fit import Calibration, CalibrationError, declared, fit, observed
from tailrate.analysis.planning.plan.plan_text import share
from tailrate.analysis.planning.plan.sizing import QuestionError
from tailrate.analysis.planning.simulator.simulate import Fleet
from tailrate.analysis.records.folder import RunError
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.stats.trend import early_stop_n
from tailrate.analysis.verdicts.run import Run


@dataclass(frozen=True, eq=False)
class PlannedVariant:
    """An endpoint as it was measured, and the fleet of it that is asked about."""

    endpoint: str
    calibration: Calibration
    validation: Validation
    fleet: Fleet
    per_gpu: int = 1
    """Replicas on one device."""
    measured_per_gpu: int = 1
    failed: float = 0.0
    """Share of the arrivals that failed in steps that were not overloaded."""
    arrivals: int = 0
    """In those steps."""

    @property
    def is_cpu(self) -> bool:
        return (self.calibration.device or "").lower().startswith("cpu")

    @property
    def error(self) -> float | None:
        """By what share the model's rate at the objective was off, on rates that it had not seen."""
        found = self.validation.rate_at_slo_error
        return None if found is None else abs(found)

    def doubts(self) -> Iterator[str]:
        """Why its model cannot be trusted."""
        if self.error is None:
            yield (
                f"what the model is worth on a rate that it has not seen is unknown, as {self.validation.reason}: "
                f"measure more rates, one of them near saturation"
            )
        elif self.error > GATE:
            yield f"{self.validation.reason}, and {share(GATE)} is the most at which a plan can be trusted"

    def gpus(self, replicas: int) -> int:
        return math.ceil(replicas / self.per_gpu)

    def power_w(self, replicas: int, utilisation: float) -> float | None:
        """Of all devices; an idle one draws the same however many replicas share it."""
        idle_w, active_w = self.calibration.idle_w, self.calibration.active_w
        if idle_w is None or active_w is None:
            return None
        return self.gpus(replicas) * self.measured_per_gpu * idle_w + replicas * (active_w - idle_w) * utilisation

    def unfit(self, slo: Slo) -> str | None:
        """Why no number of replicas helps, as far as that is seen without simulating."""
        allowed = min(1 - (slo.percentile or 0) / 100, 1 if slo.max_error_rate is None else slo.max_error_rate)
        if self.failed > allowed:
            return (
                f"no number of replicas helps: {share(self.failed)} of its arrivals failed although it was not "
                f"overloaded, and {slo} allows {share(allowed)}"
            )
        return None

    def reservations(self, slo: Slo) -> Iterator[str]:
        """What limits a plan that may stand otherwise."""
        if self.measured_per_gpu != self.per_gpu:
            yield (
                f"{self.per_gpu} replicas are to share a device, and {self.measured_per_gpu} did when it was measured: "
                f"what they take from each other is not known"
            )
        needed = early_stop_n(slo.percentile or 99.0)
        if self.arrivals < needed:
            yield (
                f"P{slo.percentile:g} takes {needed:,} measured arrivals at least, and there were {self.arrivals:,}: "
                f"its tail is hardly known"
            )
        if self.failed > 0.1 * (1 - (slo.percentile or 0) / 100):
            yield f"{share(self.failed)} of the arrivals failed without overload, which percentiles here leave out"


def variants(
    runs: Sequence[Run],
    slo: Slo,
    *,
    endpoints: Sequence[str] = (),
    max_batch: int | None = None,
    batch_wait_s: float | None = None,
    replicas_per_gpu: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[list[PlannedVariant], list[str]]:
    """Those that can be planned with, and a sentence for each that cannot; raises `RunError` where none can."""
    if replicas_per_gpu is not None and replicas_per_gpu < 1:
        raise QuestionError(f"--replicas-per-gpu {replicas_per_gpu} must be at least 1")
    found: list[PlannedVariant] = []
    left_out: list[str] = []
    for endpoint in _chosen(runs, endpoints):
        tell(f"calibrating {endpoint}")
        if why := _several_devices(runs, endpoint):
            left_out.append(why)
            continue
        try:
            seen, said = observed(runs, endpoint), declared(runs, endpoint)
            calibration = fit(endpoint, seen, said)
        except CalibrationError as problem:
            left_out.append(str(problem))
            continue
        tell(f"validating {endpoint}")
        measured = measured_per_gpu(runs, endpoint, calibration.replicas)
        failed, arrivals = _failures(runs, endpoint)
        found.append(
            PlannedVariant(
                endpoint,
                calibration,
                validated(endpoint, seen, said, limit_ms=slo.latency_ms),
                _fleet(calibration, max_batch, batch_wait_s),
                replicas_per_gpu or measured,
                measured,
                failed,
                arrivals,
            )
        )
    if not found:
        raise RunError("; ".join(left_out))
    return found, left_out


def _several_devices(runs: Sequence[Run], endpoint: str) -> str:
    """No one model holds for what was measured on different devices."""
    found: dict[str, list[str]] = {}
    for run in runs:
        if name := str(declared([run], endpoint).get("device_name") or ""):
            found.setdefault(name, []).append(run.manifest.id)
    if len(found) < 2:
        return ""
    where = " and ".join(f"{name} ({', '.join(ids)})" for name, ids in found.items())
    return f"{endpoint} was measured on {where}: plan with the runs of one of them"


def _chosen(runs: Sequence[Run], asked: Sequence[str]) -> list[str]:
    known = list(dict.fromkeys(step.summary.endpoint for run in runs for step in run.measured if step.summary.n))
    if not known:
        raise RunError(f"{', '.join(run.manifest.id for run in runs)}: no step has arrivals, so there is no endpoint")
    for pattern in asked:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise RunError(
                f"--endpoint {pattern}: the runs have no such endpoint; known are {', '.join(sorted(known))}"
            )
    chosen = [name for name in known if not asked or any(fnmatchcase(name, pattern) for pattern in asked)]
    models = sorted({name.rpartition("/")[0] for name in chosen})
    if len(models) > 1:
        raise RunError(
            f"the runs have endpoints of {len(models)} models ({', '.join(models)}), and a rate is one model's: "
            f"choose with --endpoint '{models[0]}/*'"
        )
    return chosen


def _fleet(calibration: Calibration, max_batch: int | None, batch_wait_s: float | None) -> Fleet:
    fleet = calibration.fleet()
    if max_batch is not None:
        if not 1 <= max_batch <= calibration.max_batch:
            raise QuestionError(
                f"--max-batch {max_batch}: {calibration.endpoint} was measured with batches of 1 to "
                f"{calibration.max_batch} requests"
            )
        fleet = replace(fleet, max_batch=max_batch)
    if batch_wait_s is not None:
        if not 0 <= batch_wait_s < 3600:
            raise QuestionError(f"--max-wait-ms {batch_wait_s * 1e3:g} must be zero or more milliseconds")
        fleet = replace(fleet, batch_wait_s=batch_wait_s)
    return fleet


def measured_per_gpu(runs: Sequence[Run], endpoint: str, replicas: int) -> int:
    steps = [step for run in runs for step in run.measured if step.summary.endpoint == endpoint]
    devices = {name for step in steps for name in step.tally.devices}
    return max(1, round(replicas / max(1, len(devices))))


def _failures(runs: Sequence[Run], endpoint: str) -> tuple[float, int]:
    """Share of failures, and arrivals, of trusted steps that were not overloaded."""
    rows = [
        step.summary
        for run in runs
        for step in run.measured
        if step.summary.endpoint == endpoint and step.summary.trusted and not step.overloaded
    ]
    arrivals = sum(row.n for row in rows)
    return (sum(row.errors for row in rows) / arrivals if arrivals else 0.0), arrivals
