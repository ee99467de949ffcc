from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import streamed
from folders import Latency, Load, Waveform, constant, lognormal, make_run, queue, rewrite

from tailrate import analysis
from tailrate.analysis.judging.trust import late_limit_ms, lateness
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.stats.trend import percentile
from tailrate.analysis.verdicts.verdict import FAIL, INCONCLUSIVE, MEASURED, PASS, Verdict, flaws, judge, warnings


def _judge(folder: Path, loads: list[Load], **more: Any) -> Verdict:
    return judge(analysis.load(make_run(folder, loads, **more).folder))


def _ramp(endpoint: str, *latencies: Latency, late_ms: float = 0.1) -> list[Load]:
    return [Load(endpoint, 100.0 * (number + 1), latency, late_ms=late_ms) for number, latency in enumerate(latencies)]


FAST, SLOW = constant(10), constant(90)
SLO = ["p99<50ms, errors<1%"]


@pytest.mark.parametrize(("verdict", "code"), [(PASS, 0), (MEASURED, 0), (FAIL, 1), (INCONCLUSIVE, 3)])
def test_exit_codes(verdict: str, code: int) -> None:
    assert Verdict(verdict, ()).exit_code == code


def test_what_counts_as_late() -> None:
    assert [late_limit_ms([], usual_ms) for usual_ms in (0, 1, 20, 200)] == [1, 1, 1, 10]
    near, nearer = (list(map(Slo.parse, slos)) for slos in (("p99<200ms", "p90<60ms"), ("p99<5ms",)))
    assert [late_limit_ms(slos, 200) for slos in (near, nearer)] == [3, 1]


def test_what_counts_as_late_of_streams_is_seen_against_the_nearest_latency() -> None:
    whole, first = Slo.parse("p99<10s"), Slo.parse("p99 ttft<450ms, p99 tpot<40ms")
    assert late_limit_ms([], 9000, streams=True) == 1
    assert late_limit_ms([Slo.parse("p99 tpot<40ms")], 9000, streams=True) == 1
    assert late_limit_ms([whole], 9000, streams=True) == 500
    assert late_limit_ms([whole, first], 9000, streams=True) == pytest.approx(22.5)


def test_a_ramp_past_the_knee_passes(tmp_path: Path) -> None:
    loads = [*_ramp("m/a", FAST, FAST, SLOW), *_ramp("m/b", FAST, queue(11))]
    verdict = _judge(tmp_path / "run", loads, slo=SLO)
    assert verdict == Verdict(
        PASS,
        (
            "m/a: p99<50ms, errors<1% is sustained at up to 200/s",
            "m/b: p99<50ms, errors<1% is sustained at up to 100/s",
        ),
    )


def test_a_ramp_fails_where_an_endpoint_never_meets_it(tmp_path: Path) -> None:
    verdict = _judge(tmp_path / "run", [*_ramp("m/a", FAST, FAST), *_ramp("m/b", SLOW, SLOW)], slo=SLO)
    assert verdict.verdict == FAIL
    assert verdict.reasons == (
        "m/b: at 100/s p99<50ms is missed: 100 % of 1,000 arrivals took longer than 50 ms or failed, where 1 % may",
    )


def test_a_ramp_that_cannot_be_trusted_cannot_say(tmp_path: Path) -> None:
    verdict = _judge(tmp_path / "run", _ramp("m/a", SLOW, SLOW, late_ms=3), slo=SLO)
    assert verdict.verdict == INCONCLUSIVE
    assert verdict.reasons == (
        "m/a: at 100/s p99<50ms cannot be said: the load generator was late: P99 3 ms, where 2.50 ms would do no harm",
    )
    # it is in the latencies, which keep the objective all the same
    assert _judge(tmp_path / "kept", _ramp("m/a", FAST, FAST, late_ms=3), slo=SLO).verdict == PASS


