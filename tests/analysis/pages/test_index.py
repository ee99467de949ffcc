"""The gallery: every run is listed with the figures of its report, and nothing in a folder can stop it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import folders
import pytest
from click.testing import CliRunner
from folders import DAY_NS, START_NS, Load, Waveform, queue
from often import counts
from test_report_page import EVIL, Page, two_variants

from tailrate import analysis
from tailrate.analysis.exports import report_json
from tailrate.analysis.history.run_summary import Entry
from tailrate.analysis.pages import index as index_page
from tailrate.analysis.pages.index.page import MOST_LEVELS
from tailrate.analysis.pages.index.trends import trends
from tailrate.analysis.text import words
from tailrate.cli.main import main


def run_in(
    runs: Path, name: str, loads: Sequence[Load] | None = None, *, day: int = 0, page: bool = False, **options: Any
) -> dict[str, Any]:
    """A run with its report; `versions`, `hosts` and `scenario` go into the manifest."""
    described = {key: options.pop(key) for key in ("versions", "hosts", "scenario") if key in options}
    known: dict[str, Any] = {"slo": ["p99<50ms"], "poisson": True, "devices": [Waveform()]}
    folders.make_run(runs / name, two_variants() if loads is None else loads, **(known | options))
    run = analysis.load(runs / name)
    found = report_json.write(run)
    if page:
        (runs / name / "report.html").write_text("<!doctype html><title>report</title>")
    manifest = run.manifest
    manifest.started_ns = START_NS + day * DAY_NS
    manifest.versions, manifest.hosts = described.get("versions", {}), described.get("hosts", [])
    manifest.scenario |= described.get("scenario", {"name": "custom_cnn"})
    manifest.write(runs / name)
    return found


def shown(runs: Path) -> Page:
    path, _ = index_page.write(runs)
    return Page(path.read_text(encoding="utf-8"))


def row(page: Page, name: str) -> dict[str, str]:
    heads, *rows = [[text for _, text in cells] for cells in page.cells["runs"]]
    return next(found for found in (dict(zip(heads, cells, strict=True)) for cells in rows) if name in found["run"])


def embedded(runs: Path) -> dict[str, Any]:
    page = (runs / index_page.INDEX).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(page.split('id="embedded"')[1].split('application/json">')[1].split("<")[0])
    return found


def test_a_row_has_the_figures_of_the_report(tmp_path: Path) -> None:
    rising = [Load("m/eager", rate, queue(3.0), seconds=20) for rate in (50, 150, 400)]
    found = run_in(tmp_path, "r1", rising, day=1, page=True)
    run_in(tmp_path, "r0")
    page = shown(tmp_path)
    assert [cells[2][1] for cells in page.cells["runs"][1:]] == [  # newest first
        "custom_cnn rampr1report.htmlreport.json",
        "custom_cnn rampr0report.json",
    ]
    seen, limit = row(page, "r1"), found["capacity"][0]
    step = next(step for step in found["steps"] if round(step["offered_rps"], -1) == limit["low_rps"])
    assert limit["high_rps"] == 400
    assert seen["kept at"] == words.rate(limit["low_rps"])
    assert seen["P99 there"] == words.ms(step["p99_ms"])
    assert seen["J/request"] == words.significant(step["joules_per_request"])
    assert seen["verdict"] == words.VERDICTS[found["verdict"]]
    assert found["conclusion"].startswith(seen["conclusion"].rstrip("…"))
    assert seen["when"] == words.clock_time(START_NS + DAY_NS).removesuffix(" UTC")
    assert {"r1/report.html", "r1/report.json"} <= {found.get("href") for _, found in page.tags}


def test_what_is_embedded_is_the_report(tmp_path: Path) -> None:
    loads = [Load("m/eager", rate, failed=failed) for rate, failed in ((100, 0.0), (100, 0.0), (100, 0.0), (250, 0.3))]
    found = run_in(tmp_path, "r", loads, mode="steady")
    shown(tmp_path)
    (run,) = embedded(tmp_path)["runs"]
    assert [level[1] for level in run["levels"]] == [100, 250]
    middle = sorted(found["steps"][:3], key=lambda step: step["p99_ms"])[1]  # of three rounds
    keys = ("offered_rps", "achieved_rps", "p50_ms", "p99_ms", "p99_low_ms", "p99_high_ms", "joules_per_request")
    expected = [middle[key] for key in keys]
    assert run["levels"][0][3:10] == pytest.approx(expected, rel=1e-8)
    assert run["levels"][0][10:14] == [None, None, 3, 0]
    assert found["steps"][3]["p99_ms"] is None
    assert run["levels"][1][6] == "∞"
    assert run["levels"][1][13] == found["steps"][3]["errors"]


def test_what_cannot_be_read_is_listed_with_a_sentence(tmp_path: Path) -> None:
    for name in ("running", "aborted", "unreported", "schema", "torn", "list", "foreign"):
        run_in(tmp_path, name, [Load("m/eager", 20)])
    for name, status in (("running", "running"), ("aborted", "aborted"), ("unreported", "complete")):
        path = tmp_path / name / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"status": status}))
        (tmp_path / name / "report.json").unlink()
    path = tmp_path / "schema" / "report.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 7}))
    (tmp_path / "torn" / "report.json").write_text('{"schema": 1, "steps": [')
    (tmp_path / "list" / "run.json").write_text("[1]")
    (tmp_path / "foreign" / "report.json").write_text('{"schema": 1, "conclusion": "x", "verdict": "pass"}')
    (tmp_path / "notes").mkdir()
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "run.json").write_bytes(b"\xff\xfe{")
    (tmp_path / "file.txt").write_text("no folder")
    page = shown(tmp_path)
    assert len(page.cells["runs"]) == 1 + 9
    for name, state, said in (
        ("running", "running", "This run has not ended, or its load process was killed"),
        ("aborted", "aborted", "This run was aborted and has no report"),
        ("unreported", "no report yet", f"This run has no report; tailrate report {tmp_path / 'unreported'} writes"),
        ("schema", "unreadable", "report.json has schema 7, but this version reads schema 1."),
        ("torn", "unreadable", "report.json, line 1: not valid JSON"),
        ("list", "unreadable", "run.json holds no JSON object."),
        ("foreign", "unreadable", "run.json or report.json is not as tailrate writes it (KeyError: 'trust')."),
        ("notes", "unreadable", "This folder is not a run folder: it has no run.json."),
        ("bytes", "unreadable", "run.json cannot be read"),
    ):
        seen = row(page, name)
        assert seen["verdict"] == state
        assert seen["conclusion"].startswith(said)


ODD = (None, "x", "nan", [], {}, [None], -1, 1e999, float("nan"), 10**400, True, "\ud800", [{"role": []}])


def places(found: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in it that holds a value."""
    for key in range(len(found)) if isinstance(found, list) else list(found):
        yield found, key
        if isinstance(found[key], (dict, list)):
            yield from places(found[key])


