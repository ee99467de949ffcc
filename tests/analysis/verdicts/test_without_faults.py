"""Faults that were planned make no run fail, or untrustworthy, by themselves; what outlasts them does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from folders import START_NS, Load, Waveform, Written, constant, make_run
from soaks import Truth, write
from test_fault_effects import RATE, at, changed, fail, fault, slow

from tailrate import analysis
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.judging import server_claims
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.soak.findings import look
from tailrate.analysis.soak.soak_verdict import soak
from tailrate.analysis.steps import fault_windows
from tailrate.analysis.verdicts.verdict import judge

SLO = ["p99<50ms, errors<1%"]


@pytest.fixture
def run(tmp_path: Path) -> Written:
    """Three minutes at 100/s, every answer after 10 ms."""
    return make_run(tmp_path / "run", [Load("m/a", RATE, constant(10), seconds=180)], mode="hold", slo=SLO)


def outage(rows: pd.DataFrame, s: Any) -> None:
    """Gone for five seconds, and slow for five more."""
    fail(rows, (s >= 60) & (s < 65))
    slow(rows, (s >= 65) & (s < 70), 200)


def judged(folder: Path) -> tuple[str, str]:
    found = judge(analysis.load(folder))
    return found.verdict, " | ".join(found.reasons)


def test_an_outage_that_was_planned_leaves_the_objective_to_the_rest(run: Written) -> None:
    changed(run, outage)
    assert judged(run.folder)[0] != "pass"
    fault(run, 60, 60.1)
    verdict, said = judged(run.folder)
    assert verdict == "pass"
    assert "9.99 s of 1 planned fault, in which 500 of 1,000 requests failed, are left out of this verdict" in said
    report = report_of(analysis.load(run.folder))
    (step,) = report["steps"]
    assert (step["n"], step["errors"], step["slo"]) == (18000, 500, None)  # the row is of the whole step
    assert "(replica_killed was injected)" in " ".join(step["reasons"])
    assert report["ledger"][0]["failed"] + report["ledger"][0]["refused"] == 500
    assert report["faults"][0]["errors"] == 500
    assert report["conclusion"] == (
        "On one GPU, every step met P99 ≤ 50 ms and errors ≤ 1 %: m/a answered 100 requests/s with a P99 of 10 ms, the "
        "time of planned faults left out."
    )
    assert not [risk for risk in report["risks"] if risk["kind"] in ("unsteady", "untrusted")]


def test_what_outlasts_the_recovery_fails(run: Written) -> None:
    fault(run, 60, 60.1)

    def more(rows: pd.DataFrame, s: Any) -> None:
        outage(rows, s)
        fail(rows, ((s < 55) | (s >= 75)) & (s % 3 < 0.3))

    changed(run, more)
    verdict, said = judged(run.folder)
    assert verdict == "fail"
    assert "p99<50ms is missed: 9.7 % of 17,000 arrivals took longer than 50 ms or failed, where 1 % may" in said


def test_a_fault_that_could_not_be_injected_takes_nothing_out(run: Written) -> None:
    changed(run, outage)
    fault(run, 60, phase="refused", end_ns=at(60))
    assert fault_windows.spans(analysis.load(run.folder)) == []
    assert judged(run.folder)[0] != "pass"


def test_a_run_that_was_all_fault_cannot_say(tmp_path: Path) -> None:
    short = make_run(tmp_path / "run", [Load("m/a", RATE, constant(10), seconds=30)], mode="hold", slo=SLO)
    fault(short, 0, 30)
    assert judged(short.folder) == (
        "inconclusive",
        "m/a: at 100/s p99<50ms cannot be said: planned faults left no time in which it could be judged | 30 s of 1 "
        "planned fault, in which 0 of 3,000 requests failed, are left out of this verdict | when users of m/a were "
        "served as before after replica_killed is not known",
    )


@pytest.mark.parametrize("slo", [SLO, []])
@pytest.mark.parametrize(("endpoint", "rate"), [("m/b", RATE), ("m/a", 2 * RATE)])
def test_an_endpoint_or_rate_of_which_faults_left_nothing_cannot_be_said(
    tmp_path: Path, endpoint: str, rate: int, slo: list[str]
) -> None:
    loads = [Load("m/a", RATE, constant(10), seconds=60), Load(endpoint, rate, constant(10), seconds=60, failed=1)]
    written = make_run(tmp_path / "run", loads, mode="hold", slo=slo)
    assert judged(written.folder)[0] != "pass"
    fault(written, 60, 61, target=endpoint)
    verdict, said = judged(written.folder)
    assert verdict == "inconclusive"
    assert "planned faults left no time in which it could be judged" in said.split(" | ")[bool(not slo)]


def test_a_round_of_which_faults_left_nothing_is_excused_by_the_others(tmp_path: Path) -> None:
    rounds = [Load("m/a", RATE, constant(10), seconds=60, block=block, failed=block) for block in (0, 1)]
    written = make_run(tmp_path / "run", rounds, mode="hold", slo=SLO)
    fault(written, 60, 120, fault="telemetry_cut")
    assert judged(written.folder)[0] == "pass"


@pytest.mark.parametrize("until_s", [31, 50])
def test_the_rest_is_held_to_be_as_steady_as_a_whole_step(tmp_path: Path, until_s: float) -> None:
    def rising(rng: np.random.Generator, at_s: Any) -> Any:
        return (10 + 0.02 * at_s) * np.exp(0.3 * rng.normal(size=len(at_s)))

    written = make_run(tmp_path / "run", [Load("m/a", RATE, rising, seconds=120)], mode="hold", slo=["p90<50ms"])
    assert judged(written.folder)[0] == "inconclusive"
    fault(written, 30, until_s, fault="telemetry_cut")
    verdict, said = judged(written.folder)
    assert (verdict, "not steady: latency rose by " in said) == ("inconclusive", True)
    (risk,) = [risk for risk in report_of(analysis.load(written.folder))["risks"] if risk["kind"] == "unsteady"]
    assert risk["figure"] == pytest.approx(18, abs=3)


def test_when_the_rest_settled_is_told_in_the_time_of_the_step(tmp_path: Path) -> None:
    def cold(rng: np.random.Generator, at_s: Any) -> Any:
        return np.where(at_s < 40, 20, 10) * np.exp(0.1 * rng.normal(size=len(at_s)))

    written = make_run(tmp_path / "run", [Load("m/a", RATE, cold, seconds=120)], mode="hold", slo=["p90<15ms"])
    fault(written, 10, 30, fault="telemetry_cut")
    assert "latency settled 40." in judged(written.folder)[1]


def test_what_was_answered_in_the_rest_is_achieved(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", RATE, constant(5000), seconds=60)], mode="hold")
    fault(written, 20, 30, fault="telemetry_cut")
    run = analysis.load(written.folder)
    ((start_ns, end_ns),) = fault_windows.spans(run)
    gone_s = (end_ns - start_ns) / 1e9
    assert gone_s == pytest.approx(10, abs=6)
    assert run.calm[0].summary.achieved_rps == pytest.approx(RATE * (55 - gone_s) / (60 - gone_s), rel=0.01)


def test_a_recovery_that_nobody_can_tell_is_given_a_minute(tmp_path: Path) -> None:
    early = make_run(tmp_path / "run", [Load("m/a", RATE, constant(10), seconds=180)], mode="hold", slo=SLO)
    changed(early, lambda rows, s: fail(rows, (s >= 1) & (s < 31)))
    fault(early, 1, 1)
    ((start, end),) = fault_windows.spans(analysis.load(early.folder))
    assert ((start - START_NS) / 1e9, (end - START_NS) / 1e9) == (pytest.approx(1, abs=0.02), 61)
    assert judged(early.folder)[0] == "pass"


@pytest.mark.parametrize(("from_s", "until_s", "slos", "verdict", "said"), [
    (60, 180, SLO, "fail", "m/a: users were not served as before within 60 s of the end of replica_killed"),
    (60, 180, [], "fail", "m/a: users were not served as before within 60 s of the end of replica_killed"),
    (60, 140, [], "fail", "replica_killed; it took 79.8 s"),
    (60, 110, SLO, "pass", "in which 500 of 4,991 requests failed"),
    (60, 110, [], "measured", "in which 500 of 4,991 requests failed"),
    (130, 180, SLO, "inconclusive", "as far as is known: the next fault or the end came before that"),
    (130, 180, [], "inconclusive", "as far as is known: the next fault or the end came before that"),
    (1, 31, SLO, "pass", "is not known"),
    (1, 31, [], "inconclusive", "m/a: too little is known of the time before it"),
])  # fmt: skip
def test_a_fault_excuses_no_more_than_a_recovery_may_take(
    tmp_path: Path, from_s: float, until_s: float, slos: list[str], verdict: str, said: str
) -> None:
    """One of ten requests fails from the fault on, until then."""
    folder = make_run(tmp_path / "run", [Load("m/a", RATE, constant(10), seconds=180)], mode="hold", slo=slos)
    changed(folder, lambda rows, s: fail(rows, (s >= from_s) & (s < until_s) & (rows["seq"] % 10 == 0)))
    fault(folder, from_s, from_s + 0.1)
    found, sentences = judged(folder.folder)
    assert found == verdict
    assert said in sentences
    report = report_of(analysis.load(folder.folder))
    if verdict == "fail":
        assert report["conclusion"].startswith("m/a: users were not served as before within 60 s of the end of")


def test_what_a_recovery_may_take_and_cost_can_be_set(run: Written) -> None:
    changed(run, outage)
    fault(run, 60, 60.1)
    for set_, verdict, said in (
        ({"max_recovery_s": 9.8}, "fail", "within 9.8 s of the end of replica_killed; it took 9.89 s"),
        ({"max_recovery_s": 9.9}, "pass", ""),
        ({"max_failed": 0.49}, "fail", "50 % of 1,000 requests failed from replica_killed until users were served as"),
        ({"max_failed": 0.5}, "pass", ""),
    ):
        run.manifest.scenario |= {"max_recovery_s": 60.0, "max_failed": 1.0} | set_
        run.manifest.write(run.folder)
        found, sentences = judged(run.folder)
        assert (found, said in sentences) == (verdict, True)


def test_as_before_is_before_the_first_of_faults_that_follow_each_other(run: Written) -> None:
    """Nothing is served after the first; the second comes before the first was due."""
    changed(run, lambda rows, s: fail(rows, s >= 60))
    fault(run, 60, 60.1)
    fault(run, 90, 90.1, id_=1)
    assert fault_windows.spans(analysis.load(run.folder))[-1][1] == at(150.1)
    verdict, said = judged(run.folder)
    assert (verdict, said.count("not served as before within 60 s of the end of replica_killed |")) == ("fail", 1)


def test_a_load_process_that_was_killed_on_purpose_takes_its_step_with_it(tmp_path: Path) -> None:
    two = [Load("m/a", RATE, constant(10), seconds=60), Load("m/a", RATE, constant(10), seconds=60)]
    killed = make_run(tmp_path / "run", two, mode="hold", slo=SLO)
    append_event(killed.folder, "worker_lost", time_ns=at(85), worker=1, member="b", steps=[1])
    verdict, said = judged(killed.folder)
    assert verdict == "inconclusive"
    assert "a load process was lost" in said
    fault(killed, 80, 80, fault="load_killed")
    assert judged(killed.folder)[0] == "pass"
    assert fault_windows.spans(analysis.load(killed.folder))[0][1] == at(120)
    append_event(killed.folder, "worker_lost", time_ns=at(70), worker=0, member="a", steps=[1])
    assert judged(killed.folder)[0] == "inconclusive"  # that one was not planned


def test_the_plain_path_after_a_planned_fault_is_a_warning() -> None:
    fast = {"way": "fast", "fallback": None, "slow_requests": 3}
    manifest = Manifest(id="it", status="complete", scenario={"steps": []}, endpoints=[], started_ns=0)
    for after, said in (
        (fast | {"slow_requests": 10}, "7 requests fell back to the server's plain path, as no replica seemed to be"),
        ({"way": "plain", "fallback": "HAProxy is gone"}, "requests fell back to the server's plain path: HAProxy is"),
    ):
        manifest.extra["ingress"] = {"before": fast, "after": after}
        assert server_claims.flaws(manifest)[0].startswith(said)
        assert server_claims.flaws(manifest, broken=True) == server_claims.warnings(manifest) == []
        (warned,) = server_claims.warnings(manifest, broken=True)
        assert warned.startswith(said)
        assert warned.endswith(", after a planned fault")
    manifest.extra["ingress"] = {"before": after, "after": after}  # it had nothing to do with the fault
    assert server_claims.flaws(manifest, broken=True)


def test_incidents_of_a_fault_are_no_risk(run: Written) -> None:
    fault(run, 60, 75, fault="telemetry_cut")
    append_event(run.folder, "telemetry_lost", time_ns=at(62), sentence="no answer")
    assert not [risk for risk in report_of(analysis.load(run.folder))["risks"] if risk["kind"] == "incident"]
    append_event(run.folder, "telemetry_lost", time_ns=at(100), sentence="no answer")
    (risk,) = [risk for risk in report_of(analysis.load(run.folder))["risks"] if risk["kind"] == "incident"]
    assert risk["figure"] == 1


# ---- soaks


def planned(folder: Path, at_s: float) -> None:
    known = {"fault": "replica_killed", "target": "", "id": 0, "start_ns": at(at_s)}
    append_event(folder, "fault", time_ns=at(at_s), **known, end_ns=None, phase="begin", sentence="done")
    append_event(folder, "fault", time_ns=at(at_s), **known, end_ns=at(at_s), phase="end", sentence="it is over")


def patient(folder: Path) -> Path:
    """A recovery may take ten minutes."""
    manifest = Manifest.read(folder)
    manifest.scenario["max_recovery_s"] = 600
    manifest.write(folder)
    return folder


def test_the_minutes_of_a_fault_are_looked_at_by_nobody_else(tmp_path: Path) -> None:
    """P99 is threefold for eight minutes, and GPU memory falls meanwhile."""

    def bad(at_h: Any) -> Any:
        return (at_h >= 1.5) & (at_h < 1.5 + 8 / 60)

    truth = Truth(
        hours=3.0, rate=10.0, carry=0.3,
        latency=lambda at_h: np.where(bad(at_h), 3.0, 1.0), memory=lambda at_h: np.where(bad(at_h), 0.5, 1.0),
    )  # fmt: skip
    folder = patient(write(tmp_path / "run", truth))
    alone = soak(analysis.load(folder))
    assert alone is not None
    assert [(row.kind, row.series) for row in alone.findings][:1] == [("spell", "p99_ms")]
    assert alone.verdict == "fail"
    planned(folder, 5400.0)
    run = analysis.load(folder)
    found = soak(run)
    assert found is not None
    assert (found.findings, found.verdict, found.reasons) == ((), "pass", ())
    assert found.faults_s == pytest.approx(480, abs=15)
    assert found.sentence.endswith(" s of planned faults are left out")
    (series,) = [one for one in found.looked.series if one.name == "p99_ms"]
    assert np.nanmax(series.values) > 2 * np.nanmedian(series.values)  # the page shows what was


def test_a_level_that_stays_after_a_fault_is_a_finding_with_the_fault_beside(tmp_path: Path) -> None:
    truth = Truth(
        hours=3.0, rate=10.0, carry=0.3, latency=lambda at_h: np.where(at_h < 1.5, 1.0, np.where(at_h < 1.6, 3.0, 1.3))
    )
    folder = patient(write(tmp_path / "run", truth))
    planned(folder, 5400.0)
    (row, *_) = look(analysis.load(folder)).findings
    assert (row.kind, row.series) == ("step", "p99_ms")
    assert row.size == pytest.approx(30, abs=5)
    assert row.beside[0] == "replica killed was injected"


def test_errors_of_a_fault_are_not_those_of_the_soak(tmp_path: Path) -> None:
    loads = [Load("m/a", 20, constant(10), seconds=300.0, block=n) for n in range(6)]
    written = make_run(tmp_path / "run", loads, mode="soak", slo=["errors<1%"], devices=[Waveform(period_s=5.0)])
    changed(written, lambda rows, s: fail(rows, (s >= 900) & (s < 960)))
    judged = judge(analysis.load(written.folder))
    assert judged.verdict == "fail"
    assert "errors<1% is missed: 3.3 % of 36,000 arrivals failed" in judged.reasons[0]
    planned(written.folder, 900.0)
    report = report_of(analysis.load(written.folder))
    assert report["verdict"] == "pass"
    assert report["ledger"][3]["scheduled"] == 6000
