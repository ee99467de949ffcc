import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from folders import Load, Waveform, constant, lognormal, make_run, queue

from tailrate import analysis
from tailrate.analysis.verdicts.changes import Change, changes, inside
from tailrate.analysis.verdicts.gate import Gate, judge
from tailrate.cli.main import main

SLO = ["p99<60ms,errors<1%"]


def _steps(factor: float, rates: tuple[int, ...] = (200, 400)) -> list[Load]:
    return [
        Load(f"m/{name}", rate, lognormal(ms * factor, 0.4), seconds=40)
        for rate in rates
        for name, ms in (("eager", 20), ("compiled", 12))
    ]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "base"
    return make_run(folder, _steps(1.0), seed=1, poisson=True, slo=SLO, devices=[Waveform()]).folder


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "same"
    return make_run(folder, _steps(1.0), seed=2, poisson=True, slo=SLO, devices=[Waveform()]).folder


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "slower"
    return make_run(folder, _steps(1.15), seed=3, poisson=True, slo=SLO, devices=[Waveform()]).folder


def _compare(*words: object) -> tuple[int, str]:
    found = CliRunner().invoke(main, ["compare", *map(str, words)])
    return found.exit_code, found.output


def test_a_change_is_new_over_base(base: Path, slower: Path) -> None:
    one, other = analysis.load(base), analysis.load(slower)
    found = {(c.endpoint, c.at, c.metric): c for c in changes(one, other)}
    row = found["m/eager", "200/s", "p99"]
    old, new = (run.steps.set_index("index").loc[0, "p99_ms"] for run in (one, other))
    assert (row.base, row.new, row.rounds) == (pytest.approx(old), pytest.approx(new), 1)
    assert row.ratio == pytest.approx(new / old)
    assert row.low is not None
    assert row.high is not None
    assert row.low < 1.15 < row.high
    assert found["m/eager", "200/s", "p50"].differs
    joules = found["m/compiled", "400/s", "joules"]
    assert joules.note == "one round shows no interval"
    assert joules.differs is None
    capacity = found["m/eager", "p99<60ms, errors<1%", "capacity"]
    assert capacity.note == "a limit was not found in both runs"


def test_runs_with_nothing_in_common_are_not_compared(base: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "run", [Load("m/eager", 300), Load("other/eager", 200)]).folder
    assert changes(analysis.load(base), analysis.load(other)) == []
    assert _compare(base, other) == (2, f"tailrate: {base} has nothing to compare with {other}\n")


def test_an_endpoint_that_is_overloaded_now_is_worse(base: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "run", [Load("m/eager", 200, queue(8), seconds=40)], poisson=True).folder
    (row,) = [one for one in changes(analysis.load(base), analysis.load(other)) if one.worse]
    assert (row.endpoint, row.at, row.differs, row.note) == (
        "m/eager", "200/s", True, "new is overloaded, and base is not",
    )  # fmt: skip
    code, said = _compare(base, other, "--fail-on", "p99>5%")
    assert code == 1
    assert "p99 of m/eager at 200/s: new is overloaded, and base is not" in said


LOADS = [Load("m/a", 100, lognormal(10), seconds=40), Load("m/a", 200, lognormal(10), seconds=40)]


@pytest.mark.parametrize(
    ("more", "gate", "lacking"),
    [
        ([Load("m/a", 300, lognormal(10))], "p99>50%", "p99 of m/a at 300/s"),
        ([Load("m/b", 100, lognormal(10))], "p50>50%", "p50 of m/b at 100/s"),
        ([Load("m/b", 100, lognormal(10)), Load("m/b", 200)], "capacity<-50%", "capacity of m/b at p99<50ms"),
    ],
)
def test_what_only_one_run_has_cannot_be_compared_whichever_it_is(
    tmp_path: Path, more: list[Load], gate: str, lacking: str
) -> None:
    less, whole = (
        make_run(tmp_path / name, loads, slo=["p99<50ms"], seed=seed).folder
        for seed, (name, loads) in enumerate({"less": LOADS, "whole": LOADS + more}.items())
    )
    for runs, side in (((whole, less), "base"), ((less, whole), "new")):
        code, said = _compare(*runs, "--fail-on", gate)
        assert (code, f"{lacking} cannot be compared: only {side} has" in " ".join(said.split())) == (3, True)
    assert _compare(whole, less)[0] == 0  # nothing was asked of it