def test_a_rate_is_kept_by_all_rounds_together_and_not_above_one_that_is_missed(tmp_path: Path) -> None:
    fast, slow = folders.constant(10), folders.constant(90)
    for name, loads in {
        "rounds": [Load("m/a", 20, fast, seconds=15, block=block) for block in range(4)],
        "late": [Load("m/a", 100, fast, seconds=20, late_ms=4)],
        "void": [Load("m/a", 100, slow, seconds=20), Load("m/a", 200, fast, seconds=20)],
    }.items():
        run_in(tmp_path, name, loads, mode="hold", poisson=False)
    seen = {name: row(shown(tmp_path), name)["kept at"] for name in ("rounds", "late", "void")}
    assert seen == {"rounds": "20/s", "late": "100/s", "void": words.ABSENT}
    path = tmp_path / "rounds" / "report.json"
    older = json.loads(path.read_text())
    del older["rates"]
    path.write_text(json.dumps(older))
    assert row(shown(tmp_path), "rounds")["kept at"] == words.ABSENT  # each was judged by itself


def test_an_interval_that_is_infinite_is_not_one_of_too_few_samples(tmp_path: Path) -> None:
    run_in(tmp_path, "failed", [Load("m/a", 80, failed=1)])
    shown(tmp_path)
    ((level,),) = [found["levels"] for found in embedded(tmp_path)["runs"]]
    assert level[5:9] == ["∞"] * 4  # P50, P99 and its interval


