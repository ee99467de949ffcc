"""The judge against closed forms, and what must hold whatever the numbers."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from tailrate.analysis.judging import judge
from tailrate.analysis.judging.judge import Window, at_rate
from tailrate.analysis.judging.rates import AtRate, of_rates, sustained
from tailrate.analysis.judging.share import Count, between, judged, percent, terms, times_more
from tailrate.analysis.records.objective import Slo

P99 = Slo.parse("p99<50ms")
(LATENCY,) = terms(P99)


def window(beyond, n=10_000, dependence=1.0, **more):
    return Window((Count(n, beyond, dependence, 60.0),), **more)


def kept(*windows, term=LATENCY):
    return at_rate(term, windows, 0).kept


# ---- one share


@pytest.mark.parametrize("allowed", [0.001, 0.01, 0.05, 0.5])
@pytest.mark.parametrize("n", [5, 100, 459, 2000])
def test_it_is_sure_where_a_binomial_distribution_is(n, allowed):
    for beyond in range(0, n + 1, max(1, n // 60)):
        found = judged(beyond / n, n, allowed)
        above = stats.binom.sf(beyond, n, allowed) >= 0.99
        below = beyond > 0 and stats.binom.sf(beyond - 1, n, allowed) <= 0.01
        assert found is (True if above else False if below else None), beyond


def test_without_a_miss_it_takes_as_many_as_loadgen_asks_for():
    assert [judged(0, n, 0.01) for n in (458, 459)] == [None, True]
    assert math.ceil(LATENCY.least) == 459


def test_the_ends_are_those_of_clopper_and_pearson():
    low, high = between(12 / 1000, 1000)
    found = stats.binomtest(12, 1000).proportion_ci(confidence_level=0.98, method="exact")
    assert (low, high) == pytest.approx((found.low, found.high))
    assert between(0, 100) == pytest.approx((0, 1 - 0.01 ** (1 / 100)))
    assert between(1, 100) == pytest.approx((0.01 ** (1 / 100), 1))


@given(st.integers(1, 5000), st.floats(0, 1), st.floats(1, 500), st.sampled_from([0.001, 0.01, 0.05, 0.3]))
def test_more_beyond_is_never_better_and_more_dependence_never_surer(n, share, dependence, allowed):
    order = {True: 0, None: 1, False: 2}
    beyond = round(share * n)
    here = judged(beyond / n, n / dependence, allowed)
    if beyond < n:
        assert order[judged((beyond + 1) / n, n / dependence, allowed)] >= order[here]
    assert judged(beyond / n, n / (1.5 * dependence), allowed) in (here, None)


@given(st.integers(100, 100_000), st.floats(-3.0, 3.0))
def test_what_would_settle_it_settles_it(n, deviations):
    share = max(0.0, 0.01 + deviations * math.sqrt(0.01 * 0.99 / n))
    assume(judged(share, n, 0.01) is None)
    times = times_more(share, n, 0.01)
    assert times > 1
    if math.isfinite(times):
        assert judged(share, 1.002 * times * n, 0.01) is not None
        assert judged(share, 0.99 * times * n, 0.01) is None or times < 1.02


# ---- terms


def test_all_terms_are_shares_and_the_same_claim_is_the_same_question():
    latency, goodput, errors = terms(Slo.parse("p99<50ms, errors<0.1%, goodput>99%"))
    assert (latency.allowed, latency.limit_ms) == (goodput.allowed, goodput.limit_ms) == (0.01, 50)
    assert (errors.allowed, errors.limit_ms) == (0.001, math.inf)
    assert [one.text for one in (latency, goodput, errors)] == ["p99<50ms", "goodput>99%", "errors<0.1%"]


def test_figures_have_no_dust():
    assert terms(Slo.parse("p99.9<1ms"))[0].allowed == 0.001
    assert percent(8.3e-17) == "0 %"
    assert "0.000000" not in at_rate(LATENCY, [window(1e-13)], 0).sentence


# ---- one rate


def test_a_rate_says_what_it_rests_on():
    assert at_rate(LATENCY, [window(20)], 0).sentence == (
        "p99<50ms is kept: 0.20 % of 10,000 arrivals took longer than 50 ms or failed, where 1 % may"
    )
    told = Window((Count(5000, 0, 4.0, 60.0, "as those above P90 came"),))
    assert at_rate(LATENCY, [told], 0).sentence == (
        "p99<50ms is kept: 0 % of 5,000 arrivals took longer than 50 ms or failed, where 1 % may; worth 1,250 "
        "independent ones (as those above P90 came)"
    )
    said = at_rate(LATENCY, [window(5, 1000, 4.0)], 0)
    assert said.kept is None
    assert not said.against
    assert "worth 250 independent ones" in said.sentence
    assert "more would settle it" in said.sentence
    assert "too near the limit" in at_rate(LATENCY, [window(99)], 0).sentence
    assert at_rate(LATENCY, [window(0, 458)], 0).sentence.endswith("; 1 s more would settle it")


def test_lateness_withholds_a_miss_and_nothing_else():
    late = "the load generator was late"
    assert kept(window(20, late=late)) is True
    missed = at_rate(LATENCY, [window(300, late=late)], 0)
    assert (missed.kept, missed.against) == (None, True)
    assert late in missed.sentence
    (errors,) = terms(Slo.parse("errors<1%"))
    assert kept(window(300, late=late), term=errors) is False  # nothing fails of that


def test_goodput_over_several_limits_is_judged_as_each_of_them():
    slo = Slo.parse("p99 ttft<450ms, p99 tpot<40ms, goodput>99%")
    late = Window((Count(5000, 200),) * 3, late="the load generator was late")
    assert [answer.kept for answer in judge.answers(slo, [late])] == [None] * 3
    grew = Window((Count(5000, 0),) * 3, overloaded="the queue grew")
    assert [answer.kept for answer in judge.answers(slo, [grew])] == [False] * 3


def test_what_is_missed_without_the_late_windows_is_missed():
    late = window(300, late="the load generator was late")
    assert kept(late, window(0, overloaded="the queue grew")) is False
    chapters = [late, *[window(300)] * 9]
    assert at_rate(LATENCY, chapters, 0, rounds=False).kept is False
    assert at_rate(LATENCY, [late, late, window(150)], 0, rounds=False).kept is None


def test_chapters_are_one_measurement_where_rounds_would_disagree():
    chapters = [window(0)] * 5 + [window(2000, dependence=5000)]
    assert kept(*chapters) is None
    assert at_rate(LATENCY, chapters, 0, rounds=False).kept is False
    spread = [window(0)] * 9 + [window(500)]
    assert kept(*spread) is None  # one of them misses
    assert at_rate(LATENCY, spread, 0, rounds=False).kept is True


def test_doubts_withhold_both():
    for beyond in (20, 300):
        assert kept(window(beyond, doubts=("arrivals were dropped",))) is None
    assert at_rate(LATENCY, [window(300, doubts=("dropped",))], 0).against
    assert not at_rate(LATENCY, [window(20, doubts=("dropped",))], 0).against


def test_a_round_that_cannot_be_trusted_withholds_what_the_others_keep_but_not_what_they_miss():
    bad = window(0, doubts=("a load process was lost",))
    assert kept(window(20), window(20), bad) is None
    assert kept(window(300), window(300), bad) is False


def test_overload_is_a_miss_of_latency_and_no_proof_of_success():
    (errors,) = terms(Slo.parse("errors<1%"))
    grew = window(0, overloaded="the queue grew")
    assert kept(grew) is False
    assert kept(grew, term=errors) is None
    assert kept(replace(grew, late="late")) is None


def test_a_round_without_arrivals_withholds_what_the_others_keep_but_not_what_they_miss():
    said = at_rate(LATENCY, [window(20), window(0, 0)], 0)
    assert (said.kept, "no arrivals were recorded in 1 of 2 rounds" in said.sentence) == (None, True)
    assert kept(window(300), window(0, 0)) is False
    assert at_rate(LATENCY, [window(20), window(0, 0)], 0, rounds=False).kept is True  # a gap between hours


def test_unsteadiness_withholds_what_it_may_have_brought_about():
    for beyond, flatters, wanted in ((20, True, None), (20, False, True), (300, True, False), (300, False, None)):
        assert kept(window(beyond, flatters=flatters, unsteady="latency drifts")) is wanted


def test_rounds_are_pooled():
    assert kept(window(0, 250)) is None
    assert kept(window(0, 250), window(0, 250)) is True
    # three of four miss
    assert kept(window(0), window(500), window(500), window(500)) is False


def test_rounds_that_disagree_keep_only_if_none_misses():
    said = at_rate(LATENCY, [window(0), window(0), window(0), window(160)], 0)
    assert said.kept is None
    assert "differ by more than chance (0 % to 1.6 %)" in said.sentence
    assert "1 of 4 miss it" in said.sentence
    assert kept(window(0), window(40)) is True
    assert kept(window(95), window(160), window(0), window(0)) is None


ROUNDS = st.lists(st.tuples(st.integers(200, 30_000), st.floats(0, 0.03)), min_size=1, max_size=5)


@given(ROUNDS, st.integers(0, 4), st.integers(1, 400), st.floats(1, 20))
def test_a_worse_round_never_makes_a_pass(rounds, which, more, dependence):
    windows = [window(round(share * n), n, dependence) for n, share in rounds]
    which %= len(rounds)
    (count,) = windows[which].counts
    worse = list(windows)
    worse[which] = window(min(count.n, count.beyond + more), count.n, dependence)
    if kept(*worse):
        assert kept(*windows)


@given(ROUNDS, st.integers(0, 4), st.sampled_from(["late", "doubts", "overloaded"]), st.floats(1, 20))
def test_less_trust_never_makes_a_pass(rounds, which, kind, dependence):
    windows = [window(round(share * n), n, dependence) for n, share in rounds]
    which %= len(rounds)
    worse = list(windows)
    worse[which] = replace(windows[which], **{kind: ("why",) if kind == "doubts" else "why"})
    if kept(*worse):
        assert kept(*windows)
    if kind != "late":
        assert not kept(*worse)


@given(ROUNDS, st.randoms(use_true_random=False))
def test_the_order_of_rounds_is_nothing(rounds, chance):
    windows = [window(round(share * n), n) for n, share in rounds]
    mixed = chance.sample(windows, len(windows))
    assert kept(*mixed) is kept(*windows)


# ---- rates


def at(rate, beyond, n=10_000, slo=P99, **more):
    counts = tuple(Count(n, beyond) for _ in terms(slo))
    return AtRate(rate, judge.answers(slo, [Window(counts, **more)]), f"{rate}/s")


def test_the_highest_rate_with_nothing_against_it_below_is_sustained():
    found = sustained([at(300, 300), at(100, 20), at(200, 20)])
    assert (found.low.rate, found.high.rate, found.void) == (200, 300, ())
    # a fluke above a miss counts for nothing
    found = sustained([at(100, 20), at(200, 300), at(300, 20)])
    assert (found.low.rate, found.high.rate) == (100, 200)
    assert [one.rate for one in found.void] == [300]


def test_a_lower_rate_that_merely_has_too_few_blocks_nothing_and_one_on_the_wrong_side_does():
    assert sustained([at(10, 0, 200), at(100, 20)]).low.rate == 100
    found = sustained([at(10, 4, 200), at(100, 20)])
    assert found.low is None
    assert found.doubtful.rate == 10
    assert of_rates(P99, [at(10, 4, 200), at(100, 20)], rising=True).kept is None
    assert sustained([at(10, 0, 0), at(100, 20)]).low is None  # nothing at all was recorded there


def test_rising_rates_pass_with_one_that_is_sustained_and_fail_at_the_lowest():
    assert of_rates(P99, [at(100, 20), at(200, 300)], rising=True).kept is True
    assert of_rates(P99, [at(100, 300), at(200, 400)], rising=True).kept is False
    assert of_rates(P99, [at(100, 300), at(200, 20)], rising=True).kept is None
    assert of_rates(P99, [at(100, 20), at(200, 300)], rising=False).kept is False
    assert of_rates(P99, [at(100, 20), at(200, 0, 200)], rising=False).kept is None
    assert of_rates(P99, [], rising=True).kept is None


def test_where_none_is_sustained_a_rate_that_cannot_say_is_named_before_one_above_it_that_misses():
    found = of_rates(P99, [at(10, 0, 200), at(100, 300)], rising=True)
    assert (found.kept, found.sentence.partition(" p99")[0]) == (None, f"at {at(10, 0).name}")


def test_a_rate_is_judged_by_what_was_asked_for():
    slo = Slo.parse("p99<50ms, rate>=200")
    for tried, wanted in (
        ([at(100, 20), at(200, 20)], True),
        ([at(100, 20), at(200, 300)], False),
        ([at(100, 20), at(300, 300)], None),
        ([at(100, 20)], None),
        ([at(100, 300), at(200, 20)], False),
    ):
        assert of_rates(slo, tried, rising=True).kept is wanted
    # at every rate that was tried
    assert of_rates(slo, [at(250, 300), at(300, 300)], rising=True).kept is False
    assert of_rates(slo, [at(250, 300), at(300, 20)], rising=True).kept is None


@pytest.mark.parametrize("rising", [True, False])
def test_a_rate_alone_is_kept_where_requests_sent_in_time_are_answered(rising):
    alone = Slo.parse("rate>=200")

    def found(rate, beyond, *more, n=10_000, **why):
        return of_rates(alone, [at(rate, beyond, n, alone, **why), *more], rising)

    assert found(200, 0).kept is True
    assert found(150, 0).kept is None
    for failed in (10_000, 9_000, 150):
        assert found(200, failed, at(100, 0, slo=alone)).kept is False
    grew, late = "the queue grew", "the load generator was late"
    assert found(200, 0, overloaded=grew).sentence == f"rate>=200 is missed: at 200/s this rate is missed: {grew}"
    for why in ({"late": late}, {"late": late, "overloaded": grew}, {"doubts": ("a load process was busy",)}):
        assert found(200, 0, **why).kept is None
    assert found(200, 0, n=0).kept is None
    assert found(200, 0, n=100).kept is None


def test_errors_beside_a_rate_are_not_kept_by_a_queue_or_by_sending_late():
    slo = Slo.parse("errors<1%, rate>=200")
    assert of_rates(slo, [at(200, 0, slo=slo)], rising=True).kept is True
    assert of_rates(slo, [at(200, 0, slo=slo, overloaded="the queue grew")], rising=True).kept is False
    assert of_rates(slo, [at(200, 0, slo=slo, late="late")], rising=True).kept is None


def test_errors_kept_at_a_higher_sustained_rate_answer_lower_ones_with_too_few():
    goodput = Slo.parse("p50 ttft<450ms, p50 tpot<40ms, goodput>99%")
    rates = [at(10, 0, 300, goodput), at(200, 0, slo=goodput)]
    assert of_rates(goodput, rates, rising=False).kept is None  # a lower rate has other latencies
    slo = Slo.parse("p90<50ms, errors<0.1%")
    few, enough = at(10, 0, 300, slo=slo), at(200, 0, slo=slo)
    assert few.kept is None
    assert of_rates(slo, [few, enough], rising=False).kept is True
    assert of_rates(slo, [replace(few, rate=300), enough], rising=False).kept is None
    failing = AtRate(10, (few.answers[0], at_rate(terms(slo)[1], [Window((Count(300, 0), Count(300, 1)))], 1)), "10/s")
    assert failing.against
    assert of_rates(slo, [failing, enough], rising=False).kept is None
    lost = at_rate(terms(slo)[1], [Window((Count(300, 0), Count(300, 0)), doubts=("a load process was lost",))], 1)
    doubted = AtRate(10, (few.answers[0], lost), "10/s")
    assert of_rates(slo, [doubted, enough], rising=False).kept is None  # it is not for too few that it cannot say


RATES = st.lists(st.tuples(st.integers(0, 400), st.sampled_from([100, 300, 1000, 10_000])), min_size=1, max_size=5)


@given(RATES, st.integers(0, 4), st.integers(1, 300), st.booleans(), st.sampled_from([None, 2.0, 4.0]))
def test_a_worse_rate_never_makes_a_pass(tried, which, more, rising, wanted):
    slo = replace(P99, min_rate_rps=wanted)
    rates = [at(number + 1, min(n, beyond), n, slo) for number, (beyond, n) in enumerate(tried)]
    which %= len(rates)
    beyond, n = tried[which]
    worse = list(rates)
    worse[which] = at(which + 1, min(n, beyond + more), n, slo)
    if of_rates(slo, worse, rising).kept:
        assert of_rates(slo, rates, rising).kept
    for mixed in itertools.islice(itertools.permutations(rates), 6):
        assert of_rates(slo, mixed, rising).kept is of_rates(slo, rates, rising).kept


def test_chance_is_held_to_what_is_stated():
    """True shares at the limit are called kept, and missed, in one of a hundred cases each at most."""
    draws = np.random.default_rng(5).binomial(5000, 0.01, 4000)
    found = [judged(beyond / 5000, 5000, 0.01) for beyond in draws]
    assert found.count(True) <= 0.015 * len(found)
    assert found.count(False) <= 0.015 * len(found)
    assert found.count(True) > 0
    assert found.count(False) > 0