def test_a_load_that_one_endpoint_of_the_run_lacks_cannot_be_compared(tmp_path: Path) -> None:
    loads = [*(replace(load, endpoint="m/b") for load in LOADS), LOADS[0]]
    code, said = _compare(make_run(tmp_path / "run", loads).folder, "--fail-on", "p50>50%")
    assert code == 3
    assert "p50 of m/a ÷ m/b at 200/s cannot be compared: only m/b has this load" in " ".join(said.split())


@pytest.mark.parametrize("worse", [{"failed": 0.1}, {"latency": lambda rng, at_s: 10 + 400 * at_s}])
def test_what_is_worse_fails_a_gate_inside_a_run_as_from_run_to_run(tmp_path: Path, worse: dict[str, Any]) -> None:
    eager = Load("m/eager", 200, lognormal(10), seconds=30)
    both = make_run(tmp_path / "both", [eager, replace(eager, endpoint="m/compiled", **worse)], mode="ab").folder
    old, new = (
        make_run(tmp_path / name, [one]).folder for name, one in (("old", eager), ("new", replace(eager, **worse)))
    )
    assert _compare(both, "--fail-on", "p99>20%")[0] == _compare(old, new, "--fail-on", "p99>20%")[0] == 1


def test_inside_a_run_each_figure_is_called_by_itself(tmp_path: Path) -> None:
    def tail(rng: np.random.Generator, at_s: Any) -> Any:
        return lognormal(10, 0.2)(rng, at_s) * np.where(rng.random(len(at_s)) < 0.03, 8, 1)

    loads = [Load("m/eager", 200, tail, seconds=30), Load("m/compiled", 200, lognormal(10, 0.2), seconds=30)]
    folder = make_run(tmp_path / "run", loads).folder
    found = {one.metric: one for one in inside(analysis.load(folder))}
    assert (found["p50"].differs, found["p99"].differs) == (False, True)
    assert found["p99"].ratio == pytest.approx((found["p99"].new or 0) / (found["p99"].base or 1))
    assert _compare(folder)[1].startswith("One endpoint of the run over another")


def test_noise_between_equal_steps_is_the_floor(tmp_path: Path) -> None:
    def run(name: str, ms: float, twin_ms: float) -> Path:
        loads = [Load("m/a", 200, constant(ms), seconds=10), Load("m/a", 200, constant(twin_ms), seconds=10)]
        written = make_run(tmp_path / name, loads, mode="ab")
        written.manifest.scenario["steps"][1]["twin"] = True
        written.manifest.write(written.folder)
        return written.folder

    quiet, noisy, changed = run("quiet", 20, 20.02), run("noisy", 20, 22), run("changed", 21, 21)
    clear = next(c for c in changes(analysis.load(quiet), analysis.load(changed)) if c.metric == "p99")
    assert (clear.differs, clear.noise) == (True, pytest.approx(0.001))
    within = next(c for c in changes(analysis.load(noisy), analysis.load(changed)) if c.metric == "p99")
    assert (within.differs, within.noise) == (False, pytest.approx(0.1))


def _side_by_side(folder: Path, old_ms: float, new_ms: float, twin_ms: float) -> Path:
    """Two builds in one run, the old one twice."""
    loads = [
        Load(name, 200, constant(ms), seconds=10) for name, ms in (("old", old_ms), ("old", twin_ms), ("new", new_ms))
    ]
    written = make_run(folder, loads, mode="ab")
    written.manifest.endpoints = [{"name": name, "model": "m", "variant": "eager"} for name in ("old", "new")]
    written.manifest.scenario["steps"][1]["twin"] = True
    written.manifest.write(written.folder)
    return written.folder


