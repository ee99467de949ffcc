"""Slices against pandas' own groupby over the rows, and the judge's answer to an objective of a slice."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from folders import START_NS, Load, constant, make_run, rewrite

from tailrate import analysis
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.judging.evidence import counts
from tailrate.analysis.pages.report.markdown import markdown
from tailrate.analysis.pages.report.page import html
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.records.objective import Slo, overall
from tailrate.analysis.stats.interval import interval
from tailrate.analysis.stats.sketch import SLICES, Sketch
from tailrate.analysis.verdicts.verdict import judge

LABELS = ("short", "short", "short", "long", None)


def folder(tmp_path: Path, *, long_ms: float = 80.0, slo: Any = (), mode: str = "hold", **more: Any) -> Path:
    """Two endpoints; every fifth arrival is long and takes `long_ms` and a few, the others 10."""
    loads = [Load(f"m/{name}", 100, constant(10), seconds=20, settle_s=2, **more) for name in ("a", "b")]
    written = make_run(tmp_path / "run", loads, labels=LABELS, slo=slo, mode=mode)
    rows = written.requests
    long = (rows["label"] == "long").to_numpy()
    slower = long_ms + np.random.default_rng(3).exponential(5, len(rows))
    done = rows["intended_ns"] + np.rint(np.where(long, slower, 10 + slower / 100) * 1e6).astype(np.int64)
    rows["done_ns"] = done.astype("Int64").where(rows["done_ns"].notna())
    rewrite(written.folder, rows)
    return written.folder


def grouped(run: Any) -> Any:
    """The same by pandas: failures as infinite, the settle time left out."""
    rows = run.requests()
    begins = {
        step["index"]: step["start_ns"] + round(step["settle_s"] * 1e9) for step in run.manifest.scenario["steps"]
    }
    rows = rows[rows["intended_ns"] >= rows["step"].map(begins).astype("int64")]
    rows["seen_ms"] = rows["latency_ms"].where(rows["ok"], math.inf)
    return rows.groupby(["step", "endpoint", "label"], observed=True)


def test_a_slice_is_what_a_groupby_finds(tmp_path: Path) -> None:
    run = analysis.load(folder(tmp_path, slo=["p99<50ms", "[long] p90<85ms"], failed=0.03, timed_out=0.02))
    found = run.slices.set_index(["index", "endpoint", "label"])
    by = grouped(run)
    assert len(found) == by.ngroups == 4
    for key, rows in by:
        mine, seen = found.loc[key], np.sort(rows["seen_ms"].to_numpy())
        assert (mine["n"], mine["ok"]) == (len(rows), int(rows["ok"].sum()))
        assert mine["errors"] == mine["n"] - mine["ok"] > 0
        for percent in (50, 99):
            assert mine[f"p{percent}_ms"] == np.quantile(seen, percent / 100, method="higher")
        limit = {"long": 85.0, "short": 50.0}[key[2]]
        assert mine["limit_ms"] == limit
        assert mine["goodput_rps"] == pytest.approx((seen <= limit).sum() / 18)
        assert mine["goodput_share"] == pytest.approx((seen <= limit).mean())


def test_the_interval_is_that_of_a_sketch_of_the_slice_alone(tmp_path: Path) -> None:
    run = analysis.load(folder(tmp_path))
    mine = run.slices.set_index(["index", "label"]).loc[0, "short"]
    step = run.measured[0]
    rows = grouped(run).get_group((0, "m/a", "short"))
    at = (rows["intended_ns"].to_numpy() - step.start_ns) // step.tally.grid.slice_ns
    assert at.max() < SLICES
    low, high = interval(Sketch.of(at, rows["seen_ms"].to_numpy()), 99) or (None, None)
    assert mine["p99_low_ms"] == pytest.approx(low, rel=0.01)
    assert mine["p99_high_ms"] == pytest.approx(high, rel=0.01)
    assert mine["p99_low_ms"] <= mine["p99_ms"] <= mine["p99_high_ms"]


def test_arrivals_without_a_label_are_in_no_slice_and_in_the_whole(tmp_path: Path) -> None:
    run = analysis.load(folder(tmp_path))
    assert run.slices["n"].sum() == 2 * 1800 * 4 // 5
    assert run.steps["n"].sum() == 2 * 1800


def test_an_objective_of_a_slice_is_judged_by_that_slice_alone(tmp_path: Path) -> None:
    """The long ones are a fifth: they break P90 of the whole, and keep what is asked of them."""
    keeps = analysis.load(folder(tmp_path / "keeps", slo=["[long] p90<150ms", "[short] p99<20ms"]))
    assert judge(keeps).verdict == "pass"
    misses = analysis.load(folder(tmp_path / "misses", slo=["p50<30ms", "[long] p90<60ms"]))
    verdict = judge(misses)
    assert verdict.verdict == "fail"
    assert "[long] p90<60ms is missed" in verdict.reasons[0]
    assert "of 360 arrivals" in verdict.reasons[0]
    assert misses.slices.set_index(["index", "label"]).loc[0]["slo"].to_dict() == {"long": False, "short": None}
    assert list(misses.steps["slo"]) == [False, False]


def test_the_judge_is_given_the_counts_of_the_slice(tmp_path: Path) -> None:
    """What a run of the long ones alone would show at the same instants."""
    slo = Slo.parse("[long] p90<85ms")
    run = analysis.load(folder(tmp_path, slo=[str(slo), "p99<50ms"], failed=0.04))
    step = run.measured[0]
    rows = grouped(run).get_group((0, "m/a", "long")).sort_values("intended_ns")
    at = (rows["intended_ns"].to_numpy() - step.start_ns) // step.tally.grid.slice_ns
    alone = Sketch.of(at, rows["seen_ms"].to_numpy(), [85.0, 50.0])
    assert step.windows[0].counts == counts(slo, alone, 18.0, lambda: 1.0)
    assert step.windows[1].counts[0].n == 1800


def test_more_that_is_late_in_a_slice_never_makes_it_pass(tmp_path: Path) -> None:
    order = {"pass": 0, "inconclusive": 1, "fail": 2}
    found = [
        order[judge(analysis.load(folder(tmp_path / str(ms), long_ms=ms, slo=["[long] p90<90ms"]))).verdict]
        for ms in (20.0, 60.0, 78.0, 79.0, 82.0, 95.0, 200.0)
    ]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, 2)


def test_a_slice_without_arrivals_cannot_be_said_to_keep_anything(tmp_path: Path) -> None:
    run = analysis.load(folder(tmp_path, slo=["[middle] p99<50ms"]))
    verdict = judge(run)
    assert verdict.verdict == "inconclusive"
    assert "[middle] p99<50ms cannot be said: no arrivals were recorded" in verdict.reasons[0]


def test_the_time_of_a_planned_fault_is_left_out_of_slices_too(tmp_path: Path) -> None:
    """The long ones are slow while the fault lasts, and the objective is held against the rest."""
    path = folder(tmp_path, slo=["[long] p90<150ms"])
    rows = analysis.load(path).requests(columns=["step", "intended_ns", "label", "done_ns"])
    whole = pd.read_parquet(path / "requests.parquet")
    struck = (rows["intended_ns"] >= START_NS + 8 * 10**9) & (rows["intended_ns"] < START_NS + 12 * 10**9)
    whole.loc[(struck & (rows["label"] == "long")).to_numpy(), "done_ns"] += 400_000_000
    rewrite(path, whole)
    assert judge(analysis.load(path)).verdict != "pass"
    start, end = START_NS + 8 * 10**9, START_NS + 12 * 10**9
    known = {"fault": "replica_killed", "target": "", "id": 0, "start_ns": start, "sentence": "done"}
    append_event(path, "fault", time_ns=start, **known, end_ns=None, phase="begin")
    append_event(path, "fault", time_ns=end, **known, end_ns=end, phase="end")
    assert 360 - 100 < analysis.load(path).calm[0].windows[0].counts[0].n < 360 - 70
    assert judge(analysis.load(path)).verdict == "pass"


def test_a_knee_and_the_charts_know_the_objectives_of_all_arrivals_alone(tmp_path: Path) -> None:
    slos = [Slo.parse("[long] p99<200ms"), Slo.parse("p99<50ms")]
    assert overall(slos) == slos[1:]
    run = analysis.load(folder(tmp_path, slo=["[long] p99<200ms", "p99<50ms"]))
    goodput = run.steps["goodput_rps"]
    rows = grouped(run).obj
    assert goodput[0] == pytest.approx((rows["seen_ms"][rows["step"] == 0] <= 50).sum() / 18)


def test_the_report_shows_slices_as_page_and_markdown(tmp_path: Path) -> None:
    run = analysis.load(folder(tmp_path, slo=["p99<50ms", "[long] p90<60ms"], failed=0.3))
    report = report_of(run)
    assert [row["label"] for row in report["slices"]] == ["long", "short"] * 2
    view = View.of(run, report)
    page, text = html(view), markdown(view)
    assert 'id="slices"' in page
    assert "rows of rows.csv, in order, which come again; slices by kind" in page
    assert "## By slice" in text
    row = next(line for line in text.splitlines() if line.startswith("| long | m/a"))
    assert [cell.strip() for cell in row.split("|")][7:8] == ["∞"]  # P99, as three of ten failed
    assert row.rstrip(" |").endswith("missed")
    assert "m/a at 100/s: \\[long\\] p90&lt;60ms is missed" in text


def test_a_run_without_labels_has_no_slices(tmp_path: Path) -> None:
    run = analysis.load(make_run(tmp_path / "run", [Load("m/a", 50)]).folder)
    assert len(run.slices) == 0
    assert list(run.slices.columns)[:3] == ["index", "endpoint", "label"]
    assert "By slice" not in html(View.of(run, report_of(run)))


def test_labels_are_not_asked_for_where_the_manifest_names_none(tmp_path: Path) -> None:
    path = folder(tmp_path)
    manifest = Manifest.read(path)
    del manifest.scenario["data"]
    manifest.write(path)
    assert len(analysis.load(path).slices) == 0
