"""What a search is told of a step, from rows alone."""

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from tailrate.analysis.judging.share import terms
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.records.rows import REQUEST_COLUMNS
from tailrate.loadtest.engine.live.step_stats import SURELY_RISING, Live, _trend
from tailrate.loadtest.engine.record.segments import schema_of
from tailrate.loadtest.engine.scenario.knee_search import KneeObjective
from tailrate.loadtest.engine.scenario.steps import LoadStep
from tailrate.loadtest.engine.soak.minutes import Minutes

START = 1_790_000_000_000_000_000
SCHEMA = schema_of(REQUEST_COLUMNS)
OBJECTIVE = KneeObjective((("", 50.0),), 0.01)


def batch(intended_s, latency_ms, statuses=None, late_ms=0.0):
    count = len(intended_s)
    intended = [START + int(at * 1e9) for at in intended_s]
    sent = [at + int(late_ms * 1e6) for at in intended]
    done = [at + int(ms * 1e6) for at, ms in zip(intended, latency_ms, strict=True)]
    known = {
        "intended_ns": intended,
        "sent_ns": sent,
        "done_ns": done,
        "status": statuses or ["200"] * count,
        "step": [0] * count,
    }
    columns = [pa.array(known.get(field.name, [None] * count), field.type) for field in SCHEMA]
    return pa.record_batch(columns, schema=SCHEMA)


def live(rate=100.0, seconds=20.0, settle_s=5.0):
    step = LoadStep(0, "a/x", rate, seconds, settle_s, 0, 1)
    return Live(step, START, np.arange(int(rate * seconds)) / rate, keep=True)


def outcome(found, seconds=20.0, cpu_pct=10.0, cut=False):
    return found.outcome(OBJECTIVE, seconds, cpu_pct, cut)


def test_misses_are_counted_behind_the_settle_time():
    found = live()
    at = np.arange(2000) / 100
    found.see(batch(at, np.where(at < 5, 500.0, np.where(at >= 19.9, 51.0, 10.0))))
    seen = outcome(found)
    assert (seen.n, seen.missed, seen.overloaded, seen.hindered) == (1500, 10, False, None)
    assert seen.rate == 100


def test_failures_are_misses():
    found = live()
    at = np.arange(2000) / 100
    found.see(batch(at, np.full(2000, 1.0), ["200"] * 1990 + ["500"] * 10))
    assert outcome(found).missed == 10
    assert found.figures(20.0)["statuses"] == {"200": 1990, "500": 10}


def test_a_queue_that_grows_is_overload_and_cut_early():
    found = live(settle_s=0.0)
    at = np.arange(2000) / 100
    latency = at * 150.0  # a seventh more comes than goes
    answered = at + latency / 1e3 < 8.0
    found.see(batch(at[answered], latency[answered]))
    assert found.drowning(9.0, OBJECTIVE)
    assert not found.drowning(4.5, OBJECTIVE)  # too early to tell
    found.see(batch(at[~answered], latency[~answered]))
    seen = outcome(found)
    assert seen.missed > 0.95 * seen.n
    assert outcome(found, cut=True).overloaded


def test_a_probe_that_was_cut_while_it_settled_is_overloaded_and_no_fault_of_the_load_generator():
    found = live(settle_s=10.0)
    at = np.arange(800) / 100
    found.see(batch(at, at * 150.0))
    seen = outcome(found, seconds=8.0, cut=True)
    assert (seen.n, seen.overloaded, seen.hindered) == (0, True, None)


def test_drops_are_the_endpoints_where_its_queue_grew_up_to_them_else_the_load_generators():
    at = np.arange(2000) / 100
    statuses = ["dropped" if k % 5 == 0 and at[k] > 4 else "200" for k in range(2000)]
    queue, flat = live(), live()
    queue.see(batch(at, np.minimum(10 + 200 * at, 800), statuses))
    flat.see(batch(at, np.full(2000, 800.0), statuses))
    assert (outcome(queue).overloaded, outcome(queue).hindered) == (True, None)
    assert not outcome(flat).overloaded
    assert "raise --max-in-flight to 120" in outcome(flat).hindered  # 100/s of 0.8 s, and half of it more


def test_a_busy_queue_that_does_not_grow_is_no_overload():
    found, rng = live(settle_s=0.0), np.random.default_rng(1)
    at = np.arange(2000) / 100
    found.see(batch(at, rng.exponential(30.0, 2000)))
    assert not found.drowning(15.0, OBJECTIVE)
    assert not outcome(found).overloaded
    assert outcome(found, cut=True).overloaded