@pytest.mark.parametrize(
    ("new_ms", "twin_ms", "code", "differs"),
    [
        (24, 20.02, 1, True),
        (20.04, 20.02, 0, True),
        (16, 20.02, 0, True),
        (22, 26, 3, False),  # the old build differs as much from itself
        (20.04, 26, 0, False),  # whose noise alone breaks no gate
    ],
)
def test_builds_side_by_side_are_gated_and_their_noise_is_not(
    tmp_path: Path, new_ms: float, twin_ms: float, code: int, differs: bool
) -> None:
    folder = _side_by_side(tmp_path / "run", 20, new_ms, twin_ms)
    rows = [one for one in inside(analysis.load(folder)) if one.metric == "p99"]
    assert [one.endpoint for one in rows] == ["new ÷ old"]
    assert rows[0].noise == pytest.approx(twin_ms / 20 - 1)
    assert rows[0].differs is differs
    found, said = _compare(folder, "--fail-on", "p99>5%")
    assert found == code, said


# ---- gates


@pytest.mark.parametrize(("text", "limit"), [("p99>5%", 1.05), ("capacity<-10%", 0.9), (" joules > 0 % ", 1.0)])
def test_a_gate_is_understood(text: str, limit: float) -> None:
    gate = Gate.parse(text)
    assert gate.limit == pytest.approx(limit)
    assert Gate.parse(str(gate)) == gate


@pytest.mark.parametrize("text", ["p99", "p98>5%", "p99>5", "p99<5%", "p99>-5%", "p99<-200%"])
def test_a_gate_that_makes_no_sense_is_refused(text: str, base: Path) -> None:
    with pytest.raises(ValueError, match="'p9"):
        Gate.parse(text)
    code, said = _compare(base, base, "--fail-on", text)
    assert code == 2
    assert said.count("\n") == 1


def _changed(
    ratio: float | None, low: float | None, high: float | None, visible: float | None, noise: float | None = None
) -> Change:
    return Change("run", "m/a", "100/s", "p99", 10.0, 10.0, ratio, low, high, visible, noise)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (_changed(1.00, 0.97, 1.03, 0.03), True),  # surely less than five percent
        (_changed(1.02, 0.99, 1.06, 0.045), True),  # five percent would have been seen
        (_changed(1.02, 0.90, 1.15, 0.15), None),  # it would not
        (_changed(1.08, 1.04, 1.12, 0.05), False),
        (_changed(1.08, 0.98, 1.18, 0.12), None),  # more, but perhaps by chance
        (_changed(1.08, 1.04, 1.12, 0.05, noise=0.1), None),  # the endpoint differs as much from itself
        (_changed(0.80, 0.75, 0.85, 0.05), True),  # better
        (_changed(1.30, None, None, None), None),
    ],
)
def test_a_gate_is_kept_broken_or_open(change: Change, kept: bool | None) -> None:
    answer, said = Gate.parse("p99>5%").judge(change)
    assert answer is kept
    assert bool(said) == (kept is not True)


def test_a_fall_is_judged_as_the_rise_of_the_inverse() -> None:
    gate = Gate.parse("p99<-5%")
    assert gate.judge(_changed(0.90, 0.87, 0.93, 0.03))[0] is False
    assert gate.judge(_changed(1.20, 1.10, 1.30, 0.03))[0] is True


def test_exit_codes_of_the_command(base: Path, same: Path, slower: Path) -> None:
    code, said = _compare(base, slower, "--fail-on", "p50>5%")
    assert code == 1
    assert "p50 of m/eager at 200/s changed by +1" in said
    assert _compare(base, same, "--fail-on", "p50>5%")[0] == 0
    assert _compare(base, slower, "--fail-on", "joules>900%, p50>5%")[0] == 1
    assert _compare(base, slower, "--fail-on", "p50>90%,p90>90%")[0] == 0
    code, said = _compare(base, same, "--fail-on", "p999>1%")
    assert code == 3
    assert "too little known to say whether p999>1%" in said
    assert _compare(base, slower)[0] == 0  # nothing was asked of it
    code, said = _compare(base, same, slower, "--fail-on", "p50>5%")
    assert code == 1
    assert "slower" in said
    assert _compare(base, base.parent / "none")[0] == 2