@pytest.mark.computes
@counts(1, 3)
@pytest.mark.parametrize("name", ["run.json", "report.json"])
def test_no_value_anywhere_stops_it(tmp_path: Path, name: str, seeds: int) -> None:
    hosts = [{"role": "server", "host": "a", "url": "http://a:8000"}]
    for run in ("other", "run"):
        run_in(tmp_path, run, [Load("m/eager", 20), Load("m/eager", 40)], hosts=hosts, versions={"torch": "2"})
    path = tmp_path / "run" / name
    rng, whole = random.Random(1), json.loads(path.read_text())
    for held, key in places(whole):
        before = held[key]
        for value in rng.sample(ODD, seeds):
            held[key] = value
            path.write_text(json.dumps(whole))
            assert index_page.write(tmp_path)[1] == 2, (key, value)
        held[key] = before


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    loads = [Load(f"m/{EVIL}", 20), Load(f"m/{EVIL}", 40)]
    folder = "a,b <i>'\"& #%"
    for day in range(2):
        run_in(tmp_path, f"{folder}{day}", loads, day=day, scenario={"name": EVIL}, versions={EVIL: f"{EVIL}{day}"})
    path = tmp_path / f"{folder}0" / "report.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"conclusion": EVIL, "reasons": [EVIL]}))
    page = shown(tmp_path)
    assert row(page, f"{folder}0")["conclusion"] == EVIL
    assert f"m/{EVIL}" in page.text("trends")
    assert not {"img", "i "} & {tag for tag, _ in page.tags}
    assert [found.get("type") for tag, found in page.tags if tag == "script"] == ["application/json", None]
    for tag, found in page.tags:
        assert not found.get("src"), tag
        link = str(found.get("href") or "#")
        assert link.startswith(("#", "data:,", "a%2Cb%20%3Ci%3E%27%22%26%20%23%25")), link


def points(runs: Path) -> dict[str, Any]:
    entries = [Entry.of(path) for path in runs.iterdir() if path.is_dir()]
    return {f"{trend.endpoint} {trend.objective}": trend for trend in trends(entries)}


def test_a_trend_joins_runs_of_one_objective_and_says_what_changed(tmp_path: Path) -> None:
    hosts = [{"role": "server", "host": "a", "url": "http://127.0.0.1:1"}]
    reports = []
    for day, rates in enumerate([(20, 40), (20, 40, 60), (20, 40)]):
        changed = {
            "versions": {"torch": "2.15" if day else "2.14", "git": f"c{day}"},
            "hosts": [hosts[0] | {"host": "b"}] if day == 2 else hosts,
        }
        loads = [Load("m/eager", rate, queue(3.0), seconds=20) for rate in rates]
        reports.append(run_in(tmp_path, f"r{day}", loads, day=day, seed=day + 1, **changed))
    run_in(tmp_path, "other", [Load("m/eager", 20)], day=3, slo=["p99<9ms"])
    (trend,) = points(tmp_path).values()
    assert (trend.endpoint, trend.objective, trend.asked) == ("m/eager", "p99<50ms", "40/s")
    assert [point.changed for point in trend.points] == [
        [],
        ["version torch 2.14 → 2.15"],
        ["host server host a → b"],
    ]
    for point, found in zip(trend.points, reports, strict=True):
        assert point.level.figures["p99_ms"] == found["steps"][1]["p99_ms"]
        assert point.kept.low_rps == found["capacity"][0]["low_rps"]
    page = shown(tmp_path)
    text = page.text("trends")
    assert "changed 2 times" in text
    assert "version torch 2.14 → 2.15" in text
    targets = [found["href"] for tag, found in page.tags if tag == "a" and found.get("data-tip")]
    assert targets == [f"r{day}/report.json" for day in range(3)]


