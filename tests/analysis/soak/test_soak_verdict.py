"""Whole soaks with a known truth: what is found with its start and size, what is not, the verdict and the words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from chromium import CHROMIUM, findings, tabbed
from folders import GPU, START_NS, Floats, Load, make_run, rewrite
from often import at_most, counts
from soaks import Truth, curve, write

from tailrate import analysis
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.pages.report import write as write_page
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.soak.findings import Finding, _in_its_direction
from tailrate.analysis.soak.periodic_stalls import smallest, stalls
from tailrate.analysis.soak.series import cells, loads
from tailrate.analysis.soak.soak_verdict import SoakResult, Visible, _question, combine_verdicts, soak
from tailrate.analysis.verdicts.verdict import EXIT_CODES, judge

pytestmark = pytest.mark.computes

HOUR_NS = 3600 * 10**9
SCHEMA = json.loads((Path(analysis.__file__).parent / "exports" / "report.schema.json").read_text(encoding="utf-8"))
GOLDEN = (
    "Over 2.0 hours m/a answered 4.05 requests/s with a P99 of 35.8\u00a0ms: P99 of m/a rose by 30 % (27–34) at "
    "1:00:00, from 31.8 ms to 41.4 ms, when cpu taken 4 was injected; memory of GPU-11111111 grows by 3.00 %/h "
    "(2.98–3.03), from 20.0 GiB to 21.2 GiB."
)


def after(hour: float, factor: float) -> Callable[[Any], Any]:
    return lambda at_h: np.where(at_h >= hour, factor, 1.0)


def soaked(folder: Path) -> SoakResult:
    found = soak(analysis.load(folder))
    assert found is not None
    return found


def only(found: SoakResult, kind: str, series: str) -> Finding:
    (row,) = [row for row in found.findings if (row.kind, row.series) == (kind, series)]
    return row


def hours(row: Finding) -> float:
    return (row.start_ns - START_NS) / HOUR_NS


def test_a_clean_soak_has_no_finding_and_passes(tmp_path: Path) -> None:
    found = soaked(write(tmp_path / "run", Truth()))
    assert (found.findings, found.verdict, found.reasons) == ((), "pass", ())
    assert [(row.series, row.subject) for row in found.visible] == [("p99_ms", "m/a"), ("memory_bytes", GPU)]
    assert found.visible[0].slope_pct_h is not None
    assert found.visible[0].slope_pct_h < 5
    assert found.sentence.startswith("Over 6.0 hours m/a answered 4.0")
    assert "nothing drifted, jumped or stalled (P99 rising by" in found.sentence
    assert [row.role for row in found.processes] == ["load 0", "conductor"]
    assert found.processes[0].open_files_most == 40


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3))])
def test_a_jump_of_p99_is_found_with_what_was_beside_it(tmp_path: Path, seed: int) -> None:
    folder = write(tmp_path / "run", Truth(latency=after(3.2, 1.15)), seed)
    append_event(folder, "replica_lost", time_ns=START_NS + round(3.2 * HOUR_NS), replica="r-7")
    found = soaked(folder)
    row = only(found, "step", "p99_ms")
    assert abs(hours(row) - 3.2) < 0.1
    assert row.low is not None
    assert row.high is not None
    assert row.low < row.size < row.high
    assert row.size == pytest.approx(15, abs=3)
    assert row.p is not None
    assert row.p < 0.001
    assert row.beside[0] == "replica lost r-7"
    assert (row.fails, found.verdict) == (True, "fail")
    assert f"{row.sentence}, when replica lost r-7" in found.sentence


def test_a_leak_of_one_percent_by_hour_is_found_with_its_start(tmp_path: Path) -> None:
    truth = Truth(memory=lambda at_h: 1 + 0.01 * np.maximum(0.0, at_h - 2), limits={"memory_pct_h": 0.9})
    found = soaked(write(tmp_path / "run", truth))
    (row,) = found.findings
    assert (row.kind, row.series, row.subject, row.unit) == ("trend", "memory_bytes", GPU, "%/h")
    assert row.size == pytest.approx(1.0, rel=0.03)
    assert hours(row) == pytest.approx(2.0, abs=0.1)
    assert (found.verdict, found.reasons) == ("fail", (row.sentence,))
    assert row.sentence.startswith("memory of GPU-11111111 grows by 1.0")
    allowed = Truth(memory=truth.memory, limits={"memory_pct_h": 1.5})
    found = soaked(write(tmp_path / "allowed", allowed))
    assert (len(found.findings), found.findings[0].fails, found.verdict) == (1, False, "pass")


@pytest.mark.parametrize(
    "edges", [[1.2, 2.9, 4.6], *(pytest.param(one, marks=pytest.mark.long) for one in ([3.0], [2.0, 4.0], [0.5, 5.5]))]
)
def test_memory_that_grows_in_stairs_is_a_leak(tmp_path: Path, edges: list[float]) -> None:
    def stairs(at_h: Floats) -> Floats:
        return np.asarray(1 + 0.3 * np.sum([at_h >= edge for edge in edges], axis=0))

    found = soaked(write(tmp_path / "run", Truth(memory=stairs)))
    assert found.verdict == "fail"
    assert {row.series for row in found.findings if row.fails} == {"memory_bytes"}
    grew = found.looked.grown["memory_bytes", GPU]
    assert grew.by / grew.begin == pytest.approx(0.3 * len(edges), rel=0.02)


def test_memory_that_comes_back_is_none(tmp_path: Path) -> None:
    found = soaked(write(tmp_path / "run", Truth(memory=lambda h: np.where((h >= 2) & (h < 4), 1.3, 1.0))))
    assert found.verdict == "pass"
    (row,) = found.visible[1:]
    assert row.growth_pct_h is not None
    assert row.growth_pct_h < 0.5


def test_p99_that_grows_by_no_straight_line_is_a_drift(tmp_path: Path) -> None:
    """Threefold in eight hours; its logarithm bends, and noise that remembers can look so."""
    folder = write(tmp_path / "run", Truth(hours=8.0, latency=lambda h: 1 + 0.29 * h), seed=4)
    found = soaked(folder)
    assert found.verdict == "fail"
    assert "P99 of m/a gr" in found.reasons[0]


def test_an_improvement_answers_nothing_about_a_worsening(tmp_path: Path) -> None:
    limits = {"p99_step_pct": 1.0}
    flat = soaked(write(tmp_path / "flat", Truth(hours=3.0, limits=limits)))
    fell = soaked(write(tmp_path / "fell", Truth(hours=3.0, limits=limits, latency=after(1.5, 0.7))))
    assert [flat.verdict, fell.verdict] == ["inconclusive", "inconclusive"]
    assert only(fell, "step", "p99_ms").size == pytest.approx(-30, abs=3)


def test_the_end_of_better_hours_is_a_rise(tmp_path: Path) -> None:
    found = soaked(write(tmp_path / "run", Truth(latency=lambda h: np.where((h >= 2) & (h < 4), 0.6, 1.0))))
    row = only(found, "spell", "p99_ms")
    assert (row.size < 0, row.fails, found.verdict) == (True, True, "fail")


def test_what_may_be_chance_is_no_pass(tmp_path: Path) -> None:
    """P99 is 40 % lower for hours, and too much was looked at to be sure of it."""
    found = soaked(write(tmp_path / "run", Truth(latency=lambda h: np.where((h >= 0.7) & (h < 3), 0.6, 1.0))))
    assert not [row for row in found.findings if row.series == "p99_ms"]
    assert found.verdict == "inconclusive"
    assert found.reasons[0].startswith("this soak cannot say whether P99 of m/a was 39")
    assert found.reasons[0].endswith("that may be chance")


@pytest.mark.parametrize(
    ("size", "low", "high", "said"),
    [
        (48.2, 46.4, 49.6, ("48.2", " (46.4–49.6)")),
        (-30.2, -31.9, -28.8, ("30.2", " (28.8–31.9)")),
        (2.0, -41.0, 46.0, ("0", " (−40 to 50)")),
        (-2.0, -46.0, 41.0, ("0", " (−40 to 50)")),
        (-100.0, -100.0, -100.0, ("100", "")),
    ],
)
def test_an_interval_is_said_in_the_direction_of_its_size(
    size: float, low: float, high: float, said: tuple[str, str]
) -> None:
    row = Finding("step", "p99_ms", "m/a", 0, None, size, "%", low, high, 0.01, None, (), "")
    value, between = _in_its_direction(row)
    assert (value, between) == said
    ends = [float(end.replace("−", "-")) for end in re.findall(r"−?[\d.]+", between)]
    assert not ends or ends[0] <= float(value) <= ends[1]


@pytest.mark.parametrize(
    ("gone", "verdict"),
    [(range(6, 39), "inconclusive"), pytest.param(range(6, 8), "pass", marks=pytest.mark.long)],
)
def test_hours_are_those_that_were_measured(tmp_path: Path, gone: range, verdict: str) -> None:
    folder = write(tmp_path / "run", Truth(hours=8.0))
    run = analysis.load(folder)
    rows, manifest = run.requests(), run.manifest
    steps = manifest.scenario["steps"]
    rewrite(folder, rows[~rows["step"].isin(gone)])
    manifest.scenario["steps"] = [step for step in steps if step["index"] not in gone]
    manifest.write(folder)
    start, end = steps[gone[0]]["start_ns"], steps[gone[-1]]["end_ns"]
    append_event(folder, "gap", start_ns=start, end_ns=end, scheduled={"m/a": 1})
    found = soaked(folder)
    assert found.hours == pytest.approx(8 - len(gone) / 6, abs=0.02)
    assert found.verdict == verdict
    assert found.sentence.startswith(f"Over {8 - len(gone) / 6:.1f} of 8.0 hours m/a answered ")
    said = " ".join(found.reasons)
    told = "nothing was measured for 5.5 hours, which is 69 % of the soak, where 10 % may be" in said
    assert told == (verdict == "inconclusive")


def test_a_gap_inside_a_chapter_is_no_hour(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", Truth(hours=2.0))
    at = START_NS + 3000 * 10**9
    append_event(folder, "gap", start_ns=at, end_ns=at + 1200 * 10**9, scheduled={"m/a": 1})
    found = soaked(folder)
    assert found.hours == pytest.approx(2 - 1 / 3, abs=0.02)
    assert found.reasons[0].startswith(
        "nothing was measured for 20 minutes, which is 17 % of the soak, where 10 % may be"
    )


def test_a_stall_each_minute_is_found_with_its_start(tmp_path: Path) -> None:
    truth = Truth(hours=3.0, stall_ms=200.0, stall_from_h=1.0, limits={"stall_ms": 50.0})
    found = soaked(write(tmp_path / "run", truth))
    row = only(found, "stall", "latency_ms")
    assert (row.fails, found.verdict) == (True, "fail")
    assert (row.period_s, row.end_ns) == (60.0, None)
    assert row.size == pytest.approx(200, rel=0.1)
    assert (row.start_ns - START_NS) / 1e9 == pytest.approx(3607, abs=61)
    assert (row.start_ns - START_NS) / 1e9 % 60 == pytest.approx(7, abs=1.5)


def test_heat_from_the_third_hour_is_found_with_its_share(tmp_path: Path) -> None:
    found = soaked(write(tmp_path / "run", Truth(throttled_from_h=3.0, latency=after(3.0, 1.2))))
    row = only(found, "throttle", "throttled_pct")
    assert (row.subject, row.p, hours(row)) == (GPU, None, pytest.approx(3.0, abs=0.02))
    assert row.size == pytest.approx(33.3, abs=1)
    assert "(heat (software))" in row.sentence
    jump = only(found, "step", "p99_ms")
    assert row.sentence == jump.beside[0]
    assert "clock of GPU-11111111 fell by 24" in " ".join(jump.beside)


def test_compilation_is_a_finding_as_long_as_it_lasts(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", Truth(hours=1.0))
    for minute, count in enumerate([2, 2, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 7]):
        append_event(folder, "server", time_ns=START_NS + minute * 60 * 10**9, endpoint="m/a", recompiles=count)
    rows = [row for row in soaked(folder).findings if row.kind == "recompile"]
    assert [row.size for row in rows] == [2, 3]
    assert [(row.start_ns - START_NS) // (60 * 10**9) for row in rows] == [2, 11]


@counts(1, 8)
@pytest.mark.parametrize("carry", [0.5, 0.8])
def test_false_alarms_are_rare(tmp_path: Path, carry: float, seeds: int) -> None:
    """The whole figure: tests/bench/soak_findings.py."""
    wrong = [seed for seed in range(seeds) if soaked(write(tmp_path / str(seed), Truth(carry=carry), seed)).findings]
    assert len(wrong) <= at_most(0.05, seeds)


# ---- the verdict


def test_one_that_is_too_short_for_what_was_asked_names_what_it_could_have_shown_and_how_long_it_takes(
    tmp_path: Path,
) -> None:
    truth = Truth(hours=0.5, deviation=0.1, limits={"p99_trend_pct_h": 5.0})
    found = soaked(write(tmp_path / "run", truth))
    assert (found.verdict, found.limits.asked, len(found.reasons)) == ("inconclusive", ("p99_trend_pct_h",), 1)
    said = re.fullmatch(
        r"this soak cannot say whether P99 of m/a has a rise of more than 5 %/h: the smallest that it could have shown "
        r"is one of ([\d.]+) %/h; about ([\d.]+) hours would do",
        found.reasons[0],
    )
    assert said is not None
    seen, hours = map(float, said.groups())
    assert found.visible[0].slope_pct_h == pytest.approx(seen, rel=0.05)
    assert hours == pytest.approx(0.5 * (seen / 5) ** (2 / 3), rel=0.05)
    run = analysis.load(tmp_path / "run")
    report = report_of(run)
    assert report["verdict"] == "inconclusive"
    assert EXIT_CODES[report["verdict"]] == 3
    assert found.reasons[0] in report["reasons"]


def test_nobody_is_told_to_run_a_soak_for_years() -> None:
    """Where all failed from the middle on, P99 has no figures there."""
    seen = Visible("p99_ms", "m/a", 4.8e8, None)
    assert _question(seen, "trend", 5.0, 0.5) == (
        "whether P99 of m/a has a rise of more than 5 %/h: too little was seen of it to say"
    )
    shown = _question(replace(seen, slope_pct_h=40.0), "trend", 5.0, 0.5)
    assert shown.endswith("the smallest that it could have shown is one of 40 %/h; about 2.0 hours would do")
    shown = _question(replace(seen, slope_pct_h=40.0), "trend", 1e-5, 0.5)
    assert shown.endswith("the smallest that it could have shown is one of 40 %/h")


def test_what_nobody_asked_for_holds_as_far_as_a_short_soak_sees(tmp_path: Path) -> None:
    found = soaked(write(tmp_path / "run", Truth(hours=1 / 3, rate=20.0)))
    assert (found.verdict, found.limits.asked) == ("pass", ())
    (said,) = found.reasons
    assert said.startswith(
        "too short to say whether P99 of m/a has a rise of more than 5 %/h: the smallest that it could"
    )
    seen = found.visible[0]
    assert seen.step_pct is not None
    assert seen.step_pct < 10
    assert seen.stall_s == 60
    assert seen.stall_ms is not None
    assert seen.stall_ms < 20
    leak = soaked(write(tmp_path / "leak", Truth(hours=1 / 3, rate=20.0, memory=lambda at_h: 1 + 0.02 * at_h)))
    assert (leak.verdict, only(leak, "trend", "memory_bytes").fails) == ("fail", True)


def test_what_others_take_of_a_device_is_told_and_not_held_against_the_server(tmp_path: Path) -> None:
    def leaks(at_h: Floats) -> Floats:
        return np.asarray(1 + 0.03 * at_h)

    others = soaked(write(tmp_path / "others", Truth(hours=1 / 3, rate=20.0, memory=leaks, own=np.ones_like)))
    assert others.verdict == "pass"
    assert not only(others, "trend", "memory_bytes").fails
    assert [row.series for row in others.visible] == ["p99_ms", "own_memory_bytes"]
    mine = soaked(write(tmp_path / "mine", Truth(hours=1 / 3, rate=20.0, own=leaks)))
    assert (mine.verdict, only(mine, "trend", "own_memory_bytes").fails) == ("fail", True)


def test_one_that_sees_nothing_cannot_say_anything(tmp_path: Path) -> None:
    found = soaked(write(tmp_path / "run", Truth(hours=1 / 3, rate=0.5)))
    assert found.verdict == "inconclusive"
    assert found.reasons[0] == (
        "this soak cannot say whether P99 of m/a has a rise of more than 5 %/h: too few of its cells have "
        "arrivals enough, so a higher rate is needed"
    )


@pytest.mark.parametrize("hours", [1 / 3, 3.0])
def test_the_smallest_stall_that_is_said_to_show_does(hours: float) -> None:
    rng = np.random.default_rng(1)
    at_s = np.arange(int(36000 * hours)) / 10 + 0.05
    peak = 20 * np.exp(0.3 * rng.normal(size=len(at_s)))
    visible = smallest(peak)
    assert visible is not None
    size_ms, period_s = visible
    held = ((at_s - 0.3) % period_s) < 1
    assert stalls(peak) == []
    assert [one.period_s for one in stalls(peak + size_ms * held)] == [period_s]
    assert smallest(peak[:100]) is None


# ---- a curve over the whole soak


def daily(step: float = 1.0) -> Truth:
    """Two periods of a sine; P99 of a queue that is half full in the mean, from 1:50 on by so much higher."""

    def latency(at_h: Any) -> Any:
        busy = 0.5 * curve(Truth(daily=(0.5, 5400.0)), at_h * 3600)
        return 0.5 / (1 - busy) * np.where(at_h >= 1.83, step, 1.0)

    return Truth(hours=3.0, rate=20.0, daily=(0.5, 5400.0), latency=latency)


@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.long), 2])
def test_what_follows_the_rate_is_no_finding_and_a_jump_on_top_of_it_is(tmp_path: Path, seed: int) -> None:
    """How often it is wrong: tests/bench/soak_findings.py."""
    clean = soaked(write(tmp_path / "clean", daily(), seed))
    assert (clean.findings, clean.verdict) == ((), "pass")
    p99, power = (next(one for one in clean.looked.series if one.name == name) for name in ("p99_ms", "power_w"))
    assert np.nanmax(p99.values) > 2 * np.nanmin(p99.values)
    assert ("power_w", power.subject) in clean.looked.drifts
    row = only(soaked(write(tmp_path / "jump", daily(1.1), seed)), "step", "p99_ms")
    assert row.size == pytest.approx(10, abs=3)
    assert hours(row) == pytest.approx(1.83, abs=0.1)


def test_the_load_is_that_of_the_plan_or_of_what_was_due(tmp_path: Path) -> None:
    run = analysis.load(write(tmp_path / "run", Truth(hours=1.0, rate=20.0, daily=(0.5, 3600.0))))
    line = cells(run)
    planned = loads(run, line)
    assert planned is not None
    middles = np.array([line.middle(cell) for cell in range(line.slices)])
    assert planned == pytest.approx(1 + 0.5 * np.sin(2 * np.pi * middles / 3600), abs=0.01)
    run.manifest.scenario |= {"daily": "", "shape": "sine:0.5"}
    due = loads(run, line)
    assert due is not None
    assert due[5:50] == pytest.approx(20 * planned[5:50], rel=0.15)
    run.manifest.scenario["shape"] = "flat"
    assert loads(run, line) is None


def test_errors_over_the_objective_fail(tmp_path: Path) -> None:
    loads = [Load("m/a", 4, seconds=600.0, block=n, failed=0.02) for n in range(6)]
    run = analysis.load(make_run(tmp_path / "run", loads, mode="soak", slo=["errors<1%"]).folder)
    found = combine_verdicts(run, judge(run), soak(run))
    assert found.verdict == "fail"
    assert "errors<1% is missed: " in found.reasons[0]


def test_other_runs_have_none(tmp_path: Path) -> None:
    run = analysis.load(make_run(tmp_path / "run", [Load("m/a", 100)]).folder)
    assert soak(run) is None
    report = report_of(run)
    assert report["soak"] is None
    _, page = write_page(run, report)
    assert 'id="soak"' not in page.read_text(encoding="utf-8")


# ---- the report


def test_the_report_holds_it_and_the_page_shows_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", Truth(hours=2.0, latency=after(1.0, 1.3), endpoints=("m/a", "m/<b>")))
    at = START_NS + 3000 * 10**9
    append_event(folder, "gap", start_ns=at, end_ns=at + 60 * 10**9, scheduled={"m/a": 240, "m/<b>": 240})
    run = analysis.load(folder)
    report = report_of(run)
    jsonschema.validate(report, SCHEMA, cls=jsonschema.Draft202012Validator)
    told = report["soak"]
    assert told["verdict"]["verdict"] == report["verdict"] == "fail"
    assert told["gaps"] == [{"start_ns": at, "end_ns": at + 60 * 10**9, "scheduled": 480}]
    sentences = [row["sentence"] for row in told["findings"]]
    assert len([row for row in told["findings"] if row["series"] == "p99_ms"]) == 2
    assert report["conclusion"].startswith("Over 2.0 hours m/a answered 4")
    assert sentences[0] in report["conclusion"]
    markdown, page = (path.read_text(encoding="utf-8") for path in write_page(run, report))
    assert "## What hours brought to light" in markdown
    assert sentences[0] in markdown
    assert 'id="soak-series"' in page
    assert "m/&lt;b&gt;" in page
    assert "m/<b>" not in page
    assert "Nothing was sent from 50:00 to 51:00, where 480 arrivals were planned." in page


# ---- stalls by themselves


def held(hours: float, *timers: tuple[float, float], rate: float = 20.0, seed: int = 1) -> Floats:
    """The slowest of each tenth of a second; each timer, a period and a size in ms, holds up for a second."""
    rng = np.random.default_rng(seed)
    at_s = np.arange(int(36000 * hours)) / 10 + 0.05
    peak = 20 * np.exp(0.3 * rng.normal(size=len(at_s)))
    for number, (period_s, size_ms) in enumerate(timers):
        peak += np.where((at_s - 3 - 2 * number) % period_s < 1.0, size_ms, 0.0)
    return np.where(rng.random(len(at_s)) < rate / 10, peak, np.nan)


@pytest.mark.parametrize(
    ("small", "large"),
    [((10.0, 40.0), (30.0, 300.0)), pytest.param((5.0, 30.0), (60.0, 400.0), marks=pytest.mark.long)],
)
def test_a_larger_stall_at_a_multiple_is_one_of_its_own(small: tuple[float, float], large: tuple[float, float]) -> None:
    found = stalls(held(3.0, small, large))
    assert max(one.size_ms for one in found) == pytest.approx(large[1], rel=0.15)
    assert min(one.period_s for one in found) == small[0]
    assert [one.period_s for one in stalls(held(3.0, small))] == [small[0]]  # and its multiples are not


@pytest.mark.parametrize(
    "period_s", [60.02, *(pytest.param(p, marks=pytest.mark.long) for p in (60.05, 10.009, 30.01))]
)
def test_a_timer_that_is_hardly_off_a_round_period_is_told_from_end_to_end(period_s: float) -> None:
    found = stalls(held(8.0, (period_s, 300.0)))[0]
    assert found.period_s == pytest.approx(period_s, rel=1e-4)
    assert (found.start_s < 2 * period_s, found.end_s) == (True, None)


def test_a_hole_is_no_time_without_a_stall() -> None:
    peak = held(8.0, (60.0, 300.0))
    peak[36000 * 2 : 36000 * 5] = np.nan
    (found,) = stalls(peak)
    assert (found.start_s, found.end_s) == (pytest.approx(3, abs=1.1), None)
    half = held(8.0, (60.0, 300.0))
    half[np.arange(len(half)) % 6000 >= 3000] = np.nan
    assert [one.period_s for one in stalls(half)][:1] == [60.0]


def test_the_last_stall_is_told_at_its_own_time() -> None:
    peak = held(3.0, (60.0, 300.0))
    peak[36000 * 2 :] = held(1.0, seed=2)
    (found,) = stalls(peak)
    assert found.end_s == pytest.approx(7200 - 57, abs=1.1)


def test_equal_latencies_are_no_stall() -> None:
    for seed in range(10):
        peak = held(1.0, rate=4.0, seed=seed)
        known = np.flatnonzero(~np.isnan(peak))
        rng = np.random.default_rng(seed)
        peak[rng.choice(known, len(known) // 7, replace=False)] = 30000.0  # all given up at the same time
        assert stalls(peak) == []


@pytest.mark.parametrize("period_s", [1.0, 5.0, 30.0, 60.0, 7.0, 47.3, 1.3, 2.3, 3.3, 3.5, 5.5])
def test_a_stall_of_any_period_is_found(period_s: float) -> None:
    rng = np.random.default_rng(1)
    at_s = np.arange(2 * 36000) / 10 + 0.05
    peak = 20 * np.exp(0.3 * rng.normal(size=len(at_s)))
    peak += 100 * (((at_s - 0.3) % period_s) < 0.15) * (at_s > 1800)
    (found,) = stalls(peak)
    assert found.period_s == pytest.approx(period_s, rel=0.001)
    assert found.start_s == pytest.approx(1800, abs=max(2 * period_s, 10))
    assert found.size_ms == pytest.approx(100, rel=0.2)
    assert found.p_value < 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_noise_that_remembers_is_no_stall(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slow = np.repeat(np.exp(0.3 * rng.normal(size=720)), 100)
    assert stalls(20 * slow * np.exp(0.3 * rng.normal(size=72000))) == []
    assert stalls(np.full(72000, np.nan)) == []
    assert stalls(np.full(72000, 20.0)) == []


def test_the_conclusion_word_by_word(tmp_path: Path) -> None:
    truth = Truth(hours=2.0, latency=after(1.0, 1.3), memory=lambda at_h: 1 + 0.03 * at_h, slo=("errors<1%",))
    folder = write(tmp_path / "run", truth)
    append_event(folder, "fault", time_ns=START_NS + HOUR_NS, fault="cpu_taken", target="4", phase="begin", id=0)
    report = report_of(analysis.load(folder))
    assert report["conclusion"] == GOLDEN
    assert report["verdict"] == "fail"


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
def test_the_section_opens_without_errors_or_overflow(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", Truth(hours=2.0, latency=after(1.0, 1.3), throttled_from_h=1.0))
    run = analysis.load(folder)
    _, path = write_page(run, report_of(run))
    with tabbed() as tab:
        for width, scheme in ((390, "dark"), (1600, "light")):
            page = tab.open(path.as_uri(), width=width, height=900, scheme=scheme)
            root = "document.documentElement"
            assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
            assert page.locator("#soak-series .event").count() >= 4
            page.locator("#soak-series [data-zoom=in]").click()
            assert page.locator("#soak-series .range").inner_text()
            assert findings(page, "#soak") == []
            tab.leave()