def test_a_run_that_proves_nothing_opens_every_gate(base: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "run", _steps(1.3), status="aborted", stopped_s=130, poisson=True).folder
    code, said = _compare(base, other, "--fail-on", "p99>5%")
    assert code == 3
    assert "run: the run was aborted after 3 of 4 steps" in said


def test_json_has_what_the_table_has(base: Path, slower: Path) -> None:
    code, said = _compare(base, slower, "--json", "--fail-on", "p99>5%")
    found = json.loads(said)
    assert (code, found["verdict"]) == (1, "fail")
    rows = {(row["endpoint"], row["at"], row["metric"]): row for row in found["changes"]}
    assert rows["m/eager", "400/s", "p99"]["differs"] is True
    assert len(rows) == len(found["changes"])


def test_one_run_alone_compares_its_variants(base: Path) -> None:
    code, said = _compare(base)
    assert code == 0
    rows = [line.split() for line in said.splitlines()[2:] if line]
    assert [row[2] for row in rows if row[4] == "p99"] == ["m/eager", "m/eager"]
    first = next(row for row in rows if row[4] == "p50")
    assert float(first[7]) == pytest.approx(0.6, rel=0.05)
    assert "differs" in first


def test_a_gate_cannot_pass_over_a_load_that_could_not_be_compared(base: Path, tmp_path: Path) -> None:
    late = [replace(step, dropped=0.04) if step.rate == 400 else step for step in _steps(1)]
    new = analysis.load(make_run(tmp_path / "new", late, poisson=True, seed=9).folder)
    found = changes(analysis.load(base), new)
    for figure in ("p50", "p99"):
        told = judge([Gate.parse(f"{figure}>50%")], found, [new])
        assert told.verdict == "inconclusive"
        assert "at 400/s cannot be compared: new: cannot be trusted" in " ".join(told.sentences)


@pytest.mark.parametrize(
    ("low", "high", "kept"), [(None, 0.5, False), (None, 0.97, None), (0.97, None, True), (1.2, None, True)]
)
def test_a_bound_decides_a_gate_where_it_can(low: float | None, high: float | None, kept: bool | None) -> None:
    change = Change("new", "m/a", "p99<50ms", "capacity", None, 100.0, low=low, high=high, note="no limit was found")
    answer, said = Gate.parse("capacity<-5%").judge(change)
    assert answer is kept
    assert kept is not False or said == "capacity of m/a at p99<50ms changed by −50 % or less"


def test_what_else_differs_is_named_and_can_be_a_gate(base: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", _steps(1.0), seed=2, poisson=True, slo=SLO, devices=[Waveform()])
    other.manifest.versions["torch"] = "2.11"
    for entry in other.manifest.endpoints:
        entry["parameters"] = {**(entry.get("parameters") or {}), "device_name": "NVIDIA H200"}
    other.manifest.write(other.folder)
    code, said = _compare(base, other.folder)
    assert code == 0
    assert "other ran in other circumstances than base" in said.replace("\n", " ")
    assert "device name" in said
    assert _compare(base, other.folder, "--fail-on", "circumstances")[0] == 1
    found = json.loads(_compare(base, other.folder, "--json")[1])
    assert found["circumstances"]["other"]["m/eager device name"] == ["–", "NVIDIA H200"]


def test_equal_circumstances_are_no_sentence_and_break_no_gate(base: Path, same: Path) -> None:
    code, said = _compare(base, same, "--fail-on", "circumstances")
    assert (code, "circumstances" in said) == (0, False)