def test_what_was_overloaded_is_no_common_rate(tmp_path: Path) -> None:
    for day in range(2):
        run_in(tmp_path, f"r{day}", [Load("m/eager", rate, queue(20.0), seconds=20) for rate in (10, 20, 90)], day=day)
    (trend,) = points(tmp_path).values()
    assert trend.asked == "20/s"


@pytest.mark.computes
def test_many_loads_are_thinned(tmp_path: Path) -> None:
    run_in(tmp_path, "r", [Load("m/eager", 20)])
    folder, count = tmp_path / "r", MOST_LEVELS + 1
    manifest, found = (json.loads((folder / name).read_text()) for name in ("run.json", "report.json"))
    manifest["scenario"]["steps"] = [
        {**manifest["scenario"]["steps"][0], "index": k, "rate": k + 1} for k in range(count)
    ]
    found["steps"] = [{**found["steps"][0], "index": k} for k in range(count)]
    for name, whole in (("run.json", manifest), ("report.json", found)):
        (folder / name).write_text(json.dumps(whole))
    path, _ = index_page.write(tmp_path)
    levels = embedded(tmp_path)["runs"][0]["levels"]
    assert len(levels) == MOST_LEVELS
    assert (levels[0][1], levels[-1][1]) == (1, count)
    assert path.read_text().count("L") < count


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    run_in(tmp_path, "r")
    first = index_page.write(tmp_path)[0].read_bytes()
    assert index_page.write(tmp_path)[0].read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.html", "r"]


# ---- the command


def invoked(*words: object) -> tuple[int, str]:
    found = CliRunner().invoke(main, ["report", *map(str, words)])
    return found.exit_code, found.output


def test_the_command_writes_the_index_and_a_report_keeps_it_up_to_date(tmp_path: Path) -> None:
    run_in(tmp_path / "runs", "r")
    index = tmp_path / "runs" / "index.html"
    assert invoked(tmp_path / "runs" / "r")[0] in (0, 1, 3)
    assert not index.exists()
    assert invoked("--index", tmp_path / "runs") == (0, f"1 run: {index}\n")
    run_in(tmp_path / "runs", "newcomer", [Load("m/eager", 20)])
    assert "newcomer" not in index.read_text()
    invoked(tmp_path / "runs" / "newcomer")
    assert "newcomer" in index.read_text()


def test_another_index_is_left_alone(tmp_path: Path) -> None:
    run_in(tmp_path, "r")
    index = tmp_path / "index.html"
    index.write_text("<h1>mine</h1>")
    invoked(tmp_path / "r")
    code, said = invoked("--index", tmp_path)
    assert code == 2
    assert said == f"tailrate: {index} was not written by tailrate report --index; move it away first\n"
    assert index.read_text() == "<h1>mine</h1>"


def test_misuse_is_one_sentence(tmp_path: Path) -> None:
    run_in(tmp_path / "runs", "r", [Load("m/eager", 20)])
    (tmp_path / "empty").mkdir()
    for words_, sentence in (
        (
            ("--index", tmp_path / "none"),
            f"{tmp_path / 'none'} is not a folder; give the folder that holds run folders",
        ),
        (
            ("--index", tmp_path / "empty"),
            f"{tmp_path / 'empty'} holds no run folder: none of its folders has a run.json",
        ),
        (
            ("--index", tmp_path / "runs" / "r"),
            f"{tmp_path / 'runs' / 'r'} is a run itself; give the folder that holds it",
        ),
        ((tmp_path / "runs" / "r", "--index", tmp_path / "runs"), "--index takes the folder that holds the runs"),
        (("--index", tmp_path / "runs", "--export", "junit"), "--index takes the folder that holds the runs"),
        ((), "report what? give a run folder, or --index with the folder that holds the runs"),
    ):
        code, said = invoked(*words_)
        assert code == 2
        assert said.startswith(f"tailrate: {sentence}")
        assert said.count("\n") == 1