def test_a_late_step_at_the_end_does_not_spoil_a_ramp(tmp_path: Path) -> None:
    loads = [*_ramp("m/a", FAST, FAST), Load("m/a", 300, SLOW, late_ms=3)]
    assert _judge(tmp_path / "run", loads, slo=SLO).verdict == PASS


def test_a_ramp_whose_lowest_step_cannot_be_trusted_has_not_failed(tmp_path: Path) -> None:
    verdict = _judge(tmp_path / "run", [Load("m/a", 100, SLOW, late_ms=3), Load("m/a", 200, SLOW)], slo=SLO)
    assert verdict.verdict == INCONCLUSIVE


def test_a_ramp_with_too_few_arrivals_cannot_say(tmp_path: Path) -> None:
    verdict = _judge(tmp_path / "run", [Load("m/a", 20, FAST), Load("m/a", 30, FAST)], slo=SLO)
    assert verdict.verdict == INCONCLUSIVE
    assert "at 20/s p99<50ms cannot be said: 0 % of 200 arrivals took longer than 50 ms or failed" in verdict.reasons[0]
    assert "13 s more would settle it" in verdict.reasons[0]


@pytest.mark.parametrize(
    ("latencies", "verdict"), [((FAST, FAST, FAST), PASS), ((FAST, FAST, SLOW), FAIL), ((FAST, FAST), INCONCLUSIVE)]
)
def test_a_rate_in_the_objective_of_a_ramp(tmp_path: Path, latencies: tuple[Latency, ...], verdict: str) -> None:
    found = _judge(tmp_path / "run", _ramp("m/a", *latencies), slo=["p99<50ms, rate>=300"])
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("high", "verdict"),
    [
        ({}, PASS),
        ({"failed": 1.0}, FAIL),
        ({"failed": 0.9}, FAIL),
        ({"late_ms": 3000.0}, INCONCLUSIVE),
        ({"settle_s": 10.0}, INCONCLUSIVE),
    ],
)
def test_a_rate_alone_is_one_whose_requests_are_answered(tmp_path: Path, high: dict[str, float], verdict: str) -> None:
    loads = [Load("m/a", 50, FAST), Load("m/a", 100, FAST), Load("m/a", 200, FAST, **high)]
    assert _judge(tmp_path / "run", loads, slo=["rate>=200"]).verdict == verdict


@pytest.mark.parametrize(
    ("loads", "verdict"),
    [
        (_ramp("m/a", FAST, FAST), PASS),
        (_ramp("m/a", FAST, SLOW), FAIL),
        ([Load("m/a", 100, FAST), Load("m/a", 100, FAST, late_ms=3)], PASS),
        ([Load("m/a", 100, FAST), Load("m/a", 120, SLOW, late_ms=3)], INCONCLUSIVE),
        ([Load("m/a", 100, SLOW), Load("m/a", 120, SLOW, late_ms=3)], FAIL),
        ([Load("m/a", 100, FAST), Load("m/a", 10, FAST)], INCONCLUSIVE),
    ],
)
def test_a_held_rate_must_meet_it_in_every_step(tmp_path: Path, loads: list[Load], verdict: str) -> None:
    assert _judge(tmp_path / "run", loads, slo=SLO, mode="hold").verdict == verdict


def test_one_objective_missed_is_a_fail_whatever_another_leaves_open(tmp_path: Path) -> None:
    """Errors of a ten-thousandth cannot be known from a thousand arrivals."""
    verdict = _judge(tmp_path / "run", [Load("m/a", 100, SLOW)], slo=["p99<50ms", "errors<0.01%"], mode="hold")
    assert verdict.verdict == FAIL
    assert "p99<50ms is missed" in verdict.reasons[0]
    opened = _judge(tmp_path / "other", [Load("m/a", 100, FAST)], slo=["p99<50ms", "errors<0.01%"], mode="hold")
    assert opened.verdict == INCONCLUSIVE


