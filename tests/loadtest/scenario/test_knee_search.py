"""The knee search against simulated queues whose limit is known: no sockets, no clock."""

from dataclasses import replace

import numpy as np
import pytest
from often import counts

from tailrate.loadtest.engine.scenario.knee_search import WIDTH, KneeObjective, ProbeOutcome, Search

CONFIDENCE = 0.95
"""Of searches whose interval holds the knee, as it is stated; with many of them: tests/bench/knees.py."""

SERVICE_S, LIMIT_MS = 0.005, 50.0
OBJECTIVE = KneeObjective((("", LIMIT_MS),), 0.01)
M_D_1_LIMIT = 154.7
"""Where one arrival of a hundred takes over 50 ms, from eight million arrivals at each of twelve bisected rates."""


def latencies_ms(arrivals_s, service_s=SERVICE_S):
    """One server, in order, a fixed time each."""
    number = np.arange(len(arrivals_s))
    finished = np.maximum.accumulate(arrivals_s - number * service_s) + (number + 1) * service_s
    return 1e3 * (finished - arrivals_s)


def probe(rate, seconds, rng, settle_s=3.0):
    arrivals = np.cumsum(rng.exponential(1 / rate, int(rate * seconds * 1.3 + 100)))
    arrivals = arrivals[arrivals < seconds]
    latency = latencies_ms(arrivals)[arrivals >= settle_s]
    missed = latency > LIMIT_MS
    share = missed.mean()
    means = np.array([batch.mean() for batch in np.array_split(missed, 20)])
    dependence = means.var(ddof=1) / 20 * len(missed) / (share * (1 - share)) if 0 < share < 1 else 1.0
    return ProbeOutcome(rate, len(missed), int(missed.sum()), dependence, overloaded=rate * SERVICE_S > 1.01)


def find(seed, **given):
    rng = np.random.default_rng(seed)
    settings = {"first_rps": 50.0, "most_rps": np.inf, "probe_s": 30.0, "settle_s": 3.0, "budget_s": 1800.0} | given
    search = Search(OBJECTIVE, **settings)
    spent_s, rates = 0.0, []
    while (wanted := search.probe(spent_s)) is not None:
        rates.append(wanted[0])
        spent_s += wanted[1]
        search.see(probe(*wanted, rng))
    return search.knee, spent_s, rates


@counts(10, 200)
def test_the_limit_of_a_queue_lies_in_the_interval_as_often_as_is_claimed(seeds):
    found = [find(seed) for seed in range(seeds)]
    resolved = [knee for knee, _, _ in found if knee.reason is None]
    assert len(resolved) >= 0.95 * seeds
    assert all(knee.high_rps / knee.low_rps - 1 <= 0.1 for knee in resolved)
    held = sum(knee.low_rps <= M_D_1_LIMIT <= knee.high_rps for knee in resolved)
    # 19 of 20 are claimed; of ten, two more may miss by chance
    assert held >= CONFIDENCE * len(resolved) - (2 if seeds == 10 else 4), f"{held} of {len(resolved)}"
    ends = [(knee, rates) for knee, _, rates in found if knee.reason is None]
    assert all({knee.low_rps, knee.high_rps} <= set(rates) for knee, rates in ends)


def test_a_start_above_the_limit_falls_first():
    knee, _, rates = find(3, first_rps=400.0)
    assert rates[0] > rates[1] > rates[2]
    assert knee.low_rps < M_D_1_LIMIT < knee.high_rps


def cliff(rate, limit, n=2000):
    """An endpoint that misses nothing up to its limit, and drowns beyond it."""
    return ProbeOutcome(rate, n, 0 if rate <= limit else n, overloaded=rate > limit)


@pytest.mark.parametrize("limit", [77.0, 130.0, 1234.0])
def test_a_cliff_is_bisected(limit):
    search, probes = Search(OBJECTIVE, 10.0, np.inf, 30.0, 3.0, 3600.0), 0
    while (wanted := search.probe()) is not None:
        search.see(cliff(wanted[0], limit))
        probes += 1
    knee = search.knee
    assert knee.reason is None
    assert knee.low_rps <= limit <= knee.high_rps
    assert knee.high_rps / knee.low_rps - 1 <= WIDTH
    assert probes < 25


def stalled(rate, seen, n=300):
    """A cliff at 50/s that stands still for 0.4 s in its second probe, a short one: twelve of its arrivals are late."""
    return ProbeOutcome(rate, 90, 12, inflation=3.0) if len(seen) == 1 else cliff(rate, 50.0, n)


@pytest.mark.parametrize("n", [300, 2000])
def test_a_stall_early_in_a_search_is_no_limit(n):
    search, rates = Search(OBJECTIVE, 20.0, np.inf, 9.0, 0.5, 3600.0), []
    while (wanted := search.probe()) is not None:
        search.see(stalled(wanted[0], rates, n))
        rates.append(wanted[0])
    knee = search.knee
    assert knee.reason is None
    assert knee.low_rps <= 50 <= knee.high_rps
    assert len(rates) < 25


def test_a_search_whose_highest_rate_was_kept_says_at_least():
    """Its budget ends right after the first probe above what the stall had spoiled."""
    search, rates = Search(OBJECTIVE, 20.0, np.inf, 9.0, 0.5, 3600.0), []
    while len(rates) < 3 or rates[-1] < max(rates[:-1]):
        rate, _ = search.probe()
        search.see(stalled(rate, rates))
        rates.append(rate)
    assert search.probe(3600.0) is None
    assert (search.knee.low_rps, search.knee.high_rps) == (rates[-1], None)


