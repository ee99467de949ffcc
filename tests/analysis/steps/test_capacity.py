from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from folders import Load, Waveform, constant, make_run, queue
from searched import knee_run

from tailrate import analysis
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.steps.capacity import Capacity, capacities

FAST, SLOW = constant(10), constant(90)
SLO = ["p99<50ms"]


def _capacity(folder: Path, *loads: Load, **more: Any) -> Capacity:
    (found,) = capacities(analysis.load(make_run(folder, list(loads), **{"slo": SLO, **more}).folder))
    return found


def _steps(*latencies: Any) -> list[Load]:
    return [Load("m/a", 100.0 * (number + 1), latency) for number, latency in enumerate(latencies)]


def test_the_limit_lies_between_the_last_that_met_it_and_the_first_that_missed(tmp_path: Path) -> None:
    found = _capacity(tmp_path / "run", *_steps(FAST, FAST, SLOW, SLOW))
    assert (found.low_rps, found.high_rps, found.max_rps, found.resolved) == (200, 300, 199.9, True)
    assert found.slo == "p99<50ms"


def test_a_rate_that_meets_it_above_one_that_missed_does_not_count(tmp_path: Path) -> None:
    found = _capacity(tmp_path / "run", *_steps(FAST, SLOW, FAST))
    assert (found.low_rps, found.high_rps) == (100, 200)


def test_the_order_of_steps_does_not_matter(tmp_path: Path) -> None:
    found = _capacity(tmp_path / "run", *reversed(_steps(FAST, FAST, SLOW)))
    assert (found.low_rps, found.high_rps) == (200, 300)


def test_a_rate_that_cannot_say_stands_for_neither(tmp_path: Path) -> None:
    few = Load("m/a", 20, FAST)
    late = Load("m/a", 250, SLOW, late_ms=9)
    found = _capacity(tmp_path / "run", few, *_steps(FAST, FAST, SLOW), late)
    assert (found.low_rps, found.high_rps) == (200, 300)


def test_open_ends_are_not_resolved(tmp_path: Path) -> None:
    top = _capacity(tmp_path / "a", *_steps(FAST, FAST))
    assert (top.low_rps, top.high_rps, top.resolved) == (200, None, False)
    assert top.limited_by == "nothing: the highest rate tried still met the objective"
    bottom = _capacity(tmp_path / "b", *_steps(SLOW, SLOW))
    assert (bottom.max_rps, bottom.low_rps, bottom.high_rps, bottom.resolved) == (None, None, 100, False)


def test_a_generator_that_gave_up_first_is_the_clients_limit(tmp_path: Path) -> None:
    late = [replace(load, late_ms=5) for load in _steps(FAST, FAST, SLOW)[2:]]
    found = _capacity(tmp_path / "run", *_steps(FAST, FAST), *late)
    assert (found.low_rps, found.high_rps, found.resolved) == (200, None, False)
    assert found.limited_by is not None
    assert found.limited_by.startswith("client-limited: ≥ 200/s, at 300/s the load generator was late")


def test_repeated_rates_must_all_meet_it(tmp_path: Path) -> None:
    loads = [*_steps(FAST, FAST), Load("m/a", 200, SLOW, block=1), Load("m/a", 100, FAST, block=1)]
    found = _capacity(tmp_path / "a", *loads)
    assert (found.low_rps, found.high_rps) == (100, None)  # one of two says nothing for certain
    more = [Load("m/a", 200, SLOW, block=block) for block in (2, 3)]
    found = _capacity(tmp_path / "b", *loads, *more)
    assert (found.low_rps, found.high_rps) == (100, 200)


def test_each_objective_and_endpoint_has_a_row(tmp_path: Path) -> None:
    loads = [*_steps(FAST, SLOW), Load("m/b", 100, constant(70)), Load("m/b", 200, constant(70))]
    run = analysis.load(make_run(tmp_path / "run", loads, slo=["p99<50ms", "p50<80ms"]).folder)
    found = {(row.endpoint, row.slo): (row.low_rps, row.high_rps) for row in capacities(run)}
    assert found == {
        ("m/a", "p99<50ms"): (100, 200),
        ("m/a", "p50<80ms"): (100, 200),
        ("m/b", "p99<50ms"): (None, 100),
        ("m/b", "p50<80ms"): (200, None),
    }


