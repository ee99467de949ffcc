"""How wrong the model is on rates that it has not seen: it is fitted without a rate, and then asked for it.

Each step is predicted by replaying its own arrivals, so that chance in the arrivals is in both figures alike; steps of
one rate are one row, over all their requests. The error that counts is that of the rate: near the knee P99 moves by ten
times what the service time does, so beside the error in P99 stands by how much faster or slower the arrivals would have
to come for the model to give the P99 that was measured.
A rate above all those that were fitted is predicted, too, and said to be beyond: it counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tailrate.analysis.planning.model.fit import Calibration, CalibrationError, fit, utilisation
from tailrate.analysis.planning.model.observed_batches import Observed
from tailrate.analysis.planning.simulator.simulate import Fleet, simulate
from tailrate.analysis.stats.array_types import Floats, Ints
from tailrate.analysis.stats.interval import interval
from tailrate.analysis.stats.sketch import SLICES, Sketch
from tailrate.analysis.stats.trend import percentile

GOOD, GATE = 0.03, 0.05
"""Of the error in the rate: up to here it is good, up to there a plan may be made with it."""
SAME_RATE = 1.05
"""Steps within this factor are one rate."""
SEEDS = 8
FURTHEST = 1.6
"""By how much arrivals are sped up or slowed down, at most, to find the rate with the measured P99."""
ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one step; latencies count failures as infinite."""

    p50_ms: float
    p99_ms: float
    throughput_rps: float
    batch: float
    """Requests, in the mean over the batches."""
    utilisation: float
    """Share of the time for which replicas were occupied."""

    def over(self, other: Figures) -> Figures:
        """Relative to the other; NaN where that cannot be said."""
        pairs = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return Figures(*(a / b - 1 if math.isfinite(a) and math.isfinite(b) and b else math.nan for a, b in pairs))


@dataclass(frozen=True, slots=True)
class Predicted:
    """One rate that the model had not seen."""

    run: str
    step: int
    """The first at this rate."""
    steps: int
    rate: float
    replicas: int
    beyond: bool
    """It lies above every rate per replica that was fitted."""
    measured: Figures
    predicted: Figures
    error: Figures
    p99_measured_ms: tuple[float, float] | None
    """Between what the measured P99 lies; None of too few requests."""
    p99_predicted_ms: tuple[float, float]
    """Between what the model's P99 lies, by chance and by its error in the rate."""
    rate_error: float | None
    """Of the rate at which the model has the measured P99, against the rate driven; None: no rate near has it."""


@dataclass(frozen=True, slots=True)
class Validation:
    """What a plan may rest on."""

    endpoint: str
    rows: tuple[Predicted, ...]
    median: Mapping[str, float]
    """Median absolute errors of p50, p99 and throughput, over the rows that are not beyond."""
    rate_at_slo_error: float | None
    """Of the rate, at the step whose P99 is nearest to the objective; None where no step could say."""
    gate: str
    """good, fair or refused"""
    reason: str

    def as_json(self) -> dict[str, Any]:
        """What is unknown or infinite as null."""
        found: dict[str, Any] = _finite(asdict(self))
        return found