@pytest.mark.parametrize("limit", [38.0, 39.9])
def test_a_knee_just_below_the_highest_rate_is_found_and_nothing_beyond_it_is_tried(limit):
    search, rates = Search(OBJECTIVE, 10.0, 40.0, 30.0, 3.0, 3600.0), []
    while (wanted := search.probe()) is not None:
        rates.append(wanted[0])
        search.see(cliff(wanted[0], limit))
    assert max(rates) == 40
    assert search.knee.reason is None
    assert search.knee.low_rps <= limit <= search.knee.high_rps <= 40


def test_the_rise_ends_at_the_highest_rate_to_be_tried():
    search = Search(OBJECTIVE, 10.0, 40.0, 30.0, 3.0, 3600.0)
    rates = []
    while (wanted := search.probe()) is not None:
        rates.append(wanted[0])
        search.see(cliff(wanted[0], 1e9))
    assert rates[-1] == 40
    assert search.knee.low_rps == 40
    assert search.knee.high_rps is None
    assert "still holds at 40/s" in search.knee.reason


def test_an_objective_that_no_rate_keeps():
    search = Search(OBJECTIVE, 10.0, np.inf, 30.0, 3.0, 36_000.0)
    while (wanted := search.probe()) is not None:
        search.see(cliff(wanted[0], 0.0))
    assert search.knee.low_rps is None
    assert "missed even at" in search.knee.reason


def test_a_load_generator_that_stands_in_the_way_is_no_limit_of_the_endpoint():
    search, rates = Search(OBJECTIVE, 100.0, np.inf, 30.0, 3.0, 3600.0), []
    while (wanted := search.probe()) is not None:
        rates.append(wanted[0])
        rate = wanted[0]
        search.see(ProbeOutcome(rate, 2000, 0, hindered="it was late" if rate > 200 else None))
    assert rates[-3:] == [rates[-1]] * 3  # tried again before giving up
    assert search.knee.low_rps == 150
    assert search.knee.reason == "client-limited at 225/s: it was late"


def test_probes_are_long_enough_for_their_percentile_and_the_budget_is_kept():
    search = Search(OBJECTIVE, 2.0, np.inf, 30.0, 3.0, 200.0)
    assert search.probe() is None
    assert search.knee.reason == "the budget of 200 s is spent, a probe at 2/s takes 232 s"
    search = Search(OBJECTIVE, 100.0, np.inf, 30.0, 3.0, 200.0)
    assert search.probe() == (100.0, 10.0)
    search.see(cliff(100.0, 120.0))
    search.see(cliff(150.0, 120.0))
    assert search.probe(100.0)[1] == 30
    assert search.probe(171.0) is None
    assert 100 <= search.knee.low_rps <= search.knee.high_rps <= 150
    assert search.knee.reason == "the budget of 200 s is spent"


@pytest.mark.computes
def test_probes_that_contradict_each_other_are_said():
    """An endpoint whose limit is another each time."""
    said = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        search = Search(OBJECTIVE, 100.0, np.inf, 30.0, 3.0, 3600.0)
        while (wanted := search.probe()) is not None:
            search.see(cliff(wanted[0], rng.uniform(110, 200)))
        said.append(search.knee.reason or "resolved")
        if said[-1] != "resolved":
            assert search.knee.high_rps / search.knee.low_rps > 1.1
    # by chance the probes at both ends may agree with the others
    assert sum(reason.startswith("unstable") for reason in said) > 12


@pytest.mark.parametrize(("target", "needed"), [(0.1, 44), (0.01, 459), (0.001, 4603)])
def test_least_arrivals_are_mlperf_s(target, needed):
    assert KneeObjective((("", 1.0),), target).least_n == needed


@pytest.mark.parametrize(
    ("rate", "missed", "wanted"), [(126, 0, None), (126, 900, False), (138, 900, None), (138, 0, True)]
)
def test_a_miss_below_the_interval_contradicts_it_and_so_does_an_objective_kept_above_it(rate, missed, wanted):
    search = Search(OBJECTIVE, 10.0, np.inf, 30.0, 3.0, 3600.0)
    assert search._against(ProbeOutcome(rate, 2000, missed), 126.0, 138.0) is wanted
    assert search._against(ProbeOutcome(rate, 20, missed // 100), 126.0, 138.0) is (False if wanted is False else None)


def test_errors_at_every_rate_leave_no_knee_and_open_ones_are_named():
    search = Search(OBJECTIVE, 100.0, np.inf, 30.0, 3.0, 36_000.0)
    while (wanted := search.probe()) is not None:
        search.see(ProbeOutcome(wanted[0], 2000, 0, overloaded=True, vetoes=(("errors<0.1%", False),)))
    assert search.knee.low_rps is None
    assert "missed even at" in search.knee.reason

    def found(kept):
        search = Search(OBJECTIVE, 50.0, np.inf, 30.0, 3.0, 3600.0)
        while (wanted := search.probe()) is not None:
            search.see(replace(cliff(wanted[0], 130.0), vetoes=(("errors<0.1%", kept),)))
        return search.knee

    assert (found(None).reason, found(None).open) == (None, "errors<0.1%")
    assert found(True).open is None
