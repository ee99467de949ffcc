import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from folders import Load, Waveform, constant, make_run, queue, rewrite
from soaks import Truth
from soaks import write as soak_of
from test_fault_effects import changed, fail, fault

from tailrate import analysis
from tailrate.analysis.exports.forms import github, junit, loadgen, openmetrics, otlp
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.pages.report.markdown import markdown
from tailrate.analysis.pages.report.page import html
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.records.infinities import restored
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.text import words
from tailrate.analysis.verdicts.verdict import EXIT_CODES

TEXTS = {
    "junit": junit.FORM, "github": github.SUMMARY, "openmetrics": openmetrics.FORM, "loadgen": loadgen.FORM,
    "otlp": otlp.FILE,
}  # fmt: skip

FAST, SLOW = constant(10), constant(90)
SLO = ["p99<50ms"]
RAMP = [Load("m/eager", 100, FAST), Load("m/eager", 200, queue(8)), Load("m/compiled", 100, constant(5))]
HOSTILE = 'm|x/<b>*a*"\\'

RUNS: dict[str, tuple[list[Load], dict[str, Any]]] = {
    "ramp": (RAMP, {"slo": SLO, "devices": [Waveform()]}),
    "no objective": (RAMP, {}),
    "missed": ([Load("m/a", 100, SLOW), Load("m/a", 120, FAST)], {"slo": SLO, "mode": "hold"}),
    "missed from the lowest rate on": ([Load("m/a", 100, SLOW), Load("m/b", 100, FAST)], {"slo": SLO}),
    "rate not reached": (RAMP, {"slo": ["p99<50ms, rate>=200"]}),
    "failures": ([Load("m/a", 100, failed=1), Load("m/a", 200, failed=0.02, dropped=0.1)], {"slo": SLO}),
    "late": ([Load("m/a", 100, SLOW, late_ms=30)], {"slo": SLO, "mode": "hold"}),
    "few": ([Load("m/a", 20, FAST)], {"slo": SLO}),
    "foreign": (RAMP, {"slo": SLO, "foreign": True}),
    "aborted": (RAMP, {"slo": SLO, "status": "aborted", "stopped_s": 13}),
    "nothing at all": (RAMP, {"slo": SLO, "status": "aborted", "stopped_s": -1}),
    "empty window": ([Load("m/a", 100, FAST), Load("m/a", 100, settle_s=10)], {"slo": SLO, "mode": "hold"}),
    "hostile": ([Load(HOSTILE, 100, FAST, failed=0.1)], {"slo": SLO, "devices": [Waveform()]}),
}


def _made(tmp_path: Path, kind: str = "ramp") -> tuple[dict[str, Any], Manifest]:
    loads, more = RUNS[kind]
    run = analysis.load(make_run(tmp_path / "run", loads, **more).folder)
    return json.loads(json.dumps(report_of(run))), run.manifest


def _closed(tmp_path: Path, mode: str, concurrency: int) -> tuple[dict[str, Any], Manifest]:
    written = make_run(tmp_path / "run", [Load("m/a", 100, FAST)], mode=mode)
    written.manifest.scenario["steps"][0] |= {"rate": 0.0, "concurrency": concurrency}
    written.manifest.write(written.folder)
    run = analysis.load(written.folder)
    return report_of(run), run.manifest


def test_every_export_has_a_file_of_its_own_and_needs_no_pandas() -> None:
    assert {name: form.name for name, form in TEXTS.items()} == {
        "junit": "junit.xml", "github": "summary.md", "openmetrics": "metrics.txt", "loadgen": "summary.txt",
        "otlp": "metrics.otlp.json",
    }  # fmt: skip
    said = "import sys, tailrate.analysis.exports.forms; sys.exit('pandas' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", said], check=True, cwd=Path(analysis.__file__).parents[1])


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("name", TEXTS)
def test_every_kind_of_run_can_be_written_in_every_form(tmp_path: Path, kind: str, name: str) -> None:
    report, manifest = _made(tmp_path, kind)
    before = json.dumps(report)
    text = TEXTS[name].text(report, manifest)
    assert text.endswith("\n")
    assert not re.search(r"\bnan\b|\bNaN\b|\bNone\b", text)
    assert json.dumps(report) == before