def test_none_without_rising_rates_or_objective(tmp_path: Path) -> None:
    assert capacities(analysis.load(make_run(tmp_path / "a", _steps(FAST, SLOW)).folder)) == []
    assert capacities(analysis.load(make_run(tmp_path / "b", _steps(FAST), slo=SLO, mode="hold").folder)) == []


@pytest.mark.parametrize(
    ("waves", "said"),
    [
        ([Waveform("cpu", util_pct=97)], "host CPU (97 % busy), waiting for the replica ("),
        ([Waveform("cpu", util_pct=20), Waveform(util_pct=96)], "GPU-11111111 (96 % busy), waiting for the replica ("),
        ([Waveform(util_pct=40)], "waiting for the replica (4.95 ms at 100/s, 45.0 ms at 200/s)"),
    ],
)
def test_what_limits_comes_from_what_was_recorded(tmp_path: Path, waves: list[Waveform], said: str) -> None:
    found = _capacity(tmp_path / "run", *_steps(FAST, SLOW), devices=waves)
    assert found.limited_by is not None
    assert found.limited_by.startswith(said)


def test_errors_and_a_bare_queue_as_limits(tmp_path: Path) -> None:
    refused = [Load("m/a", 100, FAST), Load("m/a", 200, FAST, failed=0.25, timed_out=0.25)]
    run = analysis.load(make_run(tmp_path / "a", refused, slo=["errors<1%"]).folder)
    share = 100 * run.steps["errors"][1] / run.steps["n"][1]
    (found,) = capacities(run)
    assert found.limited_by == f"errors ({share:.0f} % of the arrivals, mostly 503)"
    assert share == pytest.approx(50, abs=5)
    foreign = _capacity(tmp_path / "b", Load("m/a", 90, FAST), Load("m/a", 120, queue(10)), foreign=True)
    assert foreign.limited_by == "a queue at the endpoint that grows without bound"


@pytest.mark.parametrize(
    ("slos", "slo", "said"),
    [
        (["p99 ttft<40ms"], "p99 ttft<40ms", "TTFT P99 ≤ 40 ms"),
        (["p99 ttft<40ms", "p99<300ms"], "p99 ttft<40ms", "TTFT P99 ≤ 40 ms"),
        (["errors<1%", "[long] p99<20ms", "p99<60ms"], "p99<60ms", "P99 ≤ 60 ms"),
    ],
)
def test_a_search_is_for_the_first_objective_of_all_arrivals_that_limits_a_latency(
    tmp_path: Path, slos: list[str], slo: str, said: str
) -> None:
    probes = [Load("m/a", rate, latency, seconds=20) for rate, latency in ((100, FAST), (150, FAST), (160, SLOW))]
    run = knee_run(tmp_path / "run", probes, slos, low_rps=150, high_rps=160)
    (found,) = capacities(run)
    assert (found.slo, found.low_rps, found.high_rps, found.max_rps) == (slo, 150, 160, pytest.approx(150, abs=1))
    assert f"sustains 155 ± 5 requests/s at {said}" in report_of(run)["conclusion"]


def test_what_a_search_could_not_judge_is_named_and_not_said_to_be_kept(tmp_path: Path) -> None:
    probes = [Load("m/a", rate, latency, seconds=20) for rate, latency in ((150, FAST), (160, SLOW))]
    run = knee_run(tmp_path / "run", probes, ["p99<60ms, errors<0.01%"], low_rps=150, high_rps=160, open="errors<0.01%")
    report = report_of(run)
    said = "sustains 155 ± 5 requests/s at P99 ≤ 60 ms (whether it keeps errors<0.01% there cannot be said)"
    assert said in report["conclusion"]
    assert report["reasons"][0].startswith("m/a: at 150/s errors<0.01% cannot be said: 0 % of 3,000 arrivals failed")
    assert report["capacity"][0]["open"] == "errors<0.01%"