def streams(at, first_ms, whole_ms, events=101):
    """The same as streams, of so many tokens in as many events."""
    found = batch(at, whole_ms)
    first = [START + int((s + ms / 1e3) * 1e9) for s, ms in zip(at, first_ms, strict=True)]
    columns = dict(zip(SCHEMA.names, found.columns, strict=True)) | {
        "first_ns": pa.array(first), "last_ns": found.column("done_ns"),
        **dict.fromkeys(("events", "tokens_out"), pa.array(np.broadcast_to(events, len(at)), pa.int32())),
    }  # fmt: skip
    return pa.record_batch([columns[field.name].cast(field.type) for field in SCHEMA], schema=SCHEMA)


TTFT = KneeObjective((("ttft", 50.0), ("tpot", 45.0)), 0.01)


def test_a_server_that_fills_with_streams_does_not_drown():
    """In its first ten seconds ever more are under way, and those that are over are the short ones."""
    at = np.arange(2000) / 100
    whole = np.random.default_rng(1).uniform(1000, 10_000, 2000)
    for elapsed_s in range(5, 20):
        found, answered = live(settle_s=0.0), at + whole / 1e3 < elapsed_s - 0.3
        found.see(streams(at[answered], np.full(answered.sum(), 20.0), whole[answered]))
        assert not found.drowning(elapsed_s, TTFT)


def test_a_queue_for_a_server_that_streams_grows():
    at = np.arange(2000) / 100
    queue = live(settle_s=0.0)
    whole = 3000 + 300 * at  # what waits before its first token
    answered = at + whole / 1e3 < 17.7
    queue.see(streams(at[answered], whole[answered] - 2980, whole[answered]))
    assert queue.drowning(18.0, TTFT)
    assert not queue.drowning(18.0, KneeObjective((("tpot", 45.0),), 0.01))  # of which that says nothing


def test_of_several_limits_the_one_that_most_miss_is_what_a_probe_showed():
    at = np.arange(2000) / 100
    found = live()
    first = np.where(np.arange(2000) % 15 == 0, 60.0, 20.0)  # behind the settle time a hundred
    whole = first + np.where(at > 19.5, 46.0, 10.0) * 100  # some fifty
    found.see(streams(at, first, whole))
    seen = found.outcome(TTFT, 20.0, 10.0, False)
    assert (seen.n, seen.missed) == (1500, 100)
    only = found.outcome(KneeObjective((("tpot", 45.0),), 0.01), 20.0, 10.0, False, terms(Slo.parse("p99 ttft<50ms")))
    assert (only.missed, only.vetoes, only.overloaded) == (49, (("p99 ttft<50ms", False),), True)


def test_a_share_of_times_per_token_is_one_of_the_answers_that_have_one():
    """Three of four come in one event, and of the others one in fifty is slow."""
    number = np.arange(2000)
    at, events = number / 100, np.where(number % 4, 1, 101)
    whole = np.where(number % 200, 1000.0, 9000.0)
    found, only = live(), KneeObjective((("tpot", 45.0),), 0.01)
    found.see(streams(at, np.full(2000, 20.0), whole, events))
    seen = found.outcome(only, 20.0, 10.0, False, terms(Slo.parse("p99 tpot<45ms")))
    assert (seen.n, seen.missed, seen.hindered) == (375, 7, None)
    assert seen.vetoes == (("p99 tpot<45ms", None),)  # 1.9 %, of so few
    none = live()
    none.see(streams(at, np.full(2000, 20.0), whole, 1))
    assert none.outcome(only, 20.0, 10.0, False).hindered == "no arrival was recorded that has what is searched for"


def test_what_the_load_generator_did_wrong_is_said():
    at = np.arange(2000) / 100
    found = live()
    found.see(batch(at, np.full(2000, 10.0), late_ms=3.0))
    assert outcome(found).hindered is None  # kept all the same
    found = live()
    found.see(batch(at, np.where(at % 1 < 0.05, 60.0, 10.0), late_ms=3.0))
    assert "was late: P99 3 ms" in outcome(found).hindered
    found = live()
    found.see(batch(at, np.full(2000, 10.0), ["200"] * 1990 + ["dropped"] * 10))
    assert "dropped" in outcome(found).hindered
    found = live()
    found.see(batch(at, np.full(2000, 10.0)))
    assert outcome(found).hindered is None
    assert "busy for 90 %" in outcome(found, cpu_pct=90.0).hindered
    assert live().outcome(OBJECTIVE, 20.0, 1.0, False).hindered == "no arrival was recorded"


@pytest.mark.parametrize(("trend", "chance"), [(SURELY_RISING, 0.0005)])
def test_a_trend_is_as_rare_by_chance_as_is_claimed(trend, chance):
    values = np.arange(10.0)
    swaps = 0
    while _trend(values) > trend:  # ever less ordered, until just as far as claimed
        values[[swaps % 9, swaps % 9 + 1]] = values[[swaps % 9 + 1, swaps % 9]]
        swaps += 1
    assert _trend(values) == trend
    found = stats.kendalltau(np.arange(10), values, alternative="greater", method="exact")
    assert found.pvalue < chance