@pytest.mark.parametrize("name", TEXTS)
def test_a_manifest_may_say_little(tmp_path: Path, name: str) -> None:
    report, manifest = _made(tmp_path)
    manifest.scenario = {"steps": [{**step, "settle_s": None} for step in manifest.scenario["steps"]]}
    text = TEXTS[name].text(report, manifest)
    assert "None" not in text
    assert "100/s" in text or 'rate="100"' in text or '{"key":"rate","value":{"stringValue":"100"}}' in text


# ---- JUnit


def _suite(report: dict[str, Any], manifest: Manifest) -> ElementTree.Element:
    text = junit.junit(report, manifest)
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>')
    (suite,) = ElementTree.fromstring(text.encode())
    return suite


def _cases(suite: ElementTree.Element) -> dict[tuple[str, str], tuple[str, str]]:
    """(classname, name) → (what became of it, message)."""
    return {
        (case.get("classname", ""), case.get("name", "")): next(
            ((out.tag, out.get("message", "")) for out in case), ("passed", "")
        )
        for case in suite.iter("testcase")
    }


@pytest.mark.parametrize("kind", RUNS)
def test_junit_has_the_form_that_the_schemas_ask_for(tmp_path: Path, kind: str) -> None:
    report, manifest = _made(tmp_path, kind)
    suite = _suite(report, manifest)
    outcomes = [out for out, _ in _cases(suite).values()]
    assert len(outcomes) == len(report["steps"]) + 2
    assert [child.tag for child in suite] == [
        "properties", *["testcase"] * len(outcomes), "system-out", "system-err",
    ]  # fmt: skip
    counts = {"tests": len(outcomes), "failures": outcomes.count("failure")}
    counts |= {"errors": outcomes.count("error"), "skipped": outcomes.count("skipped")}
    assert {name: int(suite.get(name, "")) for name in counts} == counts
    for name in ("name", "package", "id", "hostname"):
        assert suite.get(name)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp", ""))
    for case in suite.iter("testcase"):
        assert set(case.keys()) == {"classname", "name", "time"}
        assert re.fullmatch(r"\d+\.\d{3}", case.get("time", ""))
        assert len(case) <= 1
        assert all(out.get("type") and out.get("message") for out in case)
    assert float(suite.get("time", "")) == pytest.approx(sum(float(c.get("time", "")) for c in suite.iter("testcase")))


def _unhealed(folder: Path, slo: list[str]) -> Path:
    run = make_run(folder, [Load("m/a", 100, FAST, seconds=180)], mode="hold", slo=slo)
    changed(run, lambda rows, s: fail(rows, s >= 60))
    fault(run, 60, 60.1)
    return run.folder


def _leaking(folder: Path, slo: list[str]) -> Path:
    return soak_of(folder, Truth(hours=2, memory=lambda at_h: 1 + 0.2 * (at_h >= 1), slo=tuple(slo)))


FORMS = {
    # the exit code, GitHub's first words, the mark of the page
    "pass": (0, "## ✅ pass", "✓"),
    "fail": (1, "## ❌ fail", "✕"),
    "inconclusive": (3, "## ⚠️ cannot say", "?"),
    "measured": (0, "## 📏 measured", "•"),
}
"""What forms say of a verdict; JUnit follows the exit code, with a failure for 1 and an error for 3."""
TOLD: dict[str, tuple[str, Callable[[Path], Path]]] = {
    kind: (verdict, lambda folder, kind=kind: make_run(folder, RUNS[kind][0], **RUNS[kind][1]).folder)
    for kind, verdict in {
        "ramp": "pass", "no objective": "measured", "missed": "fail", "missed from the lowest rate on": "fail",
        "failures": "fail", "late": "inconclusive", "few": "inconclusive", "aborted": "inconclusive",
    }.items()
} | {
    "a fault that does not heal": ("fail", lambda folder: _unhealed(folder, SLO)),
    "the same without an objective": ("fail", lambda folder: _unhealed(folder, [])),
    "a soak that leaks": ("fail", lambda folder: _leaking(folder, ["p99<500ms"])),
    "a soak that leaks, without an objective": ("fail", lambda folder: _leaking(folder, [])),
}  # fmt: skip


