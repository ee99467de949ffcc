"""Where the knee is, as the model says in the middle of a search for it; asked by the load side, which knows no models.

    python -m tailrate.analysis.planning.knee_guess runs/20261120T101500Z-bert --endpoint bert/eager --slo "p99<50ms"

prints a `KneeGuess` as one line of JSON. The run may still be going.

The model is fitted to all steps so far. Near the knee it is corrected: each step's own arrivals are replayed through
it, and all its times are stretched until it misses the objective as often as was measured. What was chance in the
arrivals is in both counts, so what remains is the error of the model, and the chance in the batches' times, which the
model's own seeds show: where that is large, the correction counts for less.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tailrate.analysis.judging.knee_guess import KneeGuess
from tailrate.analysis.planning.model.fit import Calibration, CalibrationError, declared, fit, observed
from tailrate.analysis.planning.model.observed_batches import Observed
from tailrate.analysis.planning.simulator.simulate import Fleet, knee, simulate
from tailrate.analysis.records.folder import RunError
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.stats.array_types import Floats

NICENESS = 10
NEAR = 1.15
"""Steps within this factor of the model's knee correct it."""
STRETCH = np.linspace(0.85, 1.15, 31)
SEEDS = 12
ARRIVALS, ROUGH = 2_000_000, 200_000
"""For the knee itself: P99's own chance is a fifth of a percent of the rate; and for a first idea of it."""
BESIDE = 1.02
CHANCE = 2.0
"""Standard errors up to which a correction is none."""
SURE = 2.6
"""Standard errors on each side: 99 %."""
LEAST_ERROR = 0.004
"""Of the stretch, whatever the steps say."""
MODEL_ERROR = 0.01
"""How far from 1 the stretch lies by itself, one time in three: the batches' own records are no guess."""


def guess(
    endpoint: str, seen: Sequence[Observed], said: Mapping[str, Any], limit_s: float, percent: float, unit: Floats
) -> KneeGuess:
    """`unit` are arrivals at a rate of one."""
    try:
        model = fit(endpoint, seen, said)
    except CalibrationError as problem:
        return KneeGuess(reason=str(problem))
    fleet = model.fleet()
    rough = knee(fleet, limit_s, percent, lambda rate: unit[:ROUGH] / rate)
    if not rough:
        return KneeGuess(reason="no rate keeps the objective, says the model")
    near = [step for step in seen if step.doubt is None and not step.closed and rough / NEAR < step.rate < rough * NEAR]
    stretch = _stretch(model, near, limit_s)
    if stretch is None:
        return KneeGuess(rough)
    seen_at, seen_error = stretch
    # as far as it is more than chance; the batches' own records speak for the model as it is
    weight = max(0.0, 1 - (CHANCE * seen_error / (seen_at - 1)) ** 2) if seen_at != 1 else 0.0
    middle = 1 + weight * (seen_at - 1)
    error = max(LEAST_ERROR, seen_error * MODEL_ERROR / math.hypot(MODEL_ERROR, seen_error))

    def knee_at(factor: float) -> float:
        low, high = rough / factor / NEAR, rough / factor * NEAR
        found = _stretched(fleet, factor)
        return knee(found, limit_s, percent, lambda rate: unit / rate, tolerance=0.001, from_rps=low, to_rps=high)

    at = knee_at(middle)
    # how much the rate moves with the times
    moves = math.log(at / knee_at(middle * BESIDE)) / math.log(BESIDE) if at else 0.0
    if moves <= 0:
        return KneeGuess(rough, reason="its knee does not move with the times of the batches")
    off = (1 + SURE * error) ** moves
    return KneeGuess(at, at / off, at * off, len(near), middle**-moves - 1)


def _stretched(fleet: Fleet, factor: float) -> Fleet:
    return replace(fleet, service=fleet.service.scaled(factor))


def _stretch(model: Calibration, near: Sequence[Observed], limit_s: float) -> tuple[float, float] | None:
    """The factor of all times with which the model misses the objective as often as was measured, and its error."""
    if not near:
        return None
    counted = np.array([int((step.latency_s[step.window] > limit_s).sum()) for step in near])
    # (steps, factors, seeds): how often the model does
    missed = np.array([[_missed(model, step, factor, limit_s) for factor in STRETCH] for step in near])
    usual = missed.mean(axis=2)
    total = np.maximum.accumulate(usual.sum(axis=0))
    if not total[0] < counted.sum() < total[-1]:
        return None
    middle = float(np.interp(counted.sum(), total, STRETCH))
    # the same with what each seed says in the place of what was measured
    at = int(np.argmin(np.abs(STRETCH - middle)))
    by_chance = np.interp(missed[:, at].sum(axis=0), total, STRETCH)
    alone = [
        float(np.interp(count, np.maximum.accumulate(own), STRETCH)) for count, own in zip(counted, usual, strict=True)
    ]
    between = float(np.std(alone, ddof=1)) / math.sqrt(len(near)) if len(near) > 2 else 0.0
    return middle, max(float(np.std(by_chance, ddof=1)), between)


def _missed(model: Calibration, step: Observed, factor: float, limit_s: float) -> Floats:
    fleet = _stretched(model.fleet(step.replicas), factor)
    outcomes = [simulate(step.arrivals_s, fleet, seed).latency_s[step.window] for seed in range(1, SEEDS + 1)]
    return np.array([float((latency_s > limit_s).sum()) for latency_s in outcomes])


def unit_arrivals(scenario: Mapping[str, Any]) -> Floats | None:
    """At a rate of one, spaced as those of the run; None where its rate changes within a step."""
    if scenario.get("shape") not in (None, "", "flat") or scenario.get("trace"):
        return None
    rng = np.random.default_rng(1)
    spacing = scenario.get("arrivals")
    if spacing == "constant":
        return np.arange(ARRIVALS, dtype=np.float64)
    if spacing == "gamma":
        shape = float(scenario.get("burstiness") or 1.0)
        return np.cumsum(rng.gamma(shape, 1 / shape, ARRIVALS))
    return np.cumsum(rng.standard_exponential(ARRIVALS))


def ask(folder: Path, endpoint: str, slo: Slo) -> KneeGuess:
    from tailrate.analysis import load

    try:
        run = load(folder)
        unit = unit_arrivals(run.manifest.scenario)
        if unit is None:
            return KneeGuess(reason="the rate changes within a step")
        assert slo.latency_ms is not None
        assert slo.percentile is not None
        limit_s = slo.latency_ms / 1e3
        return guess(endpoint, observed([run], endpoint), declared([run], endpoint), limit_s, slo.percentile, unit)
    except RunError as problem:
        return KneeGuess(reason=str(problem))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--slo", type=Slo.parse, required=True)
    options = parser.parse_args()
    os.nice(NICENESS)
    print(ask(options.folder, options.endpoint, options.slo).as_line())


if __name__ == "__main__":
    main()
