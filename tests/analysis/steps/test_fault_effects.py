"""What users saw of a fault, on run folders whose outages are known to the arrival."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from folders import START_NS, Load, Written, constant, make_run, rewrite
from test_report_page import EVIL

from tailrate import analysis
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.pages.report.markdown import markdown
from tailrate.analysis.pages.report.sections.faults import HEADS, fault_rows, fault_section
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.steps.fault_effects import FaultEffect, faults

RATE = 100


def at(seconds: float) -> int:
    return START_NS + round(seconds * 1e9)


def fault(written: Written, start_s: float, end_s: float | None = None, *, id_: int = 0, **more: Any) -> None:
    """As the load side writes it: begun, and ended unless `end_s` is None."""
    known = {"fault": "replica_killed", "target": "", "id": id_, "start_ns": at(start_s)} | more
    begun = {"end_ns": None, "phase": "begin", "sentence": "done"} | more
    append_event(written.folder, "fault", time_ns=at(start_s), **{**known, **begun})
    if end_s is not None:
        append_event(written.folder, "fault", time_ns=at(end_s), **known, end_ns=at(end_s), phase="end")


def changed(written: Written, change: Callable[[pd.DataFrame, pd.Series], None]) -> None:
    """`change(rows, seconds since the start)` alters the rows of the folder."""
    rows = written.requests.copy()
    change(rows, (rows["intended_ns"] - START_NS) / 1e9)
    rewrite(written.folder, rows)


def slow(rows: pd.DataFrame, which: Any, ms: float) -> None:
    rows.loc[which, "done_ns"] = rows.loc[which, "intended_ns"] + round(ms * 1e6)


def fail(rows: pd.DataFrame, which: Any, status: str = "503") -> None:
    rows.loc[which, ["status", "error"]] = [status, "gone"]


def effects(folder: Path) -> list[FaultEffect]:
    return faults(analysis.load(folder))


@pytest.fixture
def run(tmp_path: Path) -> Written:
    """Three minutes at 100/s, every answer after 10 ms."""
    return make_run(tmp_path / "run", [Load("m/eager", RATE, constant(10), seconds=180)], mode="hold")


def test_an_outage_is_told_to_the_arrival(run: Written) -> None:
    fault(run, 60.005, 60.105, target="m/eager")

    def outage(rows: pd.DataFrame, s: pd.Series) -> None:
        rows["replica"] = np.where(s < 65, "old", "new")
        fail(rows, (s >= 60.05) & (s < 65))
        fail(rows, (s > 59.995) & (s < 60.005), "connect")  # the one that was under way
        slow(rows, (s >= 65) & (s < 70), 200)
        fail(rows, (s > 99.995) & (s < 100.015))  # much later, and not its fault

    changed(run, outage)
    (found,) = effects(run.folder)
    assert (found.fault, found.target, found.endpoint, found.injected) == ("replica_killed", "m/eager", "m/eager", True)
    assert found.start_s == pytest.approx(60.005)
    assert found.seconds == pytest.approx(0.1)
    assert found.recovered_s == pytest.approx(69.99 - 60.005)
    assert (found.in_flight, found.in_flight_failed) == (1, 1)
    assert found.n == 1000  # 60.00 to 69.99
    assert found.errors == 496
    assert found.statuses == {"503": 495, "connect": 1}
    assert (found.n_after, found.errors_after, found.statuses_after) == (6000, 2, {"503": 2})
    assert (found.ok_p50_before_ms, found.ok_p50_during_ms, found.ok_p50_after_ms) == (10, 200, 10)
    assert (found.ok_p99_before_ms, found.ok_p99_during_ms, found.ok_p99_after_ms) == (10, 200, 10)
    assert (found.replicas_gone, found.replicas_new) == (("old",), ("new",))
    assert found.scheduled == found.ok + found.failed + found.timed_out + found.dropped + found.lost == 13000 - 1
    assert (found.failed, found.lost, found.closes) == (498, 0, True)
    assert "496 of 1,000 requests failed (503: 495, connect: 1)" in found.sentence
    assert "served as before after 9.9" in found.sentence
    assert "1 replica gone, 1 new" in found.sentence
    assert "every arrival is accounted for" in found.sentence


def test_a_fault_that_lasts_is_over_when_it_ends_and_users_are_served_as_before(run: Written) -> None:
    fault(run, 60, 90, fault="cpu_taken")
    changed(run, lambda rows, s: slow(rows, (s >= 62) & (s < 93), 50))
    (found,) = effects(run.folder)
    assert found.seconds == 30
    assert found.recovered_s == pytest.approx(32.99)
    assert (found.n, found.errors) == (3300, 0)
    assert (found.ok_p50_before_ms, found.ok_p50_during_ms, found.ok_p50_after_ms) == (10, 50, 10)


def test_what_changes_nothing_has_no_recovery_to_wait_for(run: Written) -> None:
    fault(run, 60, 75, fault="telemetry_cut")
    (found,) = effects(run.folder)
    assert (found.recovered_s, found.n, found.errors) == (0, 1500, 0)
    assert "nothing was worse than before" in found.sentence


def test_ordinary_noise_is_no_damage(tmp_path: Path) -> None:
    quiet = make_run(tmp_path / "run", [Load("m/eager", RATE, seconds=180, failed=0.02)], mode="hold", poisson=True)
    fault(quiet, 80, 80)
    (found,) = effects(quiet.folder)
    assert found.recovered_s is not None
    assert found.recovered_s <= 10


def test_what_never_recovers_is_said(run: Written) -> None:
    fault(run, 60, 60)
    changed(run, lambda rows, s: fail(rows, s >= 60, "timeout"))
    (found,) = effects(run.folder)
    assert found.recovered_s is None
    assert (found.n, found.errors, found.n_after, found.timed_out) == (12000, 12000, 0, 12000)
    assert "not yet served as before" in found.sentence
    assert found.ok_p99_during_ms is None


def test_a_fault_without_an_end_or_a_time_before_is_not_judged(run: Written) -> None:
    fault(run, 0.5)
    (found,) = effects(run.folder)
    assert (found.seconds, found.recovered_s) == (None, None)
    assert "too little is known of the time before" in found.sentence


@pytest.mark.parametrize(("admitted", "closes"), [(200, True), (199, False)])
def test_rows_that_are_missing_are_lost_and_must_be_admitted(run: Written, admitted: int, closes: bool) -> None:
    fault(run, 60, 60, fault="load_killed")
    rows = run.requests
    rewrite(run.folder, rows[~rows["seq"].between(6000, 6199)])
    run.manifest.totals["lost"] = admitted
    run.manifest.write(run.folder)
    (found,) = effects(run.folder)
    assert (found.lost, found.closes) == (200, closes)
    assert found.scheduled == found.ok + found.lost


def test_a_row_that_is_there_twice_does_not_close(run: Written) -> None:
    fault(run, 60, 60)
    rewrite(run.folder, pd.concat([run.requests, run.requests[run.requests["seq"] == 6100]]))
    (found,) = effects(run.folder)
    assert not found.closes
    assert "missing without a reason" in found.sentence


def test_faults_that_were_not_injected_or_hit_nothing_are_rows_too(run: Written) -> None:
    fault(run, 50, phase="refused", fault="node_killed", sentence="there is no such node")
    fault(run, 400, 401, id_=1)
    refused, alone = effects(run.folder)
    assert (refused.injected, refused.endpoint, refused.said) == (False, "", "there is no such node")
    assert "could not be injected: there is no such node" in refused.sentence
    assert (alone.injected, alone.endpoint, alone.n) == (True, "", 0)


def test_one_fault_ends_where_the_next_begins_and_is_no_part_of_its_past(run: Written) -> None:
    fault(run, 60, 60)
    fault(run, 80, 80, id_=1)
    fault(run, 100, 110, id_=2)

    def two(rows: pd.DataFrame, s: pd.Series) -> None:
        fail(rows, (s >= 60) & (s < 62))
        slow(rows, (s >= 80) & (s < 101), 70)

    changed(run, two)
    first, second, third = effects(run.folder)
    assert (first.errors, first.n_after, first.errors_after) == (200, 1800, 0)
    assert second.ok_p99_before_ms == 10
    assert (second.recovered_s, second.n, second.scheduled) == (None, 2000, 2000 + 1800)
    # as before is before the second, since which users were not served so
    assert (third.recovered_s, third.healed, third.scheduled) == (pytest.approx(0.99), True, 7000)


def test_one_that_begins_while_another_lasts_is_held_against_the_time_before_both(run: Written) -> None:
    fault(run, 60, 100, fault="cpu_taken")
    fault(run, 80.005, 90, id_=1, fault="slow_client")
    changed(run, lambda rows, s: fail(rows, (s >= 79.995) & (s < 82)))
    first, second = effects(run.folder)
    assert (first.n, first.errors, first.recovered_s) == (2001, 1, None)
    assert (second.in_flight, second.in_flight_failed, second.errors) == (1, 1, 200)
    assert (second.ok_p99_before_ms, second.recovered_s) == (10, pytest.approx(1.985, abs=0.01))


def test_each_endpoint_under_load_has_its_own_row(tmp_path: Path) -> None:
    both = [Load(f"m/{name}", RATE, constant(10), seconds=120, at_s=0) for name in ("eager", "compiled")]
    written = make_run(tmp_path / "run", both, mode="mixed")
    fault(written, 60, 60)
    changed(written, lambda rows, s: fail(rows, (s >= 60) & (s < 63) & (rows["endpoint"] == "m/compiled")))
    eager, compiled = effects(written.folder)
    assert (eager.endpoint, eager.errors, eager.recovered_s) == ("m/eager", 0, 0)
    assert (compiled.endpoint, compiled.errors, compiled.recovered_s) == ("m/compiled", 300, pytest.approx(2.99))


def test_windows_reach_over_chapters_of_one_load_and_no_further(tmp_path: Path) -> None:
    loads = [Load("m/a", rate, constant(10), seconds=30, at_s=k * 31) for k, rate in enumerate((50, 100, 100, 100))]
    written = make_run(tmp_path / "run", loads, mode="soak")
    fault(written, 61.5, 61.5)  # in the pause between two chapters
    changed(written, lambda rows, s: fail(rows, (s >= 62) & (s < 64)))
    (found,) = effects(written.folder)
    assert (found.errors, found.recovered_s) == (200, pytest.approx(63.99 - 61.5))
    assert found.scheduled == 3 * 30 * 100  # the chapter before at another rate is no part of it


def test_settle_time_is_no_time_before(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", RATE, constant(10), seconds=90, settle_s=20)])
    changed(written, lambda rows, s: slow(rows, s < 20, 300))
    fault(written, 40, 40)
    (found,) = effects(written.folder)
    assert found.ok_p99_before_ms == 10


def test_a_run_without_faults_has_none(run: Written) -> None:
    assert effects(run.folder) == []
    report = report_of(analysis.load(run.folder))
    assert report["faults"] == []
    assert fault_section(View.of(analysis.load(run.folder), report)) is None


def test_page_and_markdown_tell_each_fault(run: Written) -> None:
    fault(run, 60, 60, target="m/eager")
    fault(run, 120, phase="refused", fault="node_killed", id_=1, sentence=EVIL)
    changed(run, lambda rows, s: fail(rows, (s >= 60) & (s < 62)))
    loaded = analysis.load(run.folder)
    view = View.of(loaded, report_of(loaded))
    rows = fault_rows(view)
    assert {len(row) for row in rows} == {len(HEADS)}
    texts: Sequence[Sequence[str]] = [[cell.shown for cell in row] for row in rows]
    assert texts[0][:6] == ["replica_killed m/eager", "m/eager", "1:00", "at once", "200", "200"]
    assert texts[0][-1] == "1.99 s"
    assert texts[1][:3] == ["node_killed", "–", "2:00"]
    page, text = str(fault_section(view)), markdown(view)
    assert "200 of 200 requests failed" in page
    assert "200 of 200 requests failed" in text
    assert "## Faults" in text
    assert EVIL not in page
    assert EVIL not in text