@pytest.mark.parametrize("kind", TOLD)
def test_all_forms_say_the_same_of_a_verdict(tmp_path: Path, kind: str) -> None:
    wanted, made = TOLD[kind]
    run = analysis.load(made(tmp_path / "run"))
    report = json.loads(json.dumps(report_of(run)))
    assert report["verdict"] == wanted
    code, begins, mark = FORMS[wanted]
    assert EXIT_CODES[wanted] == code
    suite = _suite(report, run.manifest)
    failures, errors = (int(suite.get(name, "")) for name in ("failures", "errors"))
    assert {0: not failures and not errors, 1: failures and not errors, 3: errors}[code]
    assert github.github(report, run.manifest).startswith(begins)
    told = re.findall(r'tailrate_verdict\{tailrate_verdict="(\w+)"\} 1', openmetrics.openmetrics(report, run.manifest))
    assert told == [wanted]
    # of a step, so that one of a run that failed by another step may be valid
    valid = "Result is : VALID" in loadgen.loadgen(report, run.manifest)
    assert not valid or code == 0 or any(step["slo"] is False for step in report["steps"])
    view = View.of(run, report)
    page_said = html(view)
    assert f'class="verdict {wanted}"' in page_said
    assert f'<span aria-hidden="true">{mark}</span> {words.VERDICTS[wanted]}' in page_said
    assert f"Verdict: **{words.VERDICTS[wanted]}**" in markdown(view)


def test_junit_of_a_missed_objective(tmp_path: Path) -> None:
    report, manifest = _made(tmp_path, "missed")
    manifest.hosts = [{"role": "server", "host": "gpu"}, {"role": "load", "host": "laptop"}]
    suite = _suite(report, manifest)
    assert (suite.get("name"), suite.get("hostname"), suite.get("time")) == ("run", "laptop", "20.000")
    why = "p99<50ms is missed: 100 % of 1,000 arrivals took longer than 50 ms or failed, where 1 % may"
    assert _cases(suite) == {
        ("m/a", "step 0 at 100/s"): ("failure", why),
        ("m/a", "step 1 at 120/s"): ("passed", ""),
        ("run", "the run can be trusted"): ("passed", ""),
        ("run", "the objective is met"): ("failure", f"m/a: at 100/s {why}"),
    }
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert (properties["verdict"], properties["objective"]) == ("fail", "p99<50ms")
    assert float(properties["step 0 m/a p99_ms"] or "") == report["steps"][0]["p99_ms"] == 90
    assert suite.findtext("system-out") == report["conclusion"]


def test_junit_of_steps_that_cannot_be_trusted_or_judged(tmp_path: Path) -> None:
    late = _cases(_suite(*_made(tmp_path / "late", "late")))
    outcome, message = late["m/a", "step 0 at 100/s"]
    assert outcome == "skipped"
    assert message.startswith("cannot be trusted: the load generator was late: P99 30 ms")
    assert late["run", "the run can be trusted"][0] == "error"
    assert "the load generator was late" in late["run", "the run can be trusted"][1]
    few = _cases(_suite(*_made(tmp_path / "few", "few")))
    outcome, message = few["m/a", "step 0 at 20/s"]
    assert outcome == "skipped"
    assert message.startswith("p99<50ms cannot be said: 0 % of 200 arrivals took longer")
    assert few["run", "the objective is met"][0] == "skipped"


def test_junit_does_not_fail_a_step_past_the_knee_of_a_run_that_passes(tmp_path: Path) -> None:
    report, manifest = _made(tmp_path)
    assert (report["verdict"], report["steps"][1]["slo"]) == ("pass", False)
    outcome, message = _cases(_suite(report, manifest))["m/eager", "step 1 at 200/s"]
    assert outcome == "skipped"
    assert "past what the endpoint takes" in message
    assert "the queue grew" in message


