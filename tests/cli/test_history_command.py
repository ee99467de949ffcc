"""`tailrate history`, and the pins that `compare` knows: what they say, and with which exit code."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from folders import Load, lognormal, make_run
from histories import noisy, run_of
from test_index import run_in

from tailrate.analysis.history import log
from tailrate.analysis.history.figure_series import KINDS
from tailrate.analysis.history.regression import LEAST
from tailrate.analysis.records.folder import RunError
from tailrate.cli.main import main
from tailrate.cli.reporting import make_report

FIGURES = ("capacity", "p50", "p99", "joules", "errors", "start", "parity")


def tailrate(*words: object, code: int = 0) -> Result:
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code == code, done.output
    return done


def sentence(*words: object) -> str:
    """The one line of a refusal."""
    (line,) = tailrate(*words, code=2).stderr.strip().splitlines()
    return line


@pytest.fixture
def reported(tmp_path: Path) -> Path:
    """A folder of two runs with their reports."""
    for name in ("one", "two"):
        make_run(tmp_path / name, [Load("m/eager", rate, lognormal(5)) for rate in (50, 100)], slo=["p99<50ms"])
        make_report(tmp_path / name, page=False)
    return tmp_path


# ---- exit codes


def test_a_regression_is_1_none_is_0_and_what_cannot_be_judged_is_3(tmp_path: Path) -> None:
    steady = [run_of(day) for day in range(LEAST + 1)]
    log.add(tmp_path, steady)
    tailrate("history", tmp_path, "--fail-on-regression")
    log.add(tmp_path, [run_of(90, by={"p99": 2.0})])
    tailrate("history", tmp_path)  # shown, and not asked for
    tailrate("history", tmp_path, "--fail-on-regression", code=1)
    tailrate("history", tmp_path, "--fail-on-regression", "--figure", "joules")
    tailrate("history", tmp_path, "--fail-on-regression", "--endpoint", "m/*", code=1)
    log.add(tmp_path, [run_of(91, facts={("m/a", "torch"): "2.12"})])  # an environment of its own
    tailrate("history", tmp_path, "--fail-on-regression", code=3)
    tailrate("history", tmp_path, "--fail-on-regression", "--json", code=3)


def test_only_the_newest_run_counts_for_the_exit_code(tmp_path: Path) -> None:
    log.add(tmp_path, [run_of(0, "alone", facts={("m/a", "torch"): "1"})])
    log.add(tmp_path, [run_of(day) for day in range(1, LEAST + 2)])
    assert "cannot be judged" in tailrate("history", tmp_path, "--fail-on-regression").output


def test_json_is_whole(tmp_path: Path) -> None:
    log.add(tmp_path, noisy(1, 20, worse=["p99"], times=2))
    log.pin(tmp_path, "main", log.read(tmp_path).entries[0])
    found = json.loads(tailrate("history", tmp_path, "--json").stdout)
    assert found["verdict"] == "fail"
    assert found["pins"]["main"]["run"] == "run-000"
    (series,) = found["series"]
    assert series["endpoint"] == "m/a"
    assert series["environment"] == {"device": "NVIDIA H200", "torch": "2.11.0"}
    assert len(series["runs"]) == 21
    figures = {one["figure"]: one for one in series["figures"]}
    assert tuple(figures) == FIGURES
    assert (figures["p99"]["call"], figures["p99"]["against"]) == ("worse", "20 earlier runs")
    assert figures["p99"]["low"] < figures["p99"]["usual"] < figures["p99"]["high"] < 80 * 0.9
    assert len(figures["p99"]["readings"]) == 21


def test_by_is_one_command(tmp_path: Path) -> None:
    facts = ("m/a", "torch")
    log.add(tmp_path, [run_of(d, by={"p50": 1 + 0.2 * (d > 3)}, facts={facts: f"2.{d > 3:d}"}) for d in range(8)])
    shown = tailrate("history", tmp_path, "--by", "torch", "--figure", "p50").output
    assert "What torch changes, all else alike" in shown
    row = " ".join(shown.splitlines()[2].split())
    assert row == "m/a P50 at 100/s 2.0 2.1 10 ms 12 ms 4, 4 1.20 1.20–1.20 differs"
    (one,) = json.loads(tailrate("history", tmp_path, "--by", "torch", "--figure", "p50", "--json").stdout)["contrasts"]
    assert one["ratio"] == pytest.approx(1.2)


def test_a_table_run_by_run(tmp_path: Path) -> None:
    log.add(tmp_path, [run_of(day, facts={("version", "git"): f"abc{day}"}) for day in range(7)])
    history_lines = tailrate("history", tmp_path, "--figure", "p99").output.splitlines()
    assert [line.split()[0] for line in history_lines if "abc" in line] == [f"run-00{day}" for day in range(7)]
    assert "no change" in tailrate("history", tmp_path).output


# ---- kept


def test_reports_feed_the_history_once_it_is_begun(reported: Path) -> None:
    assert not (reported / log.FILE).exists()
    assert tailrate("history", "--add", reported).output == f"2 of 2 runs added to {reported / log.FILE}\n"
    assert tailrate("history", "--add", reported).output.startswith("0 of 2 runs added")
    make_run(reported / "three", [Load("m/eager", 50, lognormal(5))], slo=["p99<50ms"])
    tailrate("report", reported / "three", "--no-page")
    assert [entry.name for entry in log.read(reported).entries] == ["one", "three", "two"]
    shutil.rmtree(reported / "one")
    assert (
        "m/eager, GPU-11111111-2222-3333-4444-555555555555, ramp, p99<50ms: 3 runs"
        in tailrate("history", reported).output
    )


def test_runs_are_added_one_by_one_too(reported: Path) -> None:
    shutil.copytree(reported / "one", reported / "cut")
    (reported / "cut" / "report.json").unlink()
    said = tailrate("history", "--add", reported / "one", reported / "cut").output
    assert said.startswith("1 of 2 runs added to ")
    assert said.endswith("; 1 without figures (no report, aborted or unreadable) left out\n")


def test_a_history_that_cannot_be_written_spoils_no_report(reported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(folder: Path) -> None:
        raise RunError(f"{folder.parent / log.FILE} cannot be written: No space left on device")

    monkeypatch.setattr(log, "follow", fails)
    done = tailrate("report", reported / "one", "--no-page")
    assert done.stderr == f"tailrate: {reported / log.FILE} cannot be written: No space left on device\n"
    assert "verdict: pass" in done.stdout


# ---- pins


def test_a_pin_stands_for_its_folder_in_compare(reported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tailrate("history", reported, "--pin", "main", "one").output.startswith("main is pinned to one in ")
    of_folders = tailrate("compare", reported / "one", reported / "two").output
    assert tailrate("compare", "main", reported / "two").output == of_folders
    shutil.move(reported, reported.parent / "runs")
    monkeypatch.chdir(reported.parent)
    assert tailrate("compare", "main", "runs/two").output == of_folders
    assert "main is pinned to one." in tailrate("history").output
    shutil.rmtree("runs/one")
    assert sentence("compare", "main", "runs/two") == (
        "tailrate: main is pinned to one, whose folder is gone; tailrate history runs --against main has its figures"
    )
    tailrate("history", "--against", "main")
    assert tailrate("history", "--unpin", "main").output == "main is pinned no more\n"
    assert sentence("compare", "main", "runs/two").startswith("tailrate: main is not a folder")


def test_bad_input_is_one_sentence_and_exit_2(reported: Path) -> None:
    nowhere = reported / "nowhere"
    for words, said in (
        ([nowhere], f"{nowhere} holds neither a history.jsonl nor a run folder"),
        ([reported, reported], "history of what? give one folder that holds runs, or --add with several"),
        (["--add", nowhere], f"{nowhere} is neither a run folder nor holds one"),
        ([reported, "--pin", "main", "none"], f"--pin main none: there is no such run in {reported}"),
        ([reported, "--unpin", "main"], f"nothing is pinned as main in {reported}"),
        (
            [reported, "--figure", "p42"],
            f"--figure p42: known are {', '.join(KINDS)}",
        ),
        ([reported, "--by", "torch"], "--by torch: no endpoint was measured at more than one value of it, all else"),
        (
            [reported, "--by", "torch", "--fail-on-regression"],
            "--by compares the values of a fact, and knows no",
        ),
        (["--add", reported, "--fail-on-regression"], "--add writes the history and does no more; leave --fail-on"),
        ([reported, "--pin", "main", "one", "--fail-on-regression"], "--pin or --unpin writes the history and does"),
        (["--add", reported, "--pin", "main", "one"], "--add writes the history and does no more; leave --pin"),
        (["--add", reported, "--accept", "one", "--why", "x"], "--add writes the history and does no more; leave"),
        (["--add", reported, "--who", "anna"], "--why and --who are of --accept RUN"),
        ([reported, "--unpin", ""], f"nothing is pinned as  in {reported}"),
        ([reported, "--accept", "", "--why", "x"], f"--accept : there is no such run in {reported}"),
        ([reported, "--by", ""], "--by "),
        ([reported, "--against", ""], "--against "),
        ([reported, "--figure", ""], "--figure "),
        ([reported, "--since", ""], "--since "),
        ([reported, "--endpoint", ""], "--endpoint "),
    ):
        assert sentence("history", *words).startswith(f"tailrate: {said}")


def test_what_is_worse_can_be_accepted_and_who_and_why_is_written_down(tmp_path: Path) -> None:
    log.add(tmp_path, [*noisy(5, 12), run_of(90, by={"p99": 1.5})])
    tailrate("history", tmp_path, "--fail-on-regression", code=1)
    said = tailrate("history", tmp_path, "--accept", "run-090", "--why", "four more layers", "--who", "anna").output
    assert "what is worse in run-090 is accepted by anna" in said
    shown = tailrate("history", tmp_path, "--fail-on-regression").output
    assert "What is worse in run-090 was accepted by anna" in shown
    assert ": four more layers." in shown
    assert "worse, as accepted" in shown
    log.add(tmp_path, [run_of(91, by={"p99": 1.5})])
    assert "no change" in tailrate("history", tmp_path, "--fail-on-regression").output
    log.add(tmp_path, [run_of(92, by={"p99": 2.0})])
    tailrate("history", tmp_path, "--fail-on-regression", code=1)
    (accepted,) = json.loads(tailrate("history", tmp_path, "--json").output)["accepted"]
    assert (accepted["run"], accepted["who"], accepted["why"]) == ("run-090", "anna", "four more layers")


def test_a_user_without_a_name_accepts_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 1234567)
    log.add(tmp_path, [run_of(1)])
    said = tailrate("history", tmp_path, "--accept", "run-001", "--why", "four more layers").output
    assert "accepted by user 1234567" in said


def test_nobody_accepts_without_a_reason_or_a_run(tmp_path: Path) -> None:
    log.add(tmp_path, [run_of(1)])
    assert "say --why" in sentence("history", tmp_path, "--accept", "run-001")
    assert "there is no such run" in sentence("history", tmp_path, "--accept", "nothing", "--why", "x")
    assert "are of --accept" in sentence("history", tmp_path, "--why", "x")


def test_a_name_that_is_used_again_is_another_run(tmp_path: Path) -> None:
    """Nightly runs that all have the same folder's name, the last of them twice as slow."""
    for day in range(8):
        run_in(tmp_path, f"n{day}", [Load("m/eager", 100, lognormal(10), seconds=30)], day=day)
    run_in(tmp_path, "nightly", [Load("m/eager", 100, lognormal(10), seconds=30)], day=9)
    tailrate("history", "--add", tmp_path)
    tailrate("history", tmp_path, "--pin", "main", "nightly")
    shutil.rmtree(tmp_path / "nightly")
    run_in(tmp_path, "nightly", [Load("m/eager", 100, lognormal(20), seconds=30)], day=20)
    found = json.loads(tailrate("history", tmp_path, "--json").output)
    assert [run["run"] for run in found["series"][-1]["runs"]][-2:] == ["nightly", "nightly"]
    assert found["verdict"] == "fail"
    with pytest.raises(RunError, match="its folder holds another run now"):
        log.pinned_folder("main", [tmp_path])
