"""Settings that are looked for in the simulator: an optimum that is known, points that fail, and the command that
tries the best live."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from batched import Server, batched_run, linear
from click.testing import CliRunner
from plans import roughly as roughly
from plans import service, sizing, variant

from tailrate import analysis
from tailrate.analysis.planning import tune as tuning
from tailrate.analysis.planning.plan.sizing import QuestionError
from tailrate.analysis.planning.simulator.simulate import Rule, Service
from tailrate.analysis.planning.tune import ENERGY, RATE, TunedPoint, Tuning, confirm, sentences, table, tune
from tailrate.analysis.records.manifest import Manifest
from tailrate.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an endpoint that takes 6 ms and 1 ms a request, in batches of up to eight: 571/s at most."""
    made = tmp_path_factory.mktemp("runs") / "run"
    batched_run(made, Server(linear(0.006, 0.001)), (150, 300, 480, 520), seconds=20, endpoint="null/a")
    return made


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch):
    """Tunes variants that were made by hand."""

    def tuned(*made, objective: str = RATE, slo: str = "p99<50ms", **more) -> Tuning:
        monkeypatch.setattr(tuning, "_variants", lambda *_: (list(made), []))
        return tune([], sizing(slo, **more), objective)

    return tuned


def test_where_a_batch_costs_as_much_as_one_request_the_largest_is_best(alone) -> None:
    found = alone(variant(made=service(0.010, 0.0, most=8)))
    assert found.best is not None
    assert found.best.fleet.max_batch == 8
    rates = {point.fleet.max_batch: point.rate_rps for point in found.points if not point.fleet.batch_wait_s}
    assert [rates[size] for size in (1, 2, 4, 8)] == sorted(rates[size] for size in (1, 2, 4, 8))
    assert rates[8] > 8 * rates[1]


def test_where_a_batch_costs_more_than_its_requests_single_ones_are_best(alone) -> None:
    made = Service.steady(np.array([0.0, 0.010, 0.021, 0.033, 0.046]))
    found = alone(variant(made=made), slo="p99<60ms")
    assert found.best is not None
    assert found.best.fleet.max_batch == 1


def test_the_faster_variant_comes_first_and_settings_that_fail_last(alone) -> None:
    slow, fast = variant("m/slow", service(0.030, 0.02, most=4)), variant("m/fast", service(0.010, 0.002, most=4))
    found = alone(slow, fast)
    assert found.best is not None
    assert found.best.variant is fast
    failed = [point for point in found.points if not point.rate_rps]
    assert failed
    assert {point.variant.endpoint for point in failed} == {"m/slow"}
    assert list(found.points[-len(failed) :]) == failed
    said = list(sentences(replace(found, points=failed), []))
    assert said[0] == f"{len(failed)} of {len(failed)} settings keep p99<50ms at no rate."
    assert said[-1] == "No setting keeps p99<50ms at any rate."


def test_energy_may_choose_otherwise_than_rate(alone) -> None:
    """The slower one draws a tenth of the power."""
    quick = variant("m/quick", service(0.004, 0.0005, most=8), idle_w=100.0, active_w=700.0)
    frugal = variant("m/frugal", service(0.008, 0.001, most=8), idle_w=10.0, active_w=70.0)
    by_rate, by_energy = alone(quick, frugal), alone(quick, frugal, objective=ENERGY)
    assert by_rate.best is not None
    assert by_energy.best is not None
    assert by_rate.best.variant is quick
    assert by_energy.best.variant is frugal
    best = by_energy.best
    assert best.joules == pytest.approx((10 + 60 * (best.utilisation or 0)) / best.rate_rps)


def test_energy_takes_measured_power(alone) -> None:
    with pytest.raises(QuestionError, match="takes runs with the power of their devices"):
        alone(variant(), objective=ENERGY)


def test_sizes_that_were_hardly_seen_are_not_tried(alone) -> None:
    one = variant(made=service(0.004, 0.0005))
    seen = np.array([0, *[100] * 6, *[2] * 10])
    found = alone(replace(one, calibration=replace(one.calibration, batches=seen)))
    assert {point.fleet.max_batch for point in found.points} == {1, 2, 4, 6, 16}
    assert [point.fleet.max_batch for point in found.points if point.fleet.max_batch > 6] == [16]  # as it was measured