def test_junit_of_an_aborted_run_counts_the_time_that_it_had(tmp_path: Path) -> None:
    suite = _suite(*_made(tmp_path, "aborted"))
    assert [case.get("time") for case in suite.iter("testcase")] == ["10.000", "3.000", "0.000", "0.000", "0.000"]
    cases = _cases(suite)
    assert cases["m/compiled", "step 2 at 100/s"][0] == "skipped"
    assert cases["run", "the run can be trusted"] == ("error", "the run was aborted after 1 of 3 steps")


def test_junit_of_a_run_without_an_objective(tmp_path: Path) -> None:
    cases = _cases(_suite(*_made(tmp_path, "no objective")))
    assert [out for out, _ in cases.values()] == ["passed"] * 4 + ["skipped"]
    assert cases["run", "the objective is met"] == ("skipped", "no objective was set")


def test_junit_holds_what_xml_cannot(tmp_path: Path) -> None:
    report, manifest = _made(tmp_path)
    report["steps"][0]["endpoint"] = "m/\x00\x1b[31m<&\"'\ufffe\ud800]]>\U0001f600"
    report["steps"][0] |= {"trusted": False, "reasons": ["one\ntwo\x0b", "<three> & \u2028four"]}
    report["run"] = "a\x01b"
    suite = _suite(report, manifest)
    assert suite.get("name") == "a\ufffdb"
    (message,) = (out[1] for (name, _), out in _cases(suite).items() if name.startswith("m/\ufffd"))
    assert message == "cannot be trusted: one two\ufffd; <three> & four"
    assert next(name for name, _ in _cases(suite)) == "m/\ufffd\ufffd[31m<&\"'\ufffd\ufffd]]>\U0001f600"


def test_a_closed_loop_is_named_by_what_was_under_way(tmp_path: Path) -> None:
    report, manifest = _closed(tmp_path, "closed", 16)
    assert ("m/a", "step 0 at 16 under way") in _cases(_suite(report, manifest))
    assert "| 0 | m/a | 16 under way |" in github.github(report, manifest)
    assert 'endpoint="m/a",step="0",concurrency="16"' in openmetrics.openmetrics(report, manifest)


# ---- GitHub's step summary


def _tables(text: str) -> dict[str, list[list[str]]]:
    """Heading → rows of cells, the line under the heads left out."""
    found = {}
    for part in text.split("### ")[1:]:
        lines = [line for line in part.splitlines() if line.startswith("|")]
        cells = [re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1] for line in lines]
        assert len({len(row) for row in cells}) <= 1, part
        found[part.splitlines()[0]] = [[cell.strip() for cell in row] for row in cells if set(row) != {" --- "}]
    return found


@pytest.mark.parametrize("kind", RUNS)
def test_github_begins_with_the_verdict_and_has_every_step(tmp_path: Path, kind: str) -> None:
    report, manifest = _made(tmp_path, kind)
    text = github.github(report, manifest)
    symbol = {"pass": "✅ pass", "fail": "❌ fail", "inconclusive": "⚠️ cannot say", "measured": "📏 measured"}[
        report["verdict"]
    ]
    assert text.splitlines()[0] == f"## {symbol}: load test of synthetic"
    tables = _tables(text)
    assert len(tables["Steps"]) == len(report["steps"]) + 1
    assert len(tables.get("Capacity", [[]])) == len(report["capacity"]) + 1
    assert len(tables.get("One variant against another", [[]])) == len(report["pairs"]) + 1


def test_github_in_full(tmp_path: Path) -> None:
    report, manifest = _made(tmp_path)
    text = github.github(report, manifest)
    assert text.splitlines()[2].startswith("On one GPU, m/compiled sustains at least 100 requests/s at P99 ≤ 50 ms")
    tables = _tables(text)
    assert tables["Steps"] == [
        ["step", "endpoint", "rate", "achieved, /s", "P50, ms", "P99, ms", "errors", "objective", "trusted"],
        ["0", "m/eager", "100/s", "99.9", "10", "10 (10–10)", "0", "met", "yes"],
        ["1", "m/eager", "200/s", "125", "3,008", "5,948", "0", "missed", "yes"],
        ["2", "m/compiled", "100/s", "100", "5", "5 (5–5)", "0", "met", "yes"],
    ]
    assert tables["One variant against another"][1][:3] == ["m/eager", "m/compiled", "100/s"]
    assert tables["Capacity"][1][:4] == ["m/eager", "p99&lt;50ms", "100/s", "200/s"]
    assert tables["Capacity"][2][3] == "–"
    assert "- m/eager, step 1 at 200/s: overloaded: the queue grew by 75 requests/s" in text


