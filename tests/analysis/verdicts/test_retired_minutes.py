"""Chapters of a soak whose rows are gone are judged by what their minutes say."""

import math

import numpy as np
import pytest
from folders import START_NS, Load, constant, make_run, rewrite
from hypothesis import given
from hypothesis import strategies as st

from tailrate import analysis
from tailrate.analysis.judging.judge import Window, answers
from tailrate.analysis.judging.share import Count
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.verdicts.retired_minutes import windows
from tailrate.analysis.verdicts.verdict import judge

SLO = Slo.parse("p99<50ms, errors<1%")
CHAPTERS, CHAPTER_S = 5, 120


def minute(latency_ms, start_s=0.0, told=True):
    """As a soak notes it; a failure is infinitely long."""
    failed = int(np.isinf(latency_ms).sum())

    def percentile(q):
        value = float(np.quantile(latency_ms, q, method="higher"))
        return value if math.isfinite(value) else None

    counts = [
        {"limit_ms": None if math.isinf(limit) else limit, "beyond": beyond, "worth": len(latency_ms) / 2}
        for limit, beyond in ((50.0, int((latency_ms > 50).sum())), (math.inf, failed))
    ]
    start_ns = START_NS + round(start_s * 1e9)
    return {
        "endpoint": "m/a", "start_ns": start_ns, "end_ns": start_ns + 60 * 10**9, "n": len(latency_ms),
        "ok": len(latency_ms) - failed, "p50_ms": percentile(0.5), "p99_ms": percentile(0.99),
    } | ({"counts": counts} if told else {})  # fmt: skip


LATENCIES = st.lists(st.sampled_from([1.0, 20.0, 50.0, 51.0, 90.0, math.inf]), min_size=1, max_size=300)


def _together(windows):
    """Beyond each limit."""
    return [sum(column) for column in zip(*([one.beyond for one in window.counts] for window in windows), strict=True)]


@given(st.lists(LATENCIES, min_size=1, max_size=4))
def test_two_percentiles_leave_the_number_between_a_least_and_a_most(lists):
    latencies = [np.array(one) for one in lists]
    least, most = (_together(end) for end in windows([minute(one, told=False) for one in latencies], SLO))
    late, failed = (sum(int(over(one).sum()) for one in latencies) for over in (lambda ms: ms > 50, np.isinf))
    assert least[0] <= late <= most[0] <= sum(map(len, latencies))
    assert least[1] == most[1] == failed  # failures are counted


@given(st.lists(LATENCIES, min_size=1, max_size=4))
def test_what_a_minute_says_is_taken_as_it_is(lists):
    latencies = [np.array(one) for one in lists]
    least, most = windows([minute(one) for one in latencies], SLO)
    assert least == most
    for one, window in zip(latencies, least, strict=True):
        late, failed = window.counts
        assert (late.n, late.beyond, failed.beyond) == (len(one), (one > 50).sum(), np.isinf(one).sum())
        assert late.worth == pytest.approx(max(1, len(one) / 2))
        assert late.seconds == 60


def soaked(folder, before, told=True, gone=2):
    """A soak at 100/s of several chapters, whose first were deleted; `before` was their latency, then 10 ms."""
    latency = {True: before, False: constant(10)}
    loads = [Load("m/a", 100, latency[number < gone], seconds=CHAPTER_S, block=number) for number in range(CHAPTERS)]
    written = make_run(folder, loads, mode="soak", slo=[str(SLO)])
    rows = written.requests
    for chapter in range(gone):
        mine = rows[rows["step"] == chapter]
        ok = int((mine["status"] == "200").sum())
        totals = {"scheduled": len(mine), "ok": ok, "failed": len(mine) - ok, "timed_out": 0, "dropped": 0, "lost": 0}
        name = f"requests-{chapter:04d}.arrows"
        append_event(written.folder, "retired", steps=[chapter], rows=len(mine), files=[name], totals=totals)
        for number in range(2):
            start_s = chapter * CHAPTER_S + 60 * number
            due_s = (mine["intended_ns"] - START_NS) / 1e9
            part = mine[(due_s >= start_s) & (due_s < start_s + 60)]
            taken = (part["done_ns"] - part["intended_ns"]).astype("float64").to_numpy() / 1e6
            append_event(written.folder, "minute", **minute(taken, start_s, told))
    rewrite(written.folder, rows[rows["step"] >= gone])
    return judge(analysis.load(written.folder))


@pytest.mark.parametrize("told", [True, False])
def test_deleted_chapters_that_missed_the_objective_are_not_forgotten(tmp_path, told):
    slow = lambda rng, at_s: np.where(np.arange(len(at_s)) % 5 == 0, 90.0, 10.0)  # noqa: E731
    missed = soaked(tmp_path / "missed", slow if told else constant(90), told)
    assert missed.verdict == "fail", missed.reasons
    assert "of 60,000 arrivals took longer than 50 ms" in missed.reasons[0]
    assert soaked(tmp_path / "kept", constant(10), told).verdict == "pass"


def test_an_older_run_is_answered_only_where_bounds_decide(tmp_path):
    """Just over one of a hundred took long: P99 says no more than that it is at least so many."""
    some = lambda rng, at_s: np.where(np.arange(len(at_s)) % 95 == 0, 90.0, 10.0)  # noqa: E731
    found = soaked(tmp_path / "told", some, gone=1)
    assert found.verdict == "pass", found.reasons  # 0.2 % of all
    assert soaked(tmp_path / "old", some, told=False, gone=1).verdict == "inconclusive"


def test_slices_of_deleted_rows_are_not_known():
    """Whatever the rest shows, it is no pass; a miss of the rest is one of all."""
    slo = Slo.parse("[long] p99<50ms")
    least, most = windows([minute(np.full(1000, 10.0))], slo)
    assert least == most
    good, bad = (Window((Count(2000, beyond),)) for beyond in (0, 200))
    (kept,), (missed,) = (answers(slo, [*least, rest], rounds=False) for rest in (good, bad))
    assert (kept.kept, missed.kept) == (None, False)
    assert "slices, were deleted" in kept.sentence
