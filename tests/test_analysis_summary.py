import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from folders import Load, Waveform, constant, lognormal, make_run, queue

import analysis
from analysis.records import append_event
from analysis.steps import COLUMNS
from analysis.summary import report_of, write
from analysis.words import significant

FAST, SLOW = constant(10), constant(90)
SLO = ["p99<50ms"]


def _report(folder: Path, loads: list[Load], **more: Any) -> dict[str, Any]:
    return report_of(analysis.load(make_run(folder, loads, **more).folder))


def test_the_report_has_the_keys_of_the_contract_and_is_plain_json(tmp_path: Path) -> None:
    loads = [Load("m/eager", 100, lognormal(20), failed=0.02), Load("m/compiled", 100, lognormal(10))]
    report = _report(tmp_path / "run", loads, slo=SLO, devices=[Waveform()])
    assert list(report) == [
        "schema", "run", "verdict", "reasons", "conclusion", "steps", "pairs", "capacity", "breakdown",
        "curves", "batches", "ledger", "trust",
    ]  # fmt: skip
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert (report["schema"], report["run"]) == (1, "run")
    assert [list(row) for row in report["steps"]] == [list(COLUMNS)] * 2
    assert [row["endpoint"] for row in report["capacity"]] == ["m/eager", "m/compiled"]
    assert len(report["pairs"]) == 1


def test_infinity_and_the_unknown_are_null(tmp_path: Path) -> None:
    (row,) = _report(tmp_path / "run", [Load("m/a", 100, FAST, failed=0.02)])["steps"]
    assert row["p99_ms"] is None
    assert row["p90_ms"] == 10
    assert row["util_pct"] is None
    assert row["ok_p99_ms"] == 10
    assert isinstance(row["n"], int)
    assert row["slo"] is None
    assert row["trusted"] is True


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
    assert [row["slo"] for row in rows] == ["False", "False", ""]
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
    assert trust["missing_rows"] == {"requests": 5, "devices": 0}
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


# ---- the conclusion, word by word


def _ramp(endpoint: str, *latencies: Any) -> list[Load]:
    return [Load(endpoint, 100.0 * (number + 1), latency) for number, latency in enumerate(latencies)]


def test_conclusion_of_a_ramp_with_two_variants(tmp_path: Path) -> None:
    loads = [*_ramp("m/eager", FAST, SLOW), *_ramp("m/compiled", constant(5), constant(5), FAST, SLOW)]
    report = _report(tmp_path / "run", loads, slo=SLO, devices=[Waveform("cpu", util_pct=95)])
    assert report["verdict"] == "pass"
    why = "limited by host CPU (95 % busy), waiting for the replica (4.95 ms at {}/s, 45.0 ms at {}/s)"
    assert report["conclusion"] == (
        f"m/eager sustains 100 requests/s at p99<50ms and misses it at 200, {why.format(100, 200)}; "
        f"m/compiled sustains 300 requests/s at p99<50ms and misses it at 400, {why.format(300, 400)}. "
        "m/compiled takes 1.5 to 4 times the rate of m/eager. "
        "For m at 200 requests/s, compiled is 18× faster at P99 than eager (18–18)."
    )


def test_conclusion_of_a_miss(tmp_path: Path) -> None:
    report = _report(tmp_path / "run", _ramp("m/a", SLOW, SLOW), slo=SLO)
    assert report["verdict"] == "fail"
    assert report["conclusion"] == "m/a misses p99<50ms from 100 requests/s on."


def test_conclusion_of_an_end_not_reached(tmp_path: Path) -> None:
    report = _report(tmp_path / "run", _ramp("m/a", FAST, FAST), slo=SLO)
    assert report["conclusion"] == "m/a sustains at least 200 requests/s at p99<50ms."


def test_conclusion_of_a_run_that_cannot_say(tmp_path: Path) -> None:
    report = _report(tmp_path / "run", [Load("m/a", 20, FAST)], slo=SLO)
    assert report["verdict"] == "inconclusive"
    assert report["conclusion"] == (
        "This run cannot say whether the objective is met: m/a cannot be judged "
        "(200 arrivals are too few to say whether P99 meets the objective, 459 are needed)."
    )
    late = _report(tmp_path / "late", [Load("m/a", 100, FAST, late_ms=3), Load("m/b", 100, FAST)])
    assert late["conclusion"] == (
        "This run cannot say what the endpoints can take: no step of m/a can be trusted "
        "(the load generator was late: P99 3 ms, where 1 ms would do no harm). "
        "No objective was set. m/b answered 100 requests/s with a P99 of 10 ms."
    )


def test_conclusion_of_held_rates(tmp_path: Path) -> None:
    passed = _report(tmp_path / "a", [Load("m/a", 100, FAST)], slo=SLO, mode="hold")
    assert passed["conclusion"] == "Every step met p99<50ms. m/a answered 100 requests/s with a P99 of 10 ms."
    failed = _report(tmp_path / "b", [Load("m/a", 100, SLOW)], slo=SLO, mode="hold")
    assert failed["conclusion"] == (
        "The objective p99<50ms was missed: step 0, m/a at 100/s, misses the objective: "
        "P99 is 90 ms, the objective 50 ms. m/a answered 100 requests/s with a P99 of 90 ms."
    )


def test_conclusion_without_an_objective(tmp_path: Path) -> None:
    loads = [*_ramp("m/a", FAST, FAST), Load("m/a", 300, queue(20)), Load("m/b", 300, queue(20))]
    report = _report(tmp_path / "run", loads)
    assert report["verdict"] == "pass"
    assert report["conclusion"] == (
        "No objective was set. m/a answered 200 requests/s with a P99 of 10 ms; "
        "m/b kept up with no rate that was tried."
    )


def test_conclusion_of_an_aborted_run(tmp_path: Path) -> None:
    report = _report(tmp_path / "run", _ramp("m/a", FAST, FAST), slo=SLO, status="aborted", stopped_s=15)
    assert (
        report["conclusion"]
        == "This run cannot say what the endpoints can take: the run was aborted after 1 of 2 steps."
    )


def test_conclusion_of_variants_that_do_not_differ_and_of_the_slower(tmp_path: Path) -> None:
    same = _report(tmp_path / "a", [Load("m/eager", 300), Load("m/compiled", 300)])
    (pair,) = same["pairs"]
    assert same["conclusion"].endswith(
        "For m at 300 requests/s, no difference shown at P99 "
        f"({significant(pair['ratio_low'], 2)}–{significant(pair['ratio_high'], 2)}); "
        f"one under {significant(100 * pair['smallest_visible'], 2)} % would not have shown."
    )
    slower = _report(tmp_path / "b", [Load("m/eager", 300, constant(10)), Load("m/compiled", 300, constant(21))])
    assert slower["conclusion"].endswith(
        "For m at 300 requests/s, compiled is 2.1× slower at P99 than eager (2.1–2.1)."
    )
    small = _report(tmp_path / "c", [Load("m/eager", 15, constant(21)), Load("m/compiled", 15, constant(10))])
    assert small["conclusion"].endswith(
        f"For m at 15 requests/s, compiled seems 2.1× faster at P99 than eager, but {small['pairs'][0]['note']}."
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
    assert report["verdict"] in ("pass", "fail", "inconclusive")
    assert report["reasons"]
    assert report["conclusion"].endswith(".")
    assert not any(isinstance(value, float) and math.isnan(value) for row in report["steps"] for value in row.values())
    assert [row["n"] > 0 for row in report["steps"]][:2] == [True, True]