def test_github_says_infinite_and_absent(tmp_path: Path) -> None:
    rows = _tables(github.github(*_made(tmp_path / "a", "failures")))["Steps"]
    assert rows[1][3:7] == ["0", "∞", "∞ (∞)", "1,000"]
    rows = _tables(github.github(*_made(tmp_path / "b", "empty window")))["Steps"]
    assert rows[2][3:] == ["–", "–", "–", "0", "–", "no"]


def test_foreign_text_takes_no_effect_on_github(tmp_path: Path) -> None:
    report, manifest = _made(tmp_path, "hostile")
    manifest.scenario["name"] = "<script>|"
    report["reasons"].append("line\n| 1 | 2 |\n# [link](http://x) `code` _a_")
    text = github.github(report, manifest)
    steps = _tables(text)["Steps"]
    assert len(steps[1]) == 9
    assert steps[1][1] == r'm\|x/&lt;b&gt;\*a\*"' + r"\\"
    assert text.splitlines()[0].endswith(r"&lt;script&gt;\|")
    assert "<" not in text
    assert r"- line \| 1 \| 2 \| \# \[link\](http://x) \`code\` \_a\_" in text


@pytest.mark.parametrize("name", ["m/a", "m/" + "é" * 300])
def test_github_stays_under_its_limit_and_counts_what_it_left_out(tmp_path: Path, name: str) -> None:
    report, manifest = _made(tmp_path)
    row = report["steps"][0] | {"endpoint": name, "reasons": ["late"]}
    report["steps"] = [row | {"index": index} for index in range(10_000)]
    report["conclusion"] = "&" * 100_000
    text = github.github(report, manifest)
    assert len(text.encode()) < 1024 * 1024
    tables = _tables(text)
    bullets = [line for line in text.splitlines() if line.startswith("- ")]
    assert len(tables["Steps"]) > 300
    assert len(tables["Capacity"]) == 3
    shown = len(tables["Steps"]) - 1 + len(bullets)
    left = 20_000 + len(report["reasons"]) - shown
    assert text.endswith(f"\n{left:,} rows were left out, because GitHub shows no more than 1 MiB.\n")


# ---- OpenMetrics


def _samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    found = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def _of(text: str, name: str, **labels: str) -> list[float]:
    """The values of the samples that have these labels, among others."""
    wanted = set(labels.items())
    return [value for (found, own), value in _samples(text).items() if found == f"tailrate_{name}" and wanted <= own]


@pytest.mark.parametrize("kind", RUNS)
def test_openmetrics_can_be_parsed(tmp_path: Path, kind: str) -> None:
    report, manifest = _made(tmp_path, kind)
    text = openmetrics.openmetrics(report, manifest)
    assert text.endswith("\n# EOF\n")
    assert not any(math.isnan(value) for value in _samples(text).values())
    assert _of(text, "verdict", tailrate_verdict=report["verdict"]) == [1]
    assert sum(_of(text, "verdict")) == 1
    for family in re.findall(r"^# TYPE (\S+) gauge$", text, re.MULTILINE):
        unit = family.rpartition("_")[2]
        has = re.search(rf"^# UNIT {family} {unit}$", text, re.MULTILINE)
        assert bool(has) == (unit in ("seconds", "bytes", "joules", "watts", "celsius", "hertz", "ratio"))