def test_without_an_objective_trust_decides(tmp_path: Path) -> None:
    passed = _judge(tmp_path / "a", _ramp("m/a", FAST, queue(20)))
    assert passed == Verdict(MEASURED, ("no objective was set, so none could be missed",))
    late = [Load("m/a", 100, FAST), Load("m/a", 200, FAST, late_ms=3)]
    assert _judge(tmp_path / "b", late).verdict == MEASURED
    assert _judge(tmp_path / "c", late, mode="hold").verdict == INCONCLUSIVE
    assert _judge(tmp_path / "d", late[1:]).verdict == INCONCLUSIVE


@pytest.mark.parametrize("mode", ["hold", "ramp"])
def test_where_nothing_succeeded_nothing_was_measured_and_every_objective_is_missed(tmp_path: Path, mode: str) -> None:
    loads = [Load("m/a", 100, FAST), Load("m/b", 100, FAST, failed=1)]
    bare = _judge(tmp_path / "a", loads, mode=mode)
    assert (bare.verdict, bare.exit_code) == (INCONCLUSIVE, 3)
    assert bare.reasons[1] == "not one request to m/b succeeded"
    few = [Load("m/a", 1, FAST, seconds=5, failed=1)]  # too few for any share
    judged = _judge(tmp_path / "b", few, mode=mode, slo=["errors<50%"])
    assert (judged.verdict, judged.exit_code) == (FAIL, 1)


@pytest.mark.parametrize("slo", [SLO, []])
def test_where_nothing_was_sent_nothing_can_be_said(tmp_path: Path, slo: list[str]) -> None:
    unsent = [Load("m/a", 100, FAST), Load("m/b", 100, FAST, dropped=1)]
    found = _judge(tmp_path / "run", unsent, slo=slo, mode="hold")
    assert found.verdict == INCONCLUSIVE
    if slo:
        assert "100 % of the arrivals were dropped although the queue did not grow: raise --max-in-flight" in str(found)


def test_mixed_endpoints_are_a_ramp_only_at_several_rates(tmp_path: Path) -> None:
    once = [Load("m/a", 100, FAST, at_s=0), Load("m/b", 100, SLOW, at_s=0)]
    assert _judge(tmp_path / "a", once, slo=SLO, mode="mixed").verdict == FAIL
    again = [Load("m/a", 200, SLOW, at_s=10), Load("m/b", 200, SLOW, at_s=10)]
    fast = [once[0], Load("m/b", 100, FAST, at_s=0)]
    assert _judge(tmp_path / "b", [*fast, *again], slo=SLO, mode="mixed").verdict == PASS


def test_an_aborted_run_cannot_say(tmp_path: Path) -> None:
    verdict = _judge(tmp_path / "run", _ramp("m/a", FAST, FAST, FAST), slo=SLO, status="aborted", stopped_s=13)
    assert verdict == Verdict(INCONCLUSIVE, ("the run was aborted after 1 of 3 steps",))


