"""The model against what a GPU did at a rate that it was not fitted to (see `recorded_gpu`)."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from recorded_gpu import BUCKETS, PROBE_S, PROBE_SETTLE_S, SETTLE_S, STEP_S, answers, probes

from tailrate.analysis.planning.model.cross_validation import Predicted, predict
from tailrate.analysis.planning.model.fit import CalibrationError, fit
from tailrate.analysis.planning.model.observed_batches import Observed, of_rows

SAID = {"max_batch": 32, "max_wait_ms": 0.0, "max_queue": 256, "buckets": BUCKETS}


def seen(rows: dict[float, pd.DataFrame], seconds: float, settle_s: float) -> dict[float, Observed]:
    return {rate: replace(of_rows(mine, 0, seconds, settle_s), rate=rate) for rate, mine in rows.items()}


@pytest.fixture(scope="module")
def steps() -> dict[float, Observed]:
    return seen(answers(), STEP_S, SETTLE_S)


@pytest.fixture(scope="module")
def around_the_knee() -> dict[float, Observed]:
    return seen(probes(), PROBE_S, PROBE_SETTLE_S)


def foretold(steps: dict[float, Observed], rate: float, said: dict[str, object]) -> Predicted:
    others = [step for other, step in steps.items() if other != rate]
    return predict(fit("bert/compiled", others, said), [steps[rate]])


@pytest.mark.parametrize(
    ("rate", "p50_off", "p99_off"), [(250.0, 0.08, 0.11), (500.0, 0.11, 0.09), (840.0, 0.1, 0.06), (1170.0, 0.06, 0.1)]
)
def test_each_rate_is_foretold_from_the_others(steps, rate, p50_off, p99_off):
    """At 840/s most batches have fewer than ten rows and at 1,170/s more than twenty: hardly a size is in both.

    And what a request spends beside its batch is 1.5 ms in small ones and 4.5 ms in large ones.
    """
    found = foretold(steps, rate, SAID)
    assert found.error.p99_ms == pytest.approx(0, abs=p99_off)
    assert found.error.p50_ms == pytest.approx(0, abs=p50_off)


@pytest.mark.parametrize(
    ("rate", "p50_off"), [(840.0, 0.05), (856.0, 0.12), (884.0, 0.05), (946.0, 0.1), (1116.0, 0.06)]
)
def test_around_the_knee_large_batches_keep_themselves_up(around_the_knee, rate, p50_off):
    """A batch begins later the more answers of the one before are handed out: without it 946/s is 17 % too fast."""
    assert foretold(around_the_knee, rate, SAID).error.p50_ms == pytest.approx(0, abs=p50_off)


def test_how_long_an_answer_is_handed_out_is_the_same_at_any_rate(steps, around_the_knee):
    """On two machines; 0.1 ms for each."""
    for machine in (steps, around_the_knee):
        assert fit("bert/compiled", list(machine.values()), SAID).service.telling_s == pytest.approx(1.2e-4, rel=0.3)


def test_without_the_sizes_that_batches_are_padded_to_saturation_is_put_too_low(steps):
    """A straight line from sixteen rows to thirty-two is above the step that they really are."""
    blind = foretold(steps, 1170.0, {**SAID, "buckets": ""})
    assert blind.predicted.throughput_rps < 0.9 * blind.measured.throughput_rps


def test_full_batches_that_are_copied_in_behind_another_are_not_several_replicas(steps):
    """As of images, of which a full batch takes milliseconds to copy: our own engine does that meanwhile."""
    step = steps[1170.0]
    ahead_s = np.where(step.batches.requests == 32, 4e-3, 0.0)
    batches = replace(step.batches, begun_s=step.batches.begun_s - ahead_s, stages_s=step.batches.stages_s + ahead_s)
    busy = replace(step, batches=batches)
    assert fit("bert/compiled", [busy], SAID).replicas == 1
    with pytest.raises(CalibrationError, match="overlap, as of several replicas"):
        fit("bert/compiled", [busy], {"max_batch": 32})
    # what is not full waits for its turn, whoever serves
    ahead_s = np.where(step.batches.requests < 32, 4e-3, 0.0)
    batches = replace(step.batches, begun_s=step.batches.begun_s - ahead_s, stages_s=step.batches.stages_s + ahead_s)
    with pytest.raises(CalibrationError, match="overlap, as of several replicas"):
        fit("bert/compiled", [replace(step, batches=batches)], SAID)