def test_openmetrics_has_the_figures_of_the_report_in_base_units(tmp_path: Path) -> None:
    report, manifest = _made(tmp_path)
    text = openmetrics.openmetrics(report, manifest)
    for row, rate in zip(report["steps"], ("100", "200", "100"), strict=True):
        at = {"endpoint": row["endpoint"], "step": str(row["index"]), "rate": rate}
        truth = {
            ("step_latency_seconds", "quantile", "0.5"): row["p50_ms"] / 1e3,
            ("step_latency_seconds", "quantile", "0.99"): row["p99_ms"] / 1e3,
            ("step_latency_seconds", "quantile", "0.95"): row["p95_ms"] / 1e3,
            ("step_service_seconds", "quantile", "0.99"): row["service_p99_ms"] / 1e3,
            ("step_requests", "outcome", "ok"): row["ok"],
            ("step_requests_per_second", "kind", "achieved"): row["achieved_rps"],
            ("step_request_energy_joules", "kind", "gross"): row["joules_per_request"],
            ("step_device_use_ratio", "kind", "mean"): 0.9,
        }
        for (name, label, value), figure in truth.items():
            assert _of(text, name, **at, **{label: value}) == [pytest.approx(figure)], name
        assert _of(text, "step_compute_mean_seconds", **at) == [pytest.approx(row["compute_mean_ms"] / 1e3)]
        assert _of(text, "step_device_memory_bytes", **at) == [row["mem_peak_bytes"]]
        assert _of(text, "step_device_clock_hertz", **at) == [1.41e9]
        assert _of(text, "step_objective_met", **at) == [row["slo"]]
        assert sum(_of(text, "ledger_requests", step=at["step"])) == row["n"]
    (pair,) = [pair for pair in report["pairs"] if pair["rate"] == 100]
    assert _of(text, "pair_latency_ratio", a="m/eager", quantile="0.99") == [pytest.approx(pair["p99_ratio"])]
    kept, missed = ({"endpoint": "m/eager", "objective": "p99<50ms", "kind": kind} for kind in ("kept", "missed"))
    assert _of(text, "capacity_requests_per_second", **kept) == [100]
    assert _of(text, "capacity_requests_per_second", **missed) == [200]
    assert _of(text, "capacity_requests_per_second", endpoint="m/compiled", kind="missed") == []
    assert _of(text, "run_info", run="run", status="complete", mode="ramp") == [1]


def test_openmetrics_counts_each_arrival_once(tmp_path: Path) -> None:
    report, manifest = _made(tmp_path, "failures")
    text = openmetrics.openmetrics(report, manifest)
    for row in report["steps"]:
        at = {"step": str(row["index"])}
        assert sum(_of(text, "step_requests", **at)) == row["n"]
        assert _of(text, "step_requests", outcome="dropped", **at) == [row["dropped"]]
        assert _of(text, "step_requests", outcome="failed", **at) == [row["errors"] - row["dropped"]]


def test_openmetrics_leaves_out_the_unknown_and_keeps_infinity(tmp_path: Path) -> None:
    report, manifest = _made(tmp_path / "a", "failures")
    text = openmetrics.openmetrics(report, manifest)
    assert report["steps"][0]["p50_ms"] is None
    assert _of(text, "step_latency_seconds", step="0") == [math.inf] * 4  # no P99.9: too few arrivals
    assert _of(text, "step_service_seconds", step="0") == [math.inf]
    assert _of(text, "step_ok_latency_seconds", step="0") == []
    assert "joules" not in text
    empty = openmetrics.openmetrics(*_made(tmp_path / "b", "empty window"))
    assert _of(empty, "step_latency_seconds", step="0", quantile="0.99") == [0.01]
    assert _of(empty, "step_latency_seconds", step="1") == []
    assert _of(empty, "step_objective_met", step="1") == []
    assert _of(empty, "step_trusted", step="1") == [0]


def test_openmetrics_escapes_labels(tmp_path: Path) -> None:
    report, manifest = _made(tmp_path, "hostile")
    assert _of(openmetrics.openmetrics(report, manifest), "step_trusted", endpoint=HOSTILE) == [1]
    report["steps"][0]["endpoint"] = 'two\nlines\\n"}'
    assert _of(openmetrics.openmetrics(report, manifest), "step_trusted", endpoint='two lines\\n"}') == [1]


# ---- in the manner of LoadGen


def _summaries(text: str) -> list[dict[str, str]]:
    """One mapping per step, from what stands before ` : ` to what stands after it."""
    parts = re.split(r"^tailrate summary of ", text, flags=re.MULTILINE)[1:]
    return [dict(re.findall(r"^ *(.*?) : (.*)$", part, re.MULTILINE)) for part in parts]