def test_an_aborted_run_says_why_where_that_is_known(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", _ramp("m/a", FAST, FAST), slo=SLO, status="aborted", stopped_s=13)
    manifest = Manifest.read(written.folder)
    manifest.extra["stopped"] = "the disk is full"
    manifest.write(written.folder)
    why = "the run was aborted after 1 of 2 steps: the disk is full"
    assert judge(analysis.load(written.folder)) == Verdict(INCONCLUSIVE, (why,))


def test_a_run_without_arrivals_cannot_say(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", _ramp("m/a", FAST), status="aborted", stopped_s=-1)
    run = analysis.load(written.folder)
    assert len(run.requests()) == 0
    assert judge(run) == Verdict(INCONCLUSIVE, ("the run was aborted after 0 of 1 steps", "the run holds no arrivals"))


def test_a_broken_ledger_makes_the_run_invalid(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", _ramp("m/a", FAST), slo=SLO)
    written.manifest.totals["scheduled"] += 2
    written.manifest.write(written.folder)
    verdict = judge(analysis.load(written.folder))
    assert verdict.reasons == ("the ledger is broken: 1002 arrivals were scheduled, but 1000 are recorded",)
    assert verdict.exit_code == 3

    twice = make_run(tmp_path / "twice", _ramp("m/a", FAST), slo=SLO)
    rewrite(twice.folder, twice.requests.assign(seq=twice.requests["seq"].where(twice.requests["seq"] != 7, 8)))
    assert judge(analysis.load(twice.folder)).reasons == ("the ledger is broken: 1 arrivals are recorded twice",)

    nameless = make_run(tmp_path / "nameless", _ramp("m/a", FAST), slo=SLO)
    rewrite(nameless.folder, nameless.requests.assign(seq=None))
    assert judge(analysis.load(nameless.folder)).reasons == (
        "the ledger is broken: 1000 arrivals have no number, so nobody knows whether any is recorded twice",
    )
    rewrite(nameless.folder, nameless.requests.drop(columns="seq"))  # as of a program that numbers none
    assert judge(analysis.load(nameless.folder)).verdict == PASS

    other = make_run(tmp_path / "other", _ramp("m/a", FAST, FAST))
    rewrite(
        other.folder, other.requests.assign(endpoint=other.requests["endpoint"].where(other.requests.index > 6, "x"))
    )
    assert judge(analysis.load(other.folder)).reasons == (
        "the ledger is broken: 7 arrivals belong to no step of the manifest",
    )

    stranger = make_run(tmp_path / "stranger", _ramp("m/a", FAST, FAST))
    rewrite(stranger.folder, stranger.requests.assign(step=stranger.requests["step"].replace(1, 5)))
    assert judge(analysis.load(stranger.folder)).reasons == (
        "the ledger is broken: 2000 arrivals belong to no step of the manifest",
    )


@pytest.mark.parametrize(
    ("missing", "known"), [(100, {}), (0, {"concurrency": 4}), (0, {"sessions": True}), (0, {"cut": True})]
)
def test_without_totals_the_numbers_of_arrivals_tell_that_rows_are_missing(
    tmp_path: Path, missing: int, known: dict[str, Any]
) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 100, lambda _, at_s: np.where(at_s % 0.1 < 0.01, 90, 10))])
    rewrite(written.folder, written.requests[written.requests["seq"] % 10 != 3])
    written.manifest.totals.clear()
    written.manifest.scenario["steps"][0] |= known
    written.manifest.write(written.folder)
    said = (
        [f"the ledger is broken: {missing} arrivals are missing, as the numbers of the others show"] if missing else []
    )
    assert flaws(analysis.load(written.folder)) == said
    rewrite(written.folder, written.requests)
    assert flaws(analysis.load(written.folder)) == []


@pytest.mark.parametrize(
    ("name", "start", "by_ns"),
    [("done_ns", "sent_ns", -(10**9)), ("done_ns", "intended_ns", -1), ("sent_ns", "done_ns", 1)],
)
def test_times_that_cannot_be_are_a_flaw(tmp_path: Path, name: str, start: str, by_ns: int) -> None:
    written = make_run(tmp_path / "run", _ramp("m/a", FAST, FAST), slo=SLO)
    changed = written.requests[name].where(written.requests.index > 4, written.requests[start] + by_ns)
    rewrite(written.folder, written.requests.assign(**{name: changed}))
    verdict = judge(analysis.load(written.folder))
    assert verdict.reasons == ("the ledger is broken: 5 arrivals were answered before they were sent",)
    assert verdict.exit_code == 3


