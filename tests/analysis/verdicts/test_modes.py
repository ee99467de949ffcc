"""What the analysis makes of steps that are no ramp: twins, closed loops, searches, self-checks, and the ledger."""

import json
from pathlib import Path
from typing import Any

import pytest
from folders import Load, constant, lognormal, make_run

from tailrate import analysis
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.pages.report.markdown import markdown
from tailrate.analysis.pages.report.page import html
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.steps.by_rate import beyond
from tailrate.analysis.steps.capacity import capacities
from tailrate.analysis.steps.variant_pairs import pairs
from tailrate.analysis.verdicts.ledger import ledger
from tailrate.analysis.verdicts.run import Run
from tailrate.analysis.verdicts.verdict import FAIL, INCONCLUSIVE, PASS, judge

SLO = ["p99<50ms"]


def changed(folder: Path, loads: list[Load], *steps: dict[str, Any], **more: Any) -> Run:
    """A run whose steps carry what the load side says beyond the contract."""
    make_run(folder, loads, **more)
    path = folder / "run.json"
    found = json.loads(path.read_text())
    for step, extra in zip(found["scenario"]["steps"], steps, strict=False):
        step.update(extra)
    path.write_text(json.dumps(found))
    return analysis.load(folder)


def shown(run: Run) -> str:
    """Page and Markdown, which must take whatever the report holds."""
    view = View.of(run, report_of(run))
    return str(html(view)) + markdown(view)


def test_twins_are_the_noise_and_no_round(tmp_path: Path) -> None:
    loads = [Load("m/eager", 200, lognormal(12)), Load("m/eager", 200, lognormal(12)), Load("m/compiled", 200)]
    run = changed(tmp_path / "run", loads, {}, {"twin": True}, {}, mode="ab")
    found = {(pair.a, pair.b): pair for pair in pairs(run)}
    assert set(found) == {("m/eager", "m/compiled"), ("m/eager", "m/eager")}
    assert found["m/eager", "m/compiled"].rounds == 1
    noise = found["m/eager", "m/eager"]
    assert noise.p99_ratio == pytest.approx(1, abs=0.3)
    assert noise.differs is False
    assert "noise: two equal steps of eager differ by" in shown(run)
    assert "two equal steps" not in report_of(run)["conclusion"]


def test_closed_loops_are_compared_at_equal_concurrency(tmp_path: Path) -> None:
    loads = [Load(f"m/{name}", rate, lognormal(ms)) for rate in (100, 200) for name, ms in (("eager", 12), ("b", 6))]
    levels = [{"rate": 0.0, "concurrency": level} for level in (4, 4, 8, 8)]
    run = changed(tmp_path / "run", loads, *levels, mode="closed")
    assert [(pair.concurrency, pair.rate) for pair in pairs(run)] == [(4, 0), (8, 0)]
    assert [step.asked for step in run.measured] == ["4 under way", "4 under way", "8 under way", "8 under way"]
    assert [step.rate for step in run.measured] == [100, 100, 200, 200]
    assert all("closed loop" in step.summary.reasons[0] for step in run.measured)
    assert capacities(run) == []
    text = shown(run)
    assert "8 under way" in text
    assert "At 8 under way, b is" in report_of(run)["conclusion"]


def knee(run: Run, **what: Any) -> Run:
    append_event(run.folder, "knee", endpoint="m/a", **what)
    return analysis.load(run.folder)


@pytest.mark.parametrize(
    ("slo", "found", "verdict"),
    [
        ("p99<50ms", {"low_rps": 150.0, "high_rps": 163.0, "reason": None}, PASS),
        ("p99<50ms,rate>=140", {"low_rps": 150.0, "high_rps": 163.0, "reason": None}, PASS),
        ("p99<50ms,rate>=155", {"low_rps": 150.0, "high_rps": 163.0, "reason": None}, INCONCLUSIVE),
        ("p99<50ms,rate>=170", {"low_rps": 150.0, "high_rps": 163.0, "reason": None}, INCONCLUSIVE),
        ("p99<50ms,rate>=200", {"low_rps": 150.0, "high_rps": 163.0, "reason": None}, FAIL),
        ("p99<50ms", {"low_rps": 150.0, "high_rps": None, "reason": "client-limited"}, PASS),
        ("p99<50ms,rate>=140", {"low_rps": 150.0, "high_rps": None, "reason": "client-limited"}, PASS),
        ("p99<50ms", {"low_rps": None, "high_rps": None, "reason": "the budget is spent"}, PASS),
    ],
)
def test_a_search_is_judged_by_its_probes(tmp_path: Path, slo: str, found: dict[str, Any], verdict: str) -> None:
    loads = [Load("m/a", 100, constant(10)), Load("m/a", 200, constant(90)), Load("m/a", 150, constant(40))]
    run = knee(analysis.load(make_run(tmp_path / "run", loads, mode="knee", slo=[slo]).folder), **found)
    assert judge(run).verdict == verdict, judge(run).reasons
    (row,) = capacities(run)
    assert (row.low_rps, row.high_rps) == (found["low_rps"], found["high_rps"])
    assert row.resolved is (found["reason"] is None)
    assert row.limited_by is None or not found["reason"] or row.limited_by == f"unresolved: {found['reason']}"
    assert shown(run)


def test_beyond_what_the_self_check_kept_nothing_is_trusted() -> None:
    kept = {"safe_rps": 100.0, "closed": False}
    assert beyond(None, 500, closed=False) == []
    assert beyond(kept, 109, closed=False) == []  # random arrivals may be a few more
    assert "100/s only" in beyond(kept, 111, closed=False)[0]
    assert beyond(kept, 500, closed=True) == []  # another kind of load was checked
    reached = {"safe_rps": 1000.0, "closed": True}
    assert beyond(reached, 600, closed=True) == []
    assert "no more than 1000/s" in beyond(reached, 800, closed=True)[0]


def test_the_ledger_has_every_arrival(tmp_path: Path) -> None:
    loads = [
        Load("m/a", 100, constant(10), settle_s=5),
        Load("m/a", 200, constant(10), failed=0.1, dropped=0.05, timed_out=0.02, late_ms=2.0),
    ]
    run = analysis.load(make_run(tmp_path / "run", loads).folder)
    one, two = ledger(run.measured)
    assert (one.scheduled, one.sent, one.ok) == (1000, 1000, 1000)  # settle time included
    assert two.scheduled == 2000 == two.sent + two.dropped
    assert two.sent == two.ok + two.refused + two.failed + two.timed_out + two.unreachable + two.lost
    assert min(two.refused, two.dropped, two.timed_out) > 0
    assert two.failed == 0
    assert two.late_p50_ms == pytest.approx(2, rel=0.01)
    text = shown(run)
    assert "What became of every arrival" in text
    assert ">1,000<" in text or ">1000<" in text