def test_loadgen_of_a_ramp(tmp_path: Path) -> None:
    report, manifest = _made(tmp_path)
    text = loadgen.loadgen(report, manifest)
    assert text.startswith("A summary by tailrate")
    assert "no LoadGen ran, and this is no MLPerf result" in text.splitlines()[0]
    met, missed, other = _summaries(text)
    assert met | {"seed": "1"} == {
        "SUT name": "m/eager",
        "Scenario": "Server",
        "Target samples per second": "100.00",
        "Scheduled samples per second": "100.00",
        "Completed samples per second": "99.90",
        "Result is": "VALID",
        "Performance constraints satisfied": "Yes",
        "Min queries satisfied by early stopping": "Yes (1000, needed 459)",
        "Load generator trusted": "Yes",
        "Run can be trusted": "Yes",
        "* 1": report["steps"][0]["reasons"][0],
        "Mean (of successes) latency (ns)": "10000000",
        **{f"{percent} percentile latency (ns)": "10000000" for percent in ("50.00", "90.00", "95.00", "99.00")},
        "99.90 percentile latency (ns)": "unknown",  # a thousand do not carry it
        "target_latency (ns)": "50000000 (P99)",
        "seed": "1",
        "seconds": "10",
    }
    assert (missed["Result is"], missed["Performance constraints satisfied"]) == ("INVALID", "NO")
    assert missed["99.00 percentile latency (ns)"] == "5948000000"
    assert (other["SUT name"], other["Result is"]) == ("m/compiled", "VALID")


@pytest.mark.parametrize(
    ("kind", "line", "said"),
    [
        ("few", "Min queries satisfied by early stopping", "NO (200, needed 459)"),
        ("few", "Performance constraints satisfied", "cannot be said"),
        ("late", "Load generator trusted", "NO"),
        ("aborted", "Run can be trusted", "NO"),
        ("nothing at all", "Min queries satisfied by early stopping", "NO (0, needed unknown)"),
        ("failures", "99.00 percentile latency (ns)", "infinite"),
        ("failures", "Mean (of successes) latency (ns)", "unknown"),
    ],
)
def test_loadgen_is_invalid_for_each_reason(tmp_path: Path, kind: str, line: str, said: str) -> None:
    summary = _summaries(loadgen.loadgen(*_made(tmp_path, kind)))[0]
    assert (summary["Result is"], summary[line]) == ("INVALID", said)


def test_loadgen_without_an_objective_and_in_a_closed_loop(tmp_path: Path) -> None:
    summary = _summaries(loadgen.loadgen(*_made(tmp_path / "open", "no objective")))[0]
    assert (summary["Result is"], summary["Performance constraints satisfied"]) == ("VALID", "none were set")
    assert summary["target_latency (ns)"] == "none"
    for mode, concurrency, scenario in (
        ("single", 1, "SingleStream"),
        ("offline", 64, "Offline"),
        ("closed", 16, "a closed loop, which LoadGen does not have"),
    ):
        (summary,) = _summaries(loadgen.loadgen(*_closed(tmp_path / mode, mode, concurrency)))
        assert summary["Scenario"] == scenario
        assert summary["Target samples per second"] == f"{concurrency} under way"


def test_loadgen_shows_the_latencies_that_the_report_has(tmp_path: Path) -> None:
    report, manifest = _made(tmp_path)
    report["steps"][0] |= {"min_ms": 9.5, "max_ms": 12.0, "p97_ms": None, "infinite": ["p97_ms"]}
    summary = _summaries(loadgen.loadgen(report, manifest))[0]
    assert summary["Min latency (ns)"] == "9500000"
    assert summary["Max latency (ns)"] == "12000000"
    assert summary["97.00 percentile latency (ns)"] == "infinite"


def test_a_p999_that_the_sample_does_not_carry_is_absent_and_not_infinite(tmp_path: Path) -> None:
    few = [Load("m/a", 100, FAST, failed=0.01)]
    many = [Load("m/a", 500, FAST, failed=0.01)]
    for name, loads, given in (("few", few, 0), ("many", many, 1)):
        run = analysis.load(make_run(tmp_path / name, loads).folder)
        text = openmetrics.openmetrics(report_of(run), run.manifest)
        assert len(re.findall(r'step_latency_seconds\{[^}]*quantile="0.999"\} \+Inf', text)) == given