def _finite(found: Any) -> Any:
    if isinstance(found, Mapping):
        return {key: _finite(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_finite(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def validated(
    endpoint: str,
    seen: Sequence[Observed],
    said: Mapping[str, Any],
    fitted: Sequence[int] | None = None,
    limit_ms: float | None = None,
) -> Validation:
    usable = [one for one in seen if one.doubt is None and not one.overloaded and len(one.batches)]
    driven = [one for one in usable if not one.closed and (fitted is None or one.index not in fitted)]
    pairs: list[tuple[Calibration, list[Observed]]] = []
    for steps in by_rate(driven):
        if fitted is None:
            low, high = _load(steps[0]) / SAME_RATE, _load(steps[-1]) * SAME_RATE
            others = [one for one in seen if not low <= _load(one) <= high]
        else:
            others = [one for one in seen if one.index in fitted]
        try:
            pairs.append((fit(endpoint, others, said), steps))
        except CalibrationError:
            continue
    rows = [predict(model, steps) for model, steps in pairs]
    inside = [row for row in rows if not row.beyond]
    at_slo, gate, reason = _judged(inside, bool(rows), limit_ms)
    rows = [_with_interval(row, *pair, abs(at_slo or 0.0)) for row, pair in zip(rows, pairs, strict=True)]
    median = {
        name: _median_abs([getattr(row.error, field) for row in inside])
        for name, field in (("p50", "p50_ms"), ("p99", "p99_ms"), ("throughput", "throughput_rps"))
    }
    return Validation(endpoint, tuple(rows), median, at_slo, gate, reason)


def _load(step: Observed) -> float:
    return step.rate / max(1, step.replicas)


def by_rate(steps: Iterable[Observed]) -> list[list[Observed]]:
    """Those of one rate and as many replicas together, rising."""
    groups: list[list[Observed]] = []
    for step in sorted(steps, key=lambda one: (one.replicas, _load(one))):
        first = groups[-1][0] if groups else None
        if first and first.replicas == step.replicas and _load(step) <= _load(first) * SAME_RATE:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def replay(steps: Sequence[Observed], fleet: Fleet, seed: int = 1, faster: float = 1.0) -> Figures:
    """The steps' own arrivals through the model, so many times as fast."""
    outcomes = [simulate(step.arrivals_s / faster, fleet, seed + SEEDS * k) for k, step in enumerate(steps)]
    return _figures(
        steps,
        [np.asarray(one.latency_s, dtype=np.float64) for one in outcomes],
        [one.batches for one in outcomes],
        [one.utilisation for one in outcomes],
        faster,
    )


def measured(steps: Sequence[Observed], model: Calibration) -> Figures:
    return _figures(
        steps,
        [step.latency_s for step in steps],
        [np.bincount(step.batches.requests) for step in steps],
        [utilisation(step, model.service) for step in steps],
    )


def _figures(
    steps: Sequence[Observed],
    latency_s: Sequence[Floats],
    batches: Sequence[Ints],
    use: Sequence[float],
    faster: float = 1.0,
) -> Figures:
    """Over all the steps; `batches` counts them by their requests."""
    latency_ms = 1e3 * np.concatenate([one[step.window] for one, step in zip(latency_s, steps, strict=True)])
    seconds = [step.seconds - step.settle_s for step in steps]
    return Figures(
        percentile(latency_ms, 50),
        percentile(latency_ms, 99),
        float(np.isfinite(latency_ms).sum()) / sum(seconds) * faster,
        float(sum(one @ np.arange(len(one)) for one in batches) / sum(one.sum() for one in batches)),
        float(np.average(use, weights=seconds)),
    )


def predict(model: Calibration, steps: Sequence[Observed]) -> Predicted:
    """Steps of one rate."""
    first = steps[0]
    fleet = model.fleet(first.replicas)
    several = [asdict(replay(steps, fleet, seed)) for seed in range(1, SEEDS + 1)]
    predicted = Figures(**{name: float(np.median([one[name] for one in several])) for name in several[0]})
    found = measured(steps, model)
    p99s = [one["p99_ms"] for one in several]
    return Predicted(
        run=first.run,
        step=first.index,
        steps=len(steps),
        rate=first.rate,
        replicas=first.replicas,
        beyond=float(np.mean([step.offered_rps for step in steps])) > first.replicas * model.highest_rps * SAME_RATE,
        measured=found,
        predicted=predicted,
        error=predicted.over(found),
        p99_measured_ms=_measured_p99_ms(steps),
        p99_predicted_ms=(min(p99s), max(p99s)),
        rate_error=rate_error(steps, fleet, found.p99_ms),
    )


def _measured_p99_ms(steps: Sequence[Observed]) -> tuple[float, float] | None:
    """The 95 % interval of the measured P99 at this rate, the windows of its steps pooled one after the other."""
    ends_s = np.cumsum([step.seconds - step.settle_s for step in steps])
    at_s = [step.arrivals_s[step.window] - step.seconds + end_s for step, end_s in zip(steps, ends_s, strict=True)]
    slices = (np.concatenate(at_s) * (SLICES / ends_s[-1])).astype(np.int64).clip(0, SLICES - 1)
    return interval(Sketch.of(slices, 1e3 * np.concatenate([step.latency_s[step.window] for step in steps])), 99)


def rate_error(steps: Sequence[Observed], fleet: Fleet, p99_ms: float) -> float | None:
    """How much faster the steps' arrivals would have to come for the model to give this P99, less one."""

    def p99_at(faster: float) -> float:
        return float(np.median([replay(steps, fleet, seed, faster).p99_ms for seed in range(1, SEEDS + 1)]))

    return _crossing(p99_at, p99_ms)


def _crossing(value_at: Callable[[float], float], wanted: float) -> float | None:
    """Where a rising function of the speed reaches what is wanted, less one; None where that is far away."""
    if not math.isfinite(wanted):
        return None
    slow, fast = 1 / FURTHEST, FURTHEST
    if not value_at(slow) <= wanted <= value_at(fast):
        return None
    for _ in range(ROUNDS):
        middle = math.sqrt(slow * fast)
        slow, fast = (middle, fast) if value_at(middle) <= wanted else (slow, middle)
    return math.sqrt(slow * fast) - 1


def _with_interval(row: Predicted, model: Calibration, steps: Sequence[Observed], off: float) -> Predicted:
    """With the P99 that the model would give if it were as wrong of the rate as it is near the objective."""
    fleet = model.fleet(row.replicas)
    around = [replay(steps, fleet, seed, faster).p99_ms for faster in (1 / (1 + off), 1 + off) for seed in (1, 2)]
    low, high = row.p99_predicted_ms
    return replace(row, p99_predicted_ms=(min(low, *around), max(high, *around)))


def _median_abs(errors: Sequence[float]) -> float:
    known = [abs(error) for error in errors if math.isfinite(error)]
    return float(np.median(known)) if known else math.nan


def _judged(inside: Sequence[Predicted], tried: bool, limit_ms: float | None) -> tuple[float | None, str, str]:
    known = [(row, row.rate_error) for row in inside if row.rate_error is not None]
    if not known:
        why = (
            "every rate that could be predicted lies above those that were fitted"
            if tried and not inside
            else (
                "no other rate was there to predict"
                if not tried
                else "no rate near a step's own has the P99 that it had"
            )
        )
        return None, "refused", why
    if limit_ms is None:
        row, error = max(known, key=lambda pair: pair[0].rate / pair[0].replicas)
    else:
        row = min(inside, key=lambda row: abs(math.log(row.measured.p99_ms / limit_ms)))
        if row.rate_error is None:
            return None, "refused", f"at {row.rate:.4g}/s, nearest to the objective, the model has no P99 like that"
        error = row.rate_error
    size = abs(error)
    gate = "good" if size <= GOOD else "fair" if size <= GATE else "refused"
    said = f"at {row.rate:.4g}/s, fitted without that rate, the model is off by {size:.1%} of the rate".replace(
        "%", " %"
    )
    return error, gate, said
