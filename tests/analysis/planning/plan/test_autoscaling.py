"""Autoscaling advice: replicas over a curve, what is chosen, and files that Ray Serve and Kubernetes can read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plans import question, service, sizing, variant

from tailrate.analysis.planning.plan import manifests, plan_text
from tailrate.analysis.planning.plan.autoscaling import AutoscalingAdvice, RateCurve, Setting, advise, replicas_on_time
from tailrate.analysis.planning.plan.sized_fleet import SizedFleet, answered
from tailrate.analysis.planning.plan.sizing import QuestionError
from tailrate.analysis.planning.simulator.simulate import Autoscaling, simulate

SLOW = variant("m/compiled", service(0.02, 0.005, most=8), warmup_s=20.0)
"""133/s a replica at most, so that a day has few requests."""
CHOSEN = Setting(12.5, 2, 7, 5.0, 120.0, True, 40.0, 0.001, 3.5)


def advice(*, asked=None, one=SLOW, **more) -> AutoscalingAdvice:
    asked = asked or question(200, "p99<200ms", shape="sine:0.5:1200", peak=1.5)
    planned = answered(one, asked)
    assert isinstance(planned, SizedFleet), planned
    return advise(one, planned, asked, **more)


@pytest.fixture(scope="module")
def day() -> AutoscalingAdvice:
    return advice()


# ---- curves


def test_a_sine_and_a_spike() -> None:
    sine, spike = RateCurve.parse("sine:0.5:1200"), RateCurve.parse("spike:3:60:600")
    assert sine.factor(np.array([-300.0, 0.0, 300.0])).tolist() == pytest.approx([0.5, 1.0, 1.5])
    assert spike.factor(np.array([-1.0, 0.0, 599.0, 600.0])).tolist() == [1, 3, 3, 1]
    assert (sine.trough, spike.trough) == (0.5, 1.0)


def test_arrivals_follow_the_curve() -> None:
    curve = RateCurve.parse("sine:0.5:1200")
    arrivals, whole = curve.arrivals(sizing(), 100, 1)
    assert whole
    assert len(arrivals) == pytest.approx(120_000, rel=0.02)
    half = len(arrivals[(arrivals >= 600)]) / len(arrivals)  # the upper half of a sine of depth d: 1/2 + d/π
    assert half == pytest.approx(0.5 + 0.5 / np.pi, abs=0.01)


def test_what_is_too_long_is_cut_around_its_steepest_rise() -> None:
    curve = RateCurve.parse("sine:0.5:86400")
    first, last = curve.window(5000)
    assert first == -last == pytest.approx(-300)
    arrivals, whole = curve.arrivals(sizing(), 5000, 1)
    assert not whole
    assert len(arrivals) == pytest.approx(3e6, rel=0.01)


@pytest.mark.parametrize("shape", ["flat", "linear:1:2", "steps:1:2", "sine:0.5"])
def test_curves_without_times_are_refused(shape: str) -> None:
    with pytest.raises(QuestionError, match="write sine:0"):
        RateCurve.parse(shape)


def test_replicas_of_an_autoscaler_that_is_on_time_are_nearly_those_that_are_simulated(day: AutoscalingAdvice) -> None:
    """A slow curve: 20 minutes against delays of seconds."""
    curve, rate = RateCurve.parse("sine:0.5:7200"), 200.0
    per_replica = 60.0
    fleet = replace(SLOW.fleet, replicas=4)
    reading = sizing("p99<200ms").read(fleet, 4 * per_replica)
    scaling = Autoscaling(per_replica * reading.mean_s, 1, 9, upscale_delay_s=5, downscale_delay_s=60, cold_start_s=5)
    arrivals, whole = curve.arrivals(sizing(), rate, 1)
    assert whole
    outcome = simulate(arrivals, replace(SLOW.fleet, autoscaling=replace(scaling, initial=3)), 1)
    assert replicas_on_time(curve, rate, per_replica, scaling) == pytest.approx(
        outcome.replica_s / outcome.span_s, rel=0.1
    )


# ---- advice


def test_the_least_replica_hours_of_those_that_keep_the_objective(day: AutoscalingAdvice) -> None:
    kept = [one for one in day.settings if one.kept]
    assert day.chosen.kept
    assert day.chosen.replicas_mean == min(one.replicas_mean for one in kept)
    assert day.chosen.min_replicas <= day.chosen.replicas_mean <= day.chosen.max_replicas
    assert 0 < day.saved < 1
    assert day.whole
    assert day.chosen.missed <= 0.01


def test_a_higher_target_takes_fewer_replica_hours(day: AutoscalingAdvice) -> None:
    last = day.settings[-1]
    rows = [one for one in day.settings if one.min_replicas == day.chosen.min_replicas and one != last]
    same = [one for one in rows if (one.upscale_delay_s, one.downscale_delay_s) == (30.0, 600.0)]
    assert len(same) >= 3
    targets = [one.target_ongoing for one in same]
    assert targets == sorted(targets)
    means = [one.replicas_mean for one in same]
    assert means == sorted(means, reverse=True)


def test_no_autoscaler_is_quick_enough_for_a_spike_shorter_than_a_cold_start() -> None:
    asked = question(100, "p99<200ms", shape="spike:4:0:60", peak=4.0)
    found = advice(asked=asked, cold_start_s=90.0)
    assert found.chosen.kept
    assert found.chosen.min_replicas == found.chosen.max_replicas == found.static_replicas
    assert found.saved == pytest.approx(0, abs=0.01)


def test_a_cold_start_that_nobody_knows_is_asked_for() -> None:
    with pytest.raises(QuestionError, match="say it with --cold-start"):
        advice(one=replace(SLOW, calibration=replace(SLOW.calibration, warmup_s=None)))


def test_it_can_be_read(day: AutoscalingAdvice) -> None:
    block = plan_text.scaling_table(day)
    assert "cold start 20 s, the curve from end to end" in block.title
    assert len(block.rows) <= 6
    assert json.loads(json.dumps(day.as_json()))["chosen"]["min_replicas"] == day.chosen.min_replicas


# ---- files

CASES = [
    variant("bert/compiled"),
    variant("bert/eager", batch_wait_s=0.002, queue=64, rows=4.0, rule="company"),
    variant("custom_cnn/compiled-bf16", queue=256),
]


def written(one) -> AutoscalingAdvice:
    return AutoscalingAdvice(CHOSEN, (CHOSEN,), 20.0, 5, True, 1200.0, "a whole period of 24 h")


@pytest.mark.filterwarnings("ignore")  # of what Ray imports
@pytest.mark.parametrize("one", CASES, ids=lambda one: one.endpoint)
def test_the_serve_config_is_that_of_tailrate_serve_with_the_autoscaler(one) -> None:
    yaml = pytest.importorskip("yaml")
    pytest.importorskip("ray")
    from ray.serve.schema import ServeDeploySchema

    from tailrate.serve.deploy import app
    from tailrate.serve.options import ServeOptions

    found = yaml.safe_load(manifests.serve_yaml(one, written(one)))
    schema = ServeDeploySchema.model_validate(found)
    scaling = schema.applications[1].deployments[0].autoscaling_config
    (deployment,) = found["applications"][1].pop("deployments")
    model, name = one.endpoint.split("/")
    rows = round(one.fleet.max_batch * one.calibration.rows)
    options = ServeOptions(
        models=(model,), variants=(name,), max_batch=rows, max_wait_ms=one.fleet.batch_wait_s * 1e3,
        max_queue=one.fleet.queue or 256, replicas=2, max_replicas=7,
    )  # fmt: skip
    assert found == yaml.safe_load(app.configuration(options))
    assert deployment["name"] == app.deployment_name((model, name))
    assert scaling == {
        "min_replicas": 2, "max_replicas": 7, "target_ongoing_requests": 12.5, "upscale_delay_s": 5.0,
        "downscale_delay_s": 120.0,
    }  # fmt: skip


def test_the_pod_autoscalers_have_the_same_figures() -> None:
    yaml = pytest.importorskip("yaml")
    one = CASES[2]
    made = {"This": manifests.hpa_yaml, "KEDA's": manifests.keda_yaml}
    for who, text in ((who, make(one, written(one))) for who, make in made.items()):
        assert "Ray Serve's autoscaler, as simulated" in text
        assert f"# {who} autoscaler was not simulated" in text
        assert "[4m]" in text  # of scrapes each minute a rate over one minute sees one, which is none
    hpa = yaml.safe_load(manifests.hpa_yaml(one, written(one)))
    keda = yaml.safe_load(manifests.keda_yaml(one, written(one)))
    assert hpa["apiVersion"] == "autoscaling/v2"
    assert (hpa["spec"]["minReplicas"], hpa["spec"]["maxReplicas"]) == (2, 7)
    assert hpa["spec"]["metrics"][0]["external"]["target"] == {"type": "AverageValue", "averageValue": "12500m"}
    assert hpa["metadata"]["name"] == "tailrate-custom-cnn-compiled-bf16"
    assert (keda["spec"]["minReplicaCount"], keda["spec"]["maxReplicaCount"]) == (2, 7)
    assert keda["spec"]["fallback"] == {"failureThreshold": 3, "replicas": 7}
    trigger = keda["spec"]["triggers"][0]["metadata"]
    assert trigger["threshold"] == "12.5"
    assert trigger["query"] == manifests.query(one)
    behavior = keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == hpa["spec"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 120


def test_the_metric_is_one_that_the_server_has() -> None:
    counters = (Path(__file__).parents[4] / "serve/telemetry/statistics.py").read_text()
    assert 'histogram("request_seconds"' in counters
    assert '("model", "variant", "replica")' in counters
    assert manifests.query(CASES[0]).startswith("sum(rate(tailrate_request_seconds_sum{model=")


def test_names_cannot_end_a_comment(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    evil = variant('m/x"\nkind: evil')
    for path in manifests.write(tmp_path, evil, written(evil)):
        assert yaml.safe_load(path.read_text()).get("kind") in (None, "HorizontalPodAutoscaler", "ScaledObject")
