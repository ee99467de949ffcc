"""Models fitted to runs, or to some of their steps, and what they say of the steps that they were not fitted to."""

from __future__ import annotations

from collections.abc import Sequence

from tailrate.analysis.planning.model.cross_validation import Validation, validated
from tailrate.analysis.planning.model.fit import Calibration, declared, fit, observed
from tailrate.analysis.verdicts.run import Run


def calibrate(runs: Sequence[Run], endpoint: str, steps: Sequence[int] | None = None) -> Calibration:
    """To all steps of the runs, or to those with these numbers."""
    seen = [one for one in observed(runs, endpoint) if steps is None or one.index in steps]
    return fit(endpoint, seen, declared(runs, endpoint))


def validate(runs: Sequence[Run], endpoint: str, fitted: Sequence[int] | None = None) -> Validation:
    """Leaves each rate out in turn; or fits to the steps with these numbers, and predicts all others."""
    objectives = [slo.latency_ms for run in runs for slo in run.manifest.slos if slo.percentile == 99]
    limit_ms = next((limit for limit in objectives if limit), None)
    return validated(endpoint, observed(runs, endpoint), declared(runs, endpoint), fitted, limit_ms)