# ---- what all rounds of a rate say together


def test_rounds_that_keep_it_together_pass_in_every_form(tmp_path: Path) -> None:
    """Four of three hundred, where P99 takes 459."""
    rounds = [Load("m/a", 20, FAST, seconds=15, block=block) for block in range(4)]
    run = analysis.load(make_run(tmp_path / "run", rounds, slo=SLO, mode="hold").folder)
    report = report_of(run)
    assert [row["slo"] for row in report["steps"]] == [None] * 4
    assert [(row["kept"], row["sustained"], row["steps"]) for row in report["rates"]] == [(True, True, [0, 1, 2, 3])]
    assert {out for out, _ in _cases(_suite(report, run.manifest)).values()} == {"passed"}
    (summary, *_) = _summaries(loadgen.loadgen(report, run.manifest))
    assert summary["Result is"] == "VALID"
    assert summary["Min queries satisfied by early stopping"] == "Yes (1200, needed 459)"
    assert summary["* 1"].startswith("p99<50ms is kept: 0 % of 1,200 arrivals")
    assert [row[7] for row in _tables(github.github(report, run.manifest))["Steps"][1:]] == ["met"] * 4


def test_what_was_sent_late_and_kept_all_the_same_passes(tmp_path: Path) -> None:
    run = analysis.load(
        make_run(tmp_path / "run", [Load("m/a", 100, FAST, seconds=20, late_ms=4)], slo=SLO, mode="hold").folder
    )
    report = report_of(run)
    assert (report["verdict"], report["steps"][0]["trusted"]) == ("pass", False)
    assert report["conclusion"].endswith("every step met P99 ≤ 50 ms: m/a answered 100 requests/s with a P99 of 10 ms.")
    assert _cases(_suite(report, run.manifest))["m/a", "step 0 at 100/s"][0] == "passed"
    assert _summaries(loadgen.loadgen(report, run.manifest))[0]["Result is"] == "VALID"


def test_a_rate_that_is_kept_above_one_that_is_missed_is_not_sustained(tmp_path: Path) -> None:
    loads = [Load("m/a", 100, SLOW), Load("m/a", 200, FAST), Load("m/a", 50, FAST)]
    for mode in ("hold", "ramp"):
        run = analysis.load(make_run(tmp_path / mode, loads, slo=[*SLO, "errors<1%"], mode=mode).folder)
        found = {row["rate"]: (row["kept"], row["sustained"]) for row in report_of(run)["rates"]}
        assert found == {50: (True, True), 100: (False, False), 200: (True, False)}


# ---- infinity


def test_an_interval_that_failures_make_infinite_is_so_in_every_form(tmp_path: Path) -> None:
    run = analysis.load(make_run(tmp_path / "run", [Load("m/a", 80, failed=1)], slo=SLO).folder)
    report = json.loads(json.dumps(report_of(run), allow_nan=False))
    (row,) = report["steps"]
    assert {row[key] for key in ("p99_ms", "p99_low_ms", "p99_high_ms")} == {None}
    properties = {p.get("name"): p.get("value") for p in _suite(report, run.manifest).iter("property")}
    assert {properties[f"step 0 m/a {key}"] for key in ("p99_ms", "p99_low_ms", "p99_high_ms")} == {"infinite"}
    text = openmetrics.openmetrics(report, run.manifest)
    assert _of(text, "step_latency_p99_bound_seconds") == [math.inf] * 2
    assert html(View.of(run, report)).count('data-value="Infinity">∞</td>') >= 3


def test_a_service_that_nobody_timed_is_unknown_whatever_failed(tmp_path: Path) -> None:
    made = make_run(tmp_path / "run", [Load("m/a", 50, lambda rng, at_s: np.full(len(at_s), 21.0))])
    rows = made.requests.copy()
    rows.loc[3, ["status", "error"]] = "503"
    rows.loc[7, "sent_ns"] = None
    rewrite(made.folder, rows)
    (row,) = map(restored, report_of(analysis.load(made.folder))["steps"])
    assert (row["p99_ms"], row["service_p99_ms"]) == (21, None)
