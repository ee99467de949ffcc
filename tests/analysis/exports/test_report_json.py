import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from folders import Load, Waveform, constant, lognormal, make_run, queue

from tailrate import analysis
from tailrate.analysis.exports.report_json import report_of, write
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.steps.step_summary import COLUMNS

FAST, SLOW = constant(10), constant(90)
SLO = ["p99<50ms"]


def _report(folder: Path, loads: list[Load], **more: Any) -> dict[str, Any]:
    return report_of(analysis.load(make_run(folder, loads, **more).folder))


def test_the_report_has_the_keys_of_the_contract_and_is_plain_json(tmp_path: Path) -> None:
    loads = [Load("m/eager", 100, lognormal(20), failed=0.02), Load("m/compiled", 100, lognormal(10))]
    report = _report(tmp_path / "run", loads, slo=SLO, devices=[Waveform()])
    assert list(report) == [
        "schema", "run", "verdict", "reasons", "conclusion", "steps", "pairs", "capacity", "rates", "breakdown",
        "curves", "batches", "answers", "ledger", "risks", "slices", "faults", "metrics", "soak", "trust",
    ]  # fmt: skip
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert (report["schema"], report["run"]) == (1, "run")
    assert [list(row) for row in report["steps"]] == [[*COLUMNS, "infinite"]] * 2
    assert [row["endpoint"] for row in report["capacity"]] == ["m/eager", "m/compiled"]
    assert len(report["pairs"]) == 1


def test_infinity_and_the_unknown_are_null_and_told_apart(tmp_path: Path) -> None:
    (row,) = _report(tmp_path / "run", [Load("m/a", 100, FAST, failed=0.02)])["steps"]
    assert row["p99_ms"] is None
    assert row["p90_ms"] == 10
    assert row["util_pct"] is None
    assert row["ok_p99_ms"] == 10
    assert isinstance(row["n"], int)
    assert row["slo"] is None
    assert row["trusted"] is True
    assert row["infinite"] == ["p99_ms", "p99_high_ms", "service_p99_ms"]


def test_write_leaves_both_files_as_the_frames_are(tmp_path: Path) -> None:
    loads = [Load("m/a", 100, FAST, failed=0.02), Load("m/a", 200, queue(20)), Load("m/a", 30, FAST)]
    run = analysis.load(make_run(tmp_path / "run", loads, slo=SLO).folder)
    report = write(run)
    assert json.loads((run.folder / "report.json").read_text(encoding="utf-8")) == report
    with (run.folder / "steps.csv").open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    assert list(rows[0]) == list(COLUMNS)
    for row, (_, truth) in zip(rows, run.steps.iterrows(), strict=True):
        assert float(row["p99_ms"]) == truth["p99_ms"]
        assert row["util_pct"] == ""
        assert row["slo"] == ("" if truth["slo"] is None else str(truth["slo"]))
        assert row["reasons"] == "; ".join(truth["reasons"])
    assert rows[0]["p99_ms"] == "inf"
    assert [row["slo"] for row in rows] == ["", "False", ""]
    assert {path.name for path in run.folder.iterdir()} == {
        "run.json", "events.jsonl", "requests.parquet", "devices.parquet", "report.json", "steps.csv",
    } - ({"events.jsonl"} if not (run.folder / "events.jsonl").exists() else set())  # fmt: skip


def test_trust_says_what_the_figures_rest_on(tmp_path: Path) -> None:
    loads = [
        Load("m/a", 100, FAST, settle_s=2, dropped=0.01),
        Load("m/a", 200, FAST, late_ms=3),
        Load("m/a", 100, queue(20)),
        Load("m/a", 30, FAST),
    ]
    written = make_run(tmp_path / "run", loads, devices=[Waveform()], offset_ns=1_700_000_000, error_ns=2_000_000)
    append_event(written.folder, "load_cpu", worker=0, pct=31.5)
    append_event(written.folder, "rows", table="requests", file="requests-0000.arrows", rows=4305)
    trust = report_of(analysis.load(written.folder))["trust"]
    drops = int((written.requests["status"] == "dropped").sum())
    assert trust["status"] == "complete"
    assert trust["lateness"] == {"p99_ms": 3, "max_ms": 3, "late": 2000}
    assert trust["ledger"] == {
        "scheduled": 4300, "recorded": 4300, "ok": 4300 - drops, "dropped": drops, "timed_out": 0, "lost": 0,
    }  # fmt: skip
    assert trust["missing_rows"] == {"requests": 5, "devices": 0, "metrics": 0}
    assert trust["load_cpu_pct"] == 31.5
    assert trust["clock"] == [{"host": "gpu-host", "offset_ms": 1700, "error_ms": 2, "drift_ppm": 0}]
    assert trust["devices"][0]["period_ms"] == pytest.approx(100)
    assert trust["join"]["with_device"] == 4300 - drops
    assert trust["settle_s"] == [0, 2]
    assert trust["untrusted_steps"] == [0, 1]
    assert trust["overloaded_steps"] == [2]
    assert trust["small_steps"] == [3]


def test_an_empty_run_has_a_report(tmp_path: Path) -> None:
    report = _report(tmp_path / "run", [Load("m/a", 100)], status="aborted", stopped_s=-1, slo=SLO)
    assert report["verdict"] == "inconclusive"
    assert report["trust"]["lateness"] == {"p99_ms": None, "max_ms": None, "late": 0}
    assert report["steps"][0]["n"] == 0
    assert report["steps"][0]["offered_rps"] is None
    assert (
        report["conclusion"]
        == "This run cannot say what the endpoints can take: the run was aborted after 0 of 1 steps."
    )


@pytest.mark.parametrize(
    "more",
    [
        {"devices": [Waveform()]},
        {"foreign": True},
        {"mode": "mixed", "devices": [Waveform()]},
        {"status": "aborted", "stopped_s": 13, "devices": [Waveform()]},
        {"sealed": False, "poisson": True},
    ],
)
@pytest.mark.parametrize("slo", [[], SLO, ["p99<50ms, errors<1%", "p50<20ms, goodput>90%, rate>=100"]])
def test_every_kind_of_run_has_a_report(tmp_path: Path, more: dict[str, Any], slo: list[str]) -> None:
    at_s = 0 if more.get("mode") == "mixed" else None
    loads = [
        Load("m/eager", 100, FAST, at_s=at_s),
        Load("m/compiled", 100, FAST, at_s=at_s, failed=1),
        Load("m/eager", 200, queue(8), at_s=at_s and 10),
        Load("m/compiled", 200, SLOW, at_s=at_s and 10, dropped=0.5),
    ]
    report = _report(tmp_path / "run", loads, slo=slo, **more)
    assert report["verdict"] in (("pass", "fail", "inconclusive") if slo else ("measured", "inconclusive"))
    assert report["reasons"]
    assert report["conclusion"].endswith(".")
    assert not any(isinstance(value, float) and math.isnan(value) for row in report["steps"] for value in row.values())
    assert [row["n"] > 0 for row in report["steps"]][:2] == [True, True]
