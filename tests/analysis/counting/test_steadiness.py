from pathlib import Path

import numpy as np
import pytest
from folders import Floats, Latency, Load, Waveform, lognormal, make_run, queue
from often import counts

from tailrate import analysis
from tailrate.analysis.counting.steadiness import _apart
from tailrate.analysis.stats.trend import segments, settled_after, slope, three_windows
from tailrate.analysis.steps.measure import MeasuredStep
from tailrate.analysis.verdicts.verdict import judge


def _settling(after_s: float, factor: float = 2.0, noise: float = 0.2) -> Latency:
    """Slower at first, as long as something warms up."""

    def latency(rng: np.random.Generator, at_s: Floats) -> Floats:
        took: Floats = 10 * np.exp(noise * rng.normal(size=len(at_s)))
        return np.where(at_s < after_s, factor * took, took)

    return latency


def _drifting(share: float) -> Latency:
    def latency(rng: np.random.Generator, at_s: Floats) -> Floats:
        took: Floats = 10 * np.exp(0.3 * rng.normal(size=len(at_s)))
        return took * (1 + share * at_s / at_s[-1])

    return latency


def _step(folder: Path, latency: Latency, settle_s: float = 0.0, seed: int = 1, **more: float) -> MeasuredStep:
    load = Load("m/a", 100, latency, seconds=40, settle_s=settle_s, **more)  # type: ignore[arg-type]
    (step,) = analysis.load(make_run(folder, [load], seed=seed, poisson=True).folder).measured
    return step


@pytest.mark.parametrize("after_s", [3, 8, 15])
def test_the_settle_time_is_found(tmp_path: Path, after_s: float) -> None:
    row = _step(tmp_path / "run", _settling(after_s)).summary
    assert row.settled_s == pytest.approx(after_s, abs=0.5)
    assert row.steady is False
    assert any("not steady: latency settled" in reason and "0 s were left out" in reason for reason in row.reasons)


def test_enough_settle_time_makes_it_steady(tmp_path: Path) -> None:
    row = _step(tmp_path / "run", _settling(3), settle_s=5).summary
    assert row.settled_s == pytest.approx(3, abs=0.5)
    assert row.steady is True
    assert not any("steady" in reason for reason in row.reasons)


@counts(15, 60)
def test_a_steady_step_is_seldom_called_unsteady(tmp_path: Path, seeds: int) -> None:
    systems = [lognormal(10, 0.5), queue(5.0)]
    found = [
        _step(tmp_path / f"{number}-{seed}", latency, seed=seed).summary.steady
        for number, latency in enumerate(systems)
        for seed in range(seeds)
    ]
    assert all(answer is not None for answer in found)
    assert found.count(False) <= 0.04 * len(found)


def test_a_drift_is_found_and_measured(tmp_path: Path) -> None:
    found = [_step(tmp_path / str(seed), _drifting(0.3), seed=seed).summary for seed in range(10)]
    assert all(row.steady is False for row in found)
    assert np.median([row.drift_pct or 0 for row in found]) == pytest.approx(26, abs=5)  # 30 % of the lower end
    assert any("latency rose by" in reason for reason in found[0].reasons)
    # the rule that looks at three windows does not see it
    assert found[0].three_windows is not False


def test_an_overloaded_step_is_not_steady_and_says_only_that(tmp_path: Path) -> None:
    step = _step(tmp_path / "run", queue(11.5))
    assert step.overloaded
    assert step.summary.steady is False
    assert not any(reason.startswith("not steady") for reason in step.summary.reasons)


def test_too_few_arrivals_say_nothing(tmp_path: Path) -> None:
    load = Load("m/a", 2, lognormal(10), seconds=20)
    (step,) = analysis.load(make_run(tmp_path / "run", [load]).folder).measured
    assert (step.summary.steady, step.summary.settled_s) == (None, None)


def test_causes_are_told_apart(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 100, _settling(8), seconds=40)], devices=[Waveform()])
    reasons = analysis.load(written.folder).measured[0].summary.reasons
    assert any(reason.endswith("(the device's clocks were held down)") for reason in reasons)
    other = make_run(tmp_path / "other", [Load("m/a", 100, _settling(8), seconds=40)])
    reasons = analysis.load(other.folder).measured[0].summary.reasons
    assert any(reason.endswith("(no cause was recorded)") for reason in reasons)
    other.manifest.endpoints[0]["events"] = {"recompiles": 2, "first_hits": 1}
    other.manifest.write(other.folder)
    said = " ".join(analysis.load(other.folder).measured[0].summary.reasons)
    assert "(torch.compile was at work during the run, shapes were met for the first time during the run)" in said


def test_settled_after_is_mser() -> None:
    rng = np.random.default_rng(1)
    means = np.concatenate([np.full(30, 5.0), np.ones(170)]) + 0.1 * rng.normal(size=200)
    counts = np.full(200, 8.0)
    # the definition, cut by cut
    worth = [np.var(means[cut:]) / (200 - cut) for cut in range(101)]
    cut = settled_after(means, counts)
    assert cut == int(np.argmin(worth))
    assert 30 <= cut <= 35
    # a slice without arrivals counts for nothing
    assert settled_after(np.append(means, np.nan), np.append(counts, 0.0)) == cut


def test_three_windows_is_perf_analyzers_rule() -> None:
    assert three_windows([100, 300, 100, 105, 109], [10, 40, 10, 10.5, 10.9]) is True
    assert three_windows([100, 105, 111], [10, 10, 10]) is False
    assert three_windows([100, 100, 100], [10, 11.1, 10]) is False
    assert three_windows([100, 100], [10, 10]) is None


def test_segments_and_slope() -> None:
    values = np.arange(20.0)
    assert segments(values, 10).tolist() == [0.5 + 2 * k for k in range(10)]
    weights = np.where(values % 2 == 0, 1.0, 3.0)
    assert segments(values, 10, weights).tolist() == [0.75 + 2 * k for k in range(10)]
    assert slope(np.array([1.0, 3.0, 5.0, 7.0, 100.0]), 0.5) == 4


@pytest.mark.parametrize(
    ("latency", "slo", "answer"),
    [
        (_settling(8), "p90<30ms", True),  # met in spite of the slow start
        (_settling(8), "p90<18ms", None),  # missed, perhaps for the start alone
        (_drifting(0.5), "p90<30ms", None),  # met, but who knows for how long
        (_drifting(0.5), "p90<12ms", False),  # missed although it was faster at first
    ],
)
def test_an_unsteady_step_has_no_answer_that_unsteadiness_may_have_made(
    tmp_path: Path, latency: Latency, slo: str, answer: bool | None
) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 100, latency, seconds=40)], slo=[slo], mode="hold", poisson=True)
    run = analysis.load(written.folder)
    assert run.measured[0].summary.slo is answer
    found = judge(run)
    assert found.verdict == {True: "pass", False: "fail", None: "inconclusive"}[answer]
    if answer is None:
        assert "not steady" in found.reasons[0]


def test_a_rest_with_hardly_an_answer_is_no_other_level() -> None:
    means = np.array([10.0, 10.0, 11.0, 9.0, *[np.nan] * 30, 50.0])
    assert not _apart(means, np.isfinite(means).astype(float), 0, 4, 10.0, 50.0)
