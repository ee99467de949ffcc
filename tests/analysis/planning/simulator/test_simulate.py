"""The compiled simulation against a plain one, request by request, and against what theory knows."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from heaped import Heaped
from queues import mdc_latency_s, mmc_latency_s

from tailrate.analysis.planning.simulator.fleet import AWAKE, ROUTERS, Autoscaling, Waking
from tailrate.analysis.planning.simulator.queueing_theory import stable_below_rps
from tailrate.analysis.planning.simulator.simulate import Fleet, Outage, Routing, Rule, Service, knee, simulate

SPREAD = np.exp(0.3 * np.random.default_rng(5).normal(size=(2, 64)))


def affine(most, fixed_s=0.010, each_s=0.001, spread=None):
    mean_s = fixed_s + each_s * np.arange(most + 1)
    grid = np.ones((1, 1)) if spread is None else spread / spread.mean(axis=1, keepdims=True)
    of = np.minimum(np.arange(most + 1) // 2, len(grid) - 1)
    return Service(mean_s, grid, of, np.zeros(1))


def poisson(rate, n, seed=1):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n))


OUTAGES = (Outage(0, 0.3, 0.6), Outage(1, 0.5), Outage(2, 0.55, 0.7), Outage(0, 0.55, 0.58))


@pytest.mark.computes
@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("routing", ROUTERS)
def test_every_request_takes_as_long_as_in_a_plain_simulation(rule, routing):
    kinds = itertools.product((1, 3), (1, 4), (0.0, 0.004, 0.02), (0.3, 0.9, 1.5), (0, 5), ((), OUTAGES))
    seen = 0
    for seed, (replicas, most, wait_s, load, queue, outages) in enumerate(kinds):
        waking = Waking(0.002, 0.03, 0.004) if seed % 2 else AWAKE
        told_s, wake_s = 0.0007 * (seed % 3) * np.minimum(np.arange(most + 1), 2), 0.0011 * (seed % 5 > 2)
        service = replace(affine(most, spread=SPREAD), waking=waking, telling_s=told_s, wake_s=wake_s)
        outages = tuple(outage for outage in outages if outage.replica < replicas)
        fleet = Fleet(service, replicas, most, wait_s, rule, routing, queue, outages)
        arrivals_s = poisson(load * fleet.limit_rps, 300, seed)
        plain = Heaped(fleet, seed)
        wanted = plain.latencies(arrivals_s.tolist())
        found = simulate(arrivals_s, fleet, seed)
        assert found.latency_s.tolist() == wanted, fleet
        assert (found.refused, found.lost) == (plain.refused, plain.lost)
        assert found.batches.tolist() == plain.batches or outages
        answered = int(np.isfinite(found.latency_s).sum())
        assert answered + found.refused + found.lost == len(arrivals_s)
        seen += found.refused > 0 and found.lost > 0
    assert seen > 5


def test_a_full_queue_refuses_and_a_lost_replica_loses_what_it_holds():
    service = affine(1, fixed_s=0.9, each_s=0.1)
    fleet = Fleet(service, 1, 1, 0.0, Rule.OPPORTUNISTIC, Routing.LEAST, queue=2, outages=(Outage(0, 2.5, 4.0),))
    found = simulate(np.array([0.0, 0.1, 0.2, 0.3, 2.6, 4.0]), fleet)
    assert found.latency_s.tolist() == pytest.approx([1.0, 1.9, math.inf, math.inf, math.inf, 1.0])
    assert (found.refused, found.lost) == (2, 1)
    assert found.busy_s == pytest.approx(3.5)
    assert found.span_s == 5.0
    assert found.replica_s == pytest.approx(3.5)
    assert found.utilisation == pytest.approx(1.0)
    assert found.quantile(50, 0) == math.inf
    assert found.quantile(40, 0) == pytest.approx(1.9)
    assert found.keeps(40, 2.0, 0)
    assert not found.keeps(41, 2.0, 0)


def test_a_replica_that_was_idle_takes_longer_for_its_next_batch():
    service = replace(affine(1, fixed_s=0.9, each_s=0.1), waking=Waking(1.0, 3.0, 0.4))
    fleet = Fleet(service, 1, 1, 0.0, Rule.OPPORTUNISTIC, Routing.LEAST)
    # at first, after half a second, at once, after two seconds, after a minute
    found = simulate(np.array([0.0, 1.9, 2.5, 5.9, 67.1]), fleet)
    assert found.latency_s.tolist() == pytest.approx([1.4, 1.0, 1.4, 1.2, 1.4])
    assert found.busy_s == pytest.approx(6.0)


def test_a_batch_behind_a_larger_one_takes_longer_unless_there_is_a_pause_between():
    service = replace(affine(4, fixed_s=0.6, each_s=0.1), telling_s=0.05 * np.arange(5))
    fleet = Fleet(service, 1, 4, 0.0, Rule.OPPORTUNISTIC, Routing.LEAST)
    # one alone, four who came meanwhile, one behind these, one after a pause that is too short, one after a long one
    found = simulate(np.array([0.0, 0.1, 0.1, 0.1, 0.1, 0.7, 2.39, 9.0]), fleet)
    four_s, one_s = 1.0 + 0.05 * (1 - 4), 0.7 + 0.05 * (4 - 1)
    ends_s = [0.65, *4 * [0.65 + four_s], 0.65 + four_s + one_s]
    assert found.latency_s[:6].tolist() == pytest.approx((np.array(ends_s) - [0.0, *4 * [0.1], 0.7]).tolist())
    assert found.latency_s[6:].tolist() == pytest.approx([0.7 - (2.39 - ends_s[5]), 0.65])
    hasty = replace(fleet, service=replace(service, telling_s=np.arange(5.0)))
    assert simulate(np.zeros(1), hasty).latency_s.tolist() == [0.0]  # no batch ends before it begins


@pytest.mark.parametrize("routing", [Routing.LEAST, Routing.ONE_QUEUE])
def test_who_comes_while_an_idle_replica_wakes_is_taken_along(routing):
    service = replace(affine(4, fixed_s=0.6, each_s=0.1), wake_s=0.25)
    fleet = Fleet(service, 1, 4, 0.0, Rule.OPPORTUNISTIC, routing)
    # one, another while it wakes, a third who waits for both and for nothing else, then four at once
    found = simulate(np.array([0.0, 0.2, 0.3, 9.0, 9.0, 9.0, 9.0]), fleet)
    assert found.latency_s.tolist() == pytest.approx([1.05, 0.85, 0.75 + 0.7, 1.0, 1.0, 1.0, 1.0])
    assert found.batches.tolist() == [0, 1, 1, 0, 1]
    waits = simulate(np.array([0.0, 0.2]), replace(fleet, batch_wait_s=0.1))
    assert waits.latency_s.tolist() == pytest.approx([0.8, 1.4])  # a batch wait is not made longer by it


def test_the_same_seed_gives_the_same_and_another_one_another():
    arrivals_s = poisson(2000, 5000)
    service = replace(affine(8, spread=SPREAD), overhead_s=np.linspace(0.001, 0.002, 16), answer_s=0.003)
    fleet = Fleet(service, 20, 8, 0.002, Rule.COMPANY, Routing.TWO_CHOICES)
    one, two, other = (simulate(arrivals_s, fleet, seed).latency_s for seed in (7, 7, 8))
    assert one.tolist() == two.tolist()
    assert (one != other).mean() > 0.9
    bare = simulate(arrivals_s, replace(fleet, service=replace(service, overhead_s=np.zeros(1), answer_s=0.0)), 7)
    added_s = one - bare.latency_s
    assert added_s.min() == pytest.approx(0.004)
    assert added_s.max() == pytest.approx(0.005)
    assert np.unique(added_s.round(9)).size == 16


@pytest.mark.parametrize("routing", [Routing.LEAST, Routing.ONE_QUEUE])
def test_what_a_request_spends_after_its_batch_goes_by_the_batch_and_occupies_nothing(routing):
    service = affine(4, fixed_s=0.8, each_s=0.1)
    fleet = Fleet(service, 1, 4, 0.0, Rule.OPPORTUNISTIC, routing)
    arrivals_s = np.array([0.0, 0.1, 0.2, 0.3, 5.0])  # one alone, then three together, then one alone
    bare = simulate(arrivals_s, fleet)
    assert bare.batches.tolist() == [0, 2, 0, 1, 0]
    after_s = np.array([0.0, 0.01, 0.02, 0.5, 1.0])
    found = simulate(arrivals_s, replace(fleet, service=replace(service, after_s=after_s)))
    assert (found.latency_s - bare.latency_s).tolist() == pytest.approx([0.01, 0.5, 0.5, 0.5, 0.01])
    assert found.batches.tolist() == bare.batches.tolist()
    assert found.busy_s == bare.busy_s
    twice = simulate(arrivals_s, replace(fleet, service=replace(service, after_s=after_s).farther(2.0)))
    assert (twice.latency_s - bare.latency_s).tolist() == pytest.approx([0.02, 1.0, 1.0, 1.0, 0.02])


def test_times_after_batches_are_of_all_sizes():
    with pytest.raises(ValueError, match="each of 4 sizes of a batch needs a time after it"):
        replace(affine(4, 0.8, 0.1), after_s=np.zeros(4))


def test_quantiles_count_what_was_never_answered_and_leave_out_the_beginning():
    fleet = Fleet(affine(1, 0.9, 0.1), 1, 1, 0.0, Rule.OPPORTUNISTIC, Routing.LEAST, queue=1)
    found = simulate(np.concatenate([[0.0, 0.0, 0.0], 10.0 + np.arange(7) * 2]), fleet)
    assert found.quantile(99, 0) == math.inf
    assert found.quantile(99, 0.3) == pytest.approx(1.0)
    assert found.mean_batch == 1.0
    assert found.batches.tolist() == [0, 9]


@pytest.mark.parametrize("load", [0.3, 0.7])
@pytest.mark.parametrize("routing", [Routing.TWO_CHOICES, Routing.LEAST])
def test_one_replica_without_batches_is_mm1_or_md1(load, routing):
    arrivals_s = poisson(load, 1_000_000, 3)
    exponential = -np.log((np.arange(1 << 16) + 0.5) / (1 << 16))[None, :]
    for grid, theory in ((exponential, mmc_latency_s), (np.ones((1, 1)), mdc_latency_s)):
        service = Service(np.array([0.0, 1.0]), grid, np.zeros(2, dtype=np.int64), np.zeros(1))
        found = simulate(arrivals_s, Fleet(service, 1, 1, 0.0, Rule.OPPORTUNISTIC, routing))
        for percent in (50, 90, 99):
            assert found.quantile(percent) == pytest.approx(theory(load, 1.0, 1, percent), rel=0.02)


@pytest.mark.parametrize("replicas", [3, 20])
def test_replicas_in_turn_are_one_queue_where_all_requests_take_the_same_time(replicas):
    found = simulate(
        poisson(0.8 * replicas, 1_000_000),
        Fleet(Service.steady(np.array([0.0, 1.0])), replicas, 1, 0.0, Rule.OPPORTUNISTIC, Routing.ROUND_ROBIN),
    )
    for percent in (50, 90, 99):
        wanted = mdc_latency_s(0.8 * replicas, 1.0, replicas, percent)
        assert found.quantile(percent) == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("replicas", [1, 5, 8])
@pytest.mark.parametrize("load", [0.5, 0.7])
def test_one_queue_of_single_requests_is_mmc(replicas, load):
    exponential = -np.log((np.arange(1 << 16) + 0.5) / (1 << 16))[None, :]
    service = Service(np.array([0.0, 1.0]), exponential, np.zeros(2, dtype=np.int64), np.zeros(1))
    fleet = Fleet(service, replicas, 1, 0.0, Rule.OPPORTUNISTIC, Routing.ONE_QUEUE)
    found = simulate(poisson(load * replicas, 1_000_000, 3), fleet)
    for percent in (50, 90, 99):
        wanted = mmc_latency_s(load * replicas, 1.0, replicas, percent)
        assert found.quantile(percent) == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("wait_s", [0.0, 0.004])
def test_one_queue_of_one_replica_is_that_replicas_own(wait_s):
    service = replace(affine(4, spread=SPREAD), waking=Waking(0.001, 0.02, 0.003))
    fleet = Fleet(service, 1, 4, wait_s, Rule.OPPORTUNISTIC, Routing.ROUND_ROBIN)
    arrivals_s = poisson(0.7 * fleet.limit_rps, 5000)
    own, one = simulate(arrivals_s, fleet), simulate(arrivals_s, replace(fleet, routing=Routing.ONE_QUEUE))
    assert one.latency_s.tolist() == pytest.approx(own.latency_s.tolist(), abs=1e-12)
    assert (one.batches == own.batches).all()
    assert one.busy_s == pytest.approx(own.busy_s)


def test_routers_stand_between_one_queue_and_queues_apart():
    replicas, load = 8, 0.8
    exponential = -np.log((np.arange(1 << 16) + 0.5) / (1 << 16))[None, :]
    service = Service(np.array([0.0, 1.0]), exponential, np.zeros(2, dtype=np.int64), np.zeros(1))
    fleet = Fleet(service, replicas, 1, 0.0, Rule.OPPORTUNISTIC, Routing.LEAST)
    arrivals_s = poisson(load * replicas, 1_000_000)
    order = (Routing.LEAST, Routing.TWO_CHOICES, Routing.RANDOM)
    found = [simulate(arrivals_s, replace(fleet, routing=routing)).quantile(99) for routing in order]
    apart = mmc_latency_s(load, 1.0, 1, 99)
    assert mmc_latency_s(load * replicas, 1.0, replicas, 99) < found[0] < found[1] < 0.7 * apart
    assert found[2] == pytest.approx(apart, rel=0.05)


def test_two_choices_among_a_thousand_is_as_mitzenmacher_found():
    replicas = 1000
    exponential = -np.log((np.arange(1 << 16) + 0.5) / (1 << 16))[None, :]
    service = Service(np.array([0.0, 1.0]), exponential, np.zeros(2, dtype=np.int64), np.zeros(1))
    for load in (0.5, 0.9):
        fleet = Fleet(service, replicas, 1, 0.0, Rule.OPPORTUNISTIC, Routing.TWO_CHOICES)
        found = simulate(poisson(load * replicas, 2_000_000), fleet)
        wanted = sum(load ** (2**i - 2) for i in range(1, 30))
        assert found.latency_s[600_000:].mean() == pytest.approx(wanted, rel=0.01)


def test_fleets_survive_json():
    service = replace(affine(4, spread=SPREAD), overhead_s=np.array([0.001, 0.002]), answer_s=0.001)
    service = replace(service, after_s=np.arange(5) / 1000)
    scaling = Autoscaling(4.0, 1, 9, cold_start_s=20.0)
    fleet = Fleet(service, 3, 4, 0.002, Rule.AWAITING, Routing.RANDOM, 7, OUTAGES, scaling)
    again = Fleet.from_json(json.loads(json.dumps(fleet.as_json(), allow_nan=False)))
    assert again.as_json() == fleet.as_json()
    assert (again.outages, again.autoscaling, again.rule) == (OUTAGES, scaling, Rule.AWAITING)
    fixed = replace(fleet, autoscaling=None, outages=())
    arrivals_s = poisson(300, 1000)
    same = Fleet.from_json(json.loads(json.dumps(fixed.as_json())))
    assert simulate(arrivals_s, fixed).latency_s.tolist() == simulate(arrivals_s, same).latency_s.tolist()


def test_what_cannot_be_simulated_is_refused_in_one_sentence():
    fleet = Fleet(affine(4), 1, 8, 0.0, Rule.COMPANY, Routing.LEAST)
    with pytest.raises(ValueError, match="known for up to 4"):
        simulate(np.array([0.0]), fleet)
    with pytest.raises(ValueError, match="no arrivals"):
        simulate(np.array([]), replace(fleet, max_batch=4))
    with pytest.raises(ValueError, match="time above 0"):
        Service.steady(np.array([0.0, 0.1, np.nan]))
    with pytest.raises(ValueError, match="power of two"):
        replace(fleet.service, overhead_s=np.zeros(3))
    with pytest.raises(ValueError, match="classes of spread"):
        replace(fleet.service, spread_class=np.ones(5, dtype=np.int64))
    with pytest.raises(ValueError, match="from 0 to 3 replicas"):
        Autoscaling(2.0, 0, 3)
    with pytest.raises(ValueError, match="seed"):
        simulate(np.array([0.0]), replace(fleet, max_batch=4), seed=-1)


# ---- what is looked for


def arrivals(rate_rps, n=60_000):
    return np.cumsum(np.random.default_rng(9).exponential(1, n)) / rate_rps


def test_one_queue_is_refused_what_it_does_not_know():
    fleet = Fleet(affine(4), 2, 4, 0.0, Rule.COMPANY, Routing.ONE_QUEUE)
    with pytest.raises(ValueError, match="one queue for all is known for opportunistic batches"):
        simulate(poisson(10, 10), fleet)


def test_the_knee_is_where_theory_has_it():
    fleet = Fleet(Service.steady(np.array([0.0, 0.01])), 1, 1, 0.0, Rule.OPPORTUNISTIC, Routing.LEAST)
    found = knee(fleet, 0.050, 90, lambda rate: arrivals(rate, 400_000))
    assert mdc_latency_s(found, 0.01, 1, 90) == pytest.approx(0.050, rel=0.05)
    assert knee(fleet, 0.009, 90, arrivals) == 0.0


def test_the_knee_is_beyond_the_rates_at_which_only_waiting_for_a_batch_costs_time():
    # alone a request waits 40 ms; under load batches fill before that
    fleet = Fleet(affine(8, 0.002, 0.0005), 1, 8, 0.040, Rule.OPPORTUNISTIC, Routing.LEAST)
    assert not simulate(arrivals(20), fleet).keeps(99, 0.030)
    assert simulate(arrivals(700), fleet).keeps(99, 0.030)
    found = knee(fleet, 0.030, 99, arrivals)
    assert simulate(arrivals(found), fleet).keeps(99, 0.030)
    assert not simulate(arrivals(1.01 * found), fleet).keeps(99, 0.030)
    assert found > 700


def test_the_knee_is_found_where_small_batches_are_far_below_what_full_ones_do():
    """AWAITING keeps up with 11/s, where a hundredth of full batches is 20/s already."""
    fleet = Fleet(affine(256, 0.1, 1e-4), 1, 256, 0.01, Rule.AWAITING, Routing.LEAST)
    found = knee(fleet, 1.0, 99, lambda rate_rps: poisson(rate_rps, 20_000))
    assert 0.5 * stable_below_rps(fleet) < found < stable_below_rps(fleet)


# ---- autoscaling


@pytest.mark.parametrize("cold_start_s", [5.0, 30.0, 60.0, 120.0])
def test_replicas_are_paid_from_when_they_are_asked_for_until_the_end(cold_start_s):
    """A rise near the end: those that come up after it are paid until then alone."""
    scaling = Autoscaling(1.0, 2, 20, cold_start_s=cold_start_s)
    fleet = Fleet(
        Service.steady(np.array([0.0, 0.1])), 1, 1, 0.0, Rule.OPPORTUNISTIC, Routing.LEAST, autoscaling=scaling
    )
    found = simulate(np.concatenate([np.arange(0, 250, 0.2), np.arange(250, 330, 1 / 25)]), fleet)
    changes = zip(found.scaled_at_s[1:] - cold_start_s, np.diff(found.scaled_to), strict=True)
    wanted = 2 * found.span_s + sum(more * max(0.0, found.span_s - asked_s) for asked_s, more in changes)
    assert found.scaled_to[-1] > 2
    assert found.replica_s == pytest.approx(wanted)


def test_replicas_are_added_once_the_delay_and_the_cold_start_are_over():
    service = Service.steady(np.array([0.0, 0.1]))
    scaling = Autoscaling(1.0, 2, 20, cold_start_s=25.0)
    fleet = Fleet(service, 1, 1, 0.0, Rule.OPPORTUNISTIC, Routing.LEAST, autoscaling=scaling)
    # 8 requests in the system from 200 s on
    arrivals_s = np.concatenate([np.arange(0, 200, 1 / 5), np.arange(200, 600, 1 / 80)])
    found = simulate(arrivals_s, fleet)
    times, sizes = found.scaled_at_s, found.scaled_to
    assert (times[0], sizes[0]) == (0.0, 2)
    # notes every 6 s, sent every 10 s, 30 s of delay, 25 s of cold start
    assert 200 + 30 + 25 < times[1] < 200 + 10 + 6 + 30 + 25
    assert sizes[1] > 2
    assert np.isfinite(found.latency_s).all()
    late = found.latency_s[arrivals_s > 560]
    assert late.max() < 0.2
    assert 8 <= sizes[-1] <= 20


def test_replicas_go_after_the_longer_delay_and_finish_what_they_hold():
    service = Service.steady(np.array([0.0, 0.1]))
    scaling = Autoscaling(1.0, 1, 8, downscale_delay_s=100.0, initial=8)
    fleet = Fleet(service, 1, 1, 0.0, Rule.OPPORTUNISTIC, Routing.TWO_CHOICES, autoscaling=scaling)
    found = simulate(np.concatenate([np.arange(0, 100, 1 / 50), np.arange(100, 600, 1 / 5)]), fleet)
    assert found.scaled_to[0] == 8
    assert found.scaled_to[-1] == 1
    assert 90 < found.scaled_at_s[1] < 140
    assert np.isfinite(found.latency_s).all()
    assert found.replica_s < 8 * found.span_s
    assert found.replica_s > 8 * 90


def test_autoscaling_and_outages_lose_no_request_unseen():
    scaling = Autoscaling(0.5, 2, 6, upscale_delay_s=5.0, downscale_delay_s=20.0, cold_start_s=3.0, look_back_s=10.0)
    for routing in ROUTERS:
        for rule in Rule:
            fleet = Fleet(affine(4), 1, 4, 0.004, rule, routing, 6, (Outage(0, 10, 30), Outage(1, 12)), scaling)
            rng = np.random.default_rng(1)
            found = simulate(np.sort(rng.uniform(0, 100, 20_000)), fleet)
            assert np.isfinite(found.latency_s).sum() + found.refused + found.lost == 20_000
            assert found.lost > 0
            assert found.scaled_to.max() > 2
            assert found.latency_s.min() > 0.009