def test_dependence_tells_clumps_from_single_misses():
    at = np.arange(20_000) / 1000

    def told(seed, length):
        found = live(rate=1000.0, settle_s=0.0)
        clumps = np.repeat(np.random.default_rng(seed).random(20_000 // length) < 0.05, length)
        found.see(batch(at, np.where(clumps, 90.0, 10.0)))
        return outcome(found).inflation

    assert np.mean([told(seed, 1) for seed in range(20)]) == pytest.approx(1, abs=0.3)
    assert np.mean([told(seed, 40) for seed in range(20)]) == pytest.approx(40, rel=0.3)
    assert outcome(live()).inflation == 1


def test_a_closed_loop_says_how_many_are_under_way():
    step = LoadStep(0, "a/x", 0.0, 20.0, 0.0, 0, 1, concurrency=8)
    found = Live(step, START, np.empty(0))
    found.see(batch([0.0, 1.0], [5.0, 7.0]))
    assert "8 under way" in found.sentence(20.0)
    assert found.figures(20.0)["p99_ms"] == 7


def test_errors_are_a_veto_and_what_they_leave_open_is_said():
    (_, errors) = terms(Slo.parse("p99<50ms, errors<1%"))
    at = np.arange(2000) / 100

    def vetoed(failed):
        found = live()
        found.see(batch(at, np.full(2000, 10.0), ["503" if k % 20 < failed else "200" for k in range(2000)]))
        return found.outcome(OBJECTIVE, 20.0, 10.0, False, [errors])

    assert (vetoed(2).vetoes, vetoed(2).overloaded) == ((("errors<1%", False),), True)
    assert (vetoed(0).vetoes, vetoed(0).overloaded) == ((("errors<1%", True),), False)


def test_so_far_the_judge_says_what_it_says_of_the_whole():
    slos = [Slo.parse("p90<50ms, errors<1%")]
    found = Live(LoadStep(0, "a/x", 100.0, 30.0, 5.0, 0, 1), START, np.arange(3000) / 100, slos=slos)
    assert found.answers() == []
    rng, at = np.random.default_rng(1), np.arange(3000) / 100
    found.see(batch(at[:400], np.full(400, 90.0)))  # it settles
    assert found.answers() == []
    found.see(batch(at[400:], np.where(rng.random(2600) < 0.02, 90.0, 10.0)))
    latency, failures = found.answers()
    assert (latency.kept, failures.kept) == (True, True)
    assert "of 2,500 arrivals took longer than 50 ms" in latency.sentence


def test_while_it_runs_a_limit_is_kept_to_the_nanosecond_as_afterwards():
    """Instants are counted from 1970, which floating point knows to a quarter of a microsecond."""
    at = np.arange(2000) / 100
    kept, missed = live(), live()
    kept.see(batch(at, np.full(2000, 50.0)))
    missed.see(batch(at, np.full(2000, 50.000001)))
    assert (outcome(kept).missed, outcome(missed).missed) == (0, 1500)


def test_a_2xx_with_an_error_is_no_success_while_it_runs_either():
    rows = batch([0.0, 1.0, 2.0], [5.0, 7.0, 9.0])
    columns = dict(zip(SCHEMA.names, rows.columns, strict=True)) | {"error": pa.array(["", "broken", None])}
    found, minutes = live(), Minutes(timeout_s=1.0)
    minutes.begin(START, START + 60_000_000_000)
    for each in (found, minutes):
        each.see(pa.record_batch([columns[field.name] for field in SCHEMA], schema=SCHEMA))
    (minute,) = minutes.over()
    assert (found.answered, found.n) == (2, 3)
    assert (minute.latency.finite, minute.latency.infinite) == (2, 1)


def test_what_an_overloaded_server_answers_after_the_end_is_no_rate_of_the_step():
    """150/s come and 100/s are answered: a third when nothing is sent any more."""
    at = np.arange(3000) / 150
    done_s = (np.arange(3000) + 1) / 100
    found, cut = live(rate=150.0), live(rate=150.0)
    for each in (found, cut):
        each.see(batch(at[:1500], (done_s - at)[:1500] * 1e3))
    cut.cut(START + int(18e9))
    for each in (found, cut):
        each.see(batch(at[1500:], (done_s - at)[1500:] * 1e3))
    assert found.figures(20.0)["achieved_rps"] == pytest.approx(100, abs=0.1)
    assert cut.figures(18.0)["achieved_rps"] == pytest.approx(100, abs=0.1)
    assert "answered 100/s" in found.sentence(20.0)
