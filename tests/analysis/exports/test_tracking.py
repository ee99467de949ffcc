"""What systems that track experiments are given of a run; what they make of it, test_trackers.py asks themselves."""

import sys
from pathlib import Path
from typing import Any

import pytest
from folders import Load, constant, make_run
from test_otlp import run_of

from tailrate import analysis
from tailrate.analysis.exports.forms import FORMS
from tailrate.analysis.exports.forms._tracking import facts, files, limits, points
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.records.folder import RunError
from tailrate.analysis.steps.step_summary import COLUMNS


def axis(folder: Path, rates: list[float], **more: Any) -> list[int]:
    run = analysis.load(make_run(folder / "run", [Load("m/a", rate, constant(5)) for rate in rates], **more).folder)
    return [point.at for point in points(run, report_of(run))]


def test_a_point_has_the_columns_of_its_step(tmp_path: Path) -> None:
    run, report = run_of(tmp_path)
    found = points(run, report)
    assert [(point.load, point.at) for point in found] == [(100, 100), (200, 200), (100, 100)]
    assert [point.end_ns for point in found] == [plan["end_ns"] for plan in run.manifest.scenario["steps"]]
    for point, row in zip(found, report["steps"], strict=True):
        assert {name.partition("/")[2] for name in point.figures} == {row["endpoint"]}
        told = {name.partition("/")[0]: value for name, value in point.figures.items()}
        assert set(told) <= set(COLUMNS)
        assert told["p99_ms"] == row["p99_ms"]
        assert told["trusted"] == row["trusted"]
        numbers = {key for key, value in row.items() if isinstance(value, int | float)}
        assert set(told) == numbers - {"index", "block"}


def test_steps_stand_by_their_rate_where_whole_numbers_tell_rates_apart(tmp_path: Path) -> None:
    assert axis(tmp_path / "a", [10, 20.4, 30]) == [10, 20, 30]
    assert axis(tmp_path / "b", [10, 20, 10, 20]) == [10, 20, 10, 20]
    assert axis(tmp_path / "c", [0.5, 1.0, 1.4]) == [0, 1, 2]
    assert axis(tmp_path / "d", [10, 10.2]) == [0, 1]


def test_facts_limits_and_files_are_those_of_the_run(tmp_path: Path) -> None:
    run, report = run_of(tmp_path)
    assert facts(run)["setting objective"] == "p99<50ms"
    assert limits(report) == {"capacity_rps/m/eager/p99<50ms": 100, "capacity_rps/m/compiled/p99<50ms": 100}
    assert files(run) == [run.folder / "run.json"]
    (run.folder / "report.html").touch()
    assert files(run) == [run.folder / "report.html", run.folder / "run.json"]


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_package_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    run, report = run_of(tmp_path)
    with pytest.raises(RunError, match=rf"--export {name} needs the package {name}: pip install 'tailrate\[{name}\]'"):
        FORMS[name](run, report)