def test_a_foreign_run_without_times_of_sending_is_judged(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", _ramp("m/a", FAST, FAST), slo=SLO)
    rewrite(written.folder, written.requests.drop(columns="sent_ns"))
    assert not flaws(analysis.load(written.folder))


@pytest.mark.parametrize("first_ns", [-1, 10**12])
def test_a_first_token_before_its_request_or_after_the_last_one_is_a_flaw(tmp_path: Path, first_ns: int) -> None:
    streamed.written(tmp_path / "run", np.random.default_rng(1), lengths=(30,))
    path = tmp_path / "run" / "requests.parquet"
    rows = pq.read_table(path)
    first = rows["first_ns"].to_pylist()
    first[3] = rows["sent_ns"][3].as_py() + first_ns
    pq.write_table(rows.set_column(rows.column_names.index("first_ns"), "first_ns", pa.array(first)), path)
    assert flaws(analysis.load(tmp_path / "run")) == [
        "the ledger is broken: 1 answers began before their request was sent, or after they had ended"
    ]


def test_missing_rows_are_a_flaw_missing_samples_a_note(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", _ramp("m/a", FAST), slo=SLO, devices=[Waveform()])
    append_event(written.folder, "rows", table="devices", file="devices-0000.arrows", rows=len(written.devices) + 4)
    verdict = judge(analysis.load(written.folder))
    assert verdict.verdict == PASS
    assert verdict.reasons[-1] == "4 recorded device samples are missing from the folder"
    append_event(written.folder, "rows", table="requests", file="requests-0000.arrows", rows=1001)
    verdict = judge(analysis.load(written.folder))
    assert verdict.verdict == INCONCLUSIVE
    assert verdict.reasons[0] == "1 recorded rows of requests are missing from the folder"


@pytest.mark.parametrize(("error_ms", "said"), [(49, False), (51, True)])
def test_a_clock_error_over_half_a_period_is_said(tmp_path: Path, error_ms: int, said: bool) -> None:
    loads = [Load("m/a", 100, lognormal(10))]
    verdict = _judge(tmp_path / "run", loads, devices=[Waveform()], error_ns=error_ms * 10**6)
    assert any("the clock of gpu-host is known to ±51 ms only" in reason for reason in verdict.reasons) == said
    assert verdict.verdict == MEASURED  # latencies need no second clock


def test_a_lost_load_process_costs_its_step_not_the_run(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", _ramp("m/a", FAST, FAST), slo=SLO)
    written.manifest.totals["scheduled"] += 40
    written.manifest.totals["lost"] = 40
    written.manifest.write(written.folder)
    append_event(written.folder, "worker_lost", worker=1, member="w1", steps=[1])
    run = analysis.load(written.folder)
    assert [step.summary.trusted for step in run.measured] == [True, False]
    assert run.measured[1].summary.reasons[0] == "a load process was lost, and its share of the arrivals with it"
    assert judge(run).verdict == PASS
    written.manifest.totals["scheduled"] -= 40  # as many as are recorded
    written.manifest.write(written.folder)
    assert judge(analysis.load(written.folder)).reasons[0] == (
        "the ledger is broken: 3000 arrivals were scheduled, but 3000 are recorded and 40 are said to have gone down "
        "with a load process"
    )


@pytest.mark.parametrize(("late", "n", "doubted"), [(1, 50, False), (2, 50, True), (1, 100, False), (2, 300, False)])
def test_one_hiccup_is_not_a_late_generator(late: int, n: int, doubted: bool) -> None:
    late_ms = np.array([9.0] * late + [0.1] * (n - late))
    assert bool(lateness(percentile(late_ms, 99), late, 1.0)) == doubted


def test_a_page_that_has_new_figures_seldom_is_said(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 50)], devices=[Waveform()])
    source = {"kind": "dcgm", "url": "http://gpu1:9400/metrics", "devices": ["GPU-a"], "period_s": 1.0}
    for changes_s, said in ((30.0, True), (1.02, False), (None, False)):
        written.manifest.extra["device_sources"] = [source | {"changes_s": changes_s}]
        written.manifest.write(written.folder)
        found = [one for one in warnings(analysis.load(written.folder)) if "new figures every 30 s only" in one]
        assert bool(found) is said