def test_of_runs(folder: Path) -> None:
    found = tune([analysis.load(folder)], sizing())
    assert found.best is not None
    assert found.best.fleet.max_batch == 8
    assert 450 < found.best.rate_rps < 8 / 0.014
    assert "Replicas on a device: only 1 was measured, so no other number is tried." in found.notes
    shown = table(found)
    assert any("as measured" in row for row in shown.rows)


def test_replicas_on_a_device_are_tried_as_far_as_they_were_measured(folder: Path, tmp_path: Path) -> None:
    """Two that share a device, each half as fast: no gain."""
    server = Server(linear(0.012, 0.002), replicas=2)
    batched_run(tmp_path / "two", server, (150, 300, 480, 520), seconds=20, endpoint="null/a")
    found = tune([analysis.load(folder), analysis.load(tmp_path / "two")], sizing())
    rates = {count: max(one.rate_rps for one in found.points if one.fleet.replicas == count) for count in (1, 2)}
    assert rates[1] >= rates[2] > 300
    assert not any("no other number is tried" in note for note in found.notes)


@pytest.mark.parametrize(
    ("command", "wanted", "scenario"),
    [
        ("tailrate run null", 1, "null"),
        ("tailrate run my/own.py --host http://gpu:8000 --mode hold", 2, "my/own.py"),
        ("locust -f x.py --host=http://gpu:8000", 2, "x.py"),
        ("tailrate run 'null", 1, "null"),
    ],
)
def test_the_command_that_confirms_it(folder: Path, command: str, wanted: int, scenario: str) -> None:
    manifest = Manifest.read(folder)
    manifest.extra["command"] = command
    manifest.scenario["name"] = "null"
    manifest.write(folder)
    run, one = analysis.load(folder), variant("null/a", batch_wait_s=0.002, rows=1.0)
    lines = confirm(TunedPoint(one, replace(one.fleet, replicas=2), 1000.0), sizing().objective.slo, [run])
    assert len(lines) == wanted
    for line in lines:
        _, name, *words = shlex.split(line)
        known = {option for parameter in main.commands[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known
    assert lines[-1].startswith(f"tailrate run {scenario} ")
    assert "--rates 700" in lines[-1]
    assert "--slo 'p99<50ms'" in lines[-1]
    assert "--max-batch 16 --max-wait-ms 2 --replicas 2" in lines[0]
    assert ("--host http://gpu:8000" in lines[-1]) == (wanted == 2)


def test_a_server_of_others_is_set_by_its_own_means(folder: Path) -> None:
    manifest = Manifest.read(folder)
    manifest.extra["command"] = "tailrate run null --host http://triton:8000"
    manifest.write(folder)
    one = variant("null/a", rule=Rule.OPPORTUNISTIC)
    other = replace(one, calibration=replace(one.calibration, declared_rule=None))
    first, _ = confirm(TunedPoint(other, other.fleet, 1000.0), sizing().objective.slo, [analysis.load(folder)])
    assert first == "(the server set to batches of 16 and a wait of 0\u00a0ms)"


def test_as_a_command(folder: Path) -> None:
    done = CliRunner().invoke(main, ["tune", str(folder), "--slo", "p99<50ms", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert set(found) == {"slo", "objective", "notes", "points"}
    rates = [point["rate_rps"] for point in found["points"]]
    assert rates == sorted(rates, reverse=True)
    assert sum(point["measured"] for point in found["points"]) == 1
    missed = CliRunner().invoke(main, ["tune", str(folder), "--slo", "p99<5ms"])
    assert missed.exit_code == 1
    assert "No setting keeps p99<5ms at any rate." in missed.stdout
    for words, said in (([], "tune from what?"), ([str(folder)], "hold what?")):
        refused = CliRunner().invoke(main, ["tune", *words])
        assert refused.exit_code == 2
        assert said in refused.stderr
