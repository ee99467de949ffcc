"""Closed forms against published values and each other, and against the simulation in `test_simulate`."""

import heapq
import math

import numpy as np
import pytest
from queues import erlang_c, mdc_latency_s, mmc_latency_s

from tailrate.analysis.planning.simulator.fleet import ROUTERS
from tailrate.analysis.planning.simulator.queueing_theory import needed, quickest_s, stable_below_rps
from tailrate.analysis.planning.simulator.simulate import Fleet, Routing, Rule, Service, simulate


def affine(fixed_s, each_s, most):
    return Service.steady(fixed_s + each_s * np.arange(most + 1))


def fleet(rule=Rule.OPPORTUNISTIC, fixed_s=0.020, each_s=0.002, most=16, wait_s=0.010, replicas=1):
    return Fleet(affine(fixed_s, each_s, most), replicas, most, wait_s, rule, Routing.LEAST)


def test_erlang_c_is_as_in_the_tables():
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(5, 4.0) == pytest.approx(0.5541, abs=5e-5)
    assert erlang_c(10, 8.0) == pytest.approx(0.4092, abs=5e-5)
    assert erlang_c(3, 3.0) == 1.0


def test_mm1_is_exponential():
    for percent in (50, 90, 99):
        assert mmc_latency_s(80, 0.01, 1, percent) == pytest.approx(-math.log(1 - percent / 100) / 20)
    assert mmc_latency_s(101, 0.01, 1, 50) == math.inf


def test_md1_waits_as_erlang_found():
    # P(W <= t) = (1 - rho) * sum over k of (lambda (kD - t))^k / k! * exp(-lambda (kD - t)), fine for small t
    for load in (0.3, 0.7):
        for percent in (80, 90, 95):
            wait_s = mdc_latency_s(load, 1.0, 1, percent) - 1
            terms = [
                (load * (k - wait_s)) ** k / math.factorial(k) * math.exp(-load * (k - wait_s))
                for k in range(int(wait_s) + 1)
            ]
            assert (1 - load) * sum(terms) == pytest.approx(percent / 100, abs=1e-9)
    assert mdc_latency_s(0.3, 1.0, 1, 50) == 1.0  # seven of ten find it idle
    assert mdc_latency_s(3.0, 1.0, 2, 50) == math.inf


@pytest.mark.computes
@pytest.mark.parametrize("servers", [2, 20])
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_many_servers_with_one_queue(servers, load):
    n, rng = 1_000_000, np.random.default_rng(1)
    arrivals = np.cumsum(rng.exponential(1 / (load * servers), n))
    for services, theory in ((rng.exponential(1, n), mmc_latency_s), (np.ones(n), mdc_latency_s)):
        free, latency = [0.0] * servers, np.empty(n)
        for i, (at, takes) in enumerate(zip(arrivals.tolist(), services.tolist(), strict=True)):
            done = max(at, free[0]) + takes
            heapq.heapreplace(free, done)
            latency[i] = done - at
        for percent in (50, 90, 99):
            wanted = theory(load * servers, 1.0, servers, percent)
            assert np.quantile(latency[n // 10 :], percent / 100) == pytest.approx(wanted, rel=0.02)


def test_an_awaiting_method_is_stable_only_far_below_what_it_could_do():
    assert stable_below_rps(fleet(Rule.BLOCKING)) == pytest.approx(16 / 0.052)
    limit_rps = stable_below_rps(fleet(Rule.AWAITING))
    a, b, w = 0.020, 0.002, 0.010
    roughly = ((w - a - b) + math.sqrt((w - a - b) ** 2 + 4 * b * w)) / (2 * b * w)
    assert limit_rps == pytest.approx(roughly, rel=0.001)
    assert limit_rps == pytest.approx(74, abs=0.5)
    gaps = np.random.default_rng(1).exponential(1, 100_000)
    below, above = (simulate(np.cumsum(gaps) / (f * limit_rps), fleet(Rule.AWAITING)) for f in (0.95, 1.05))
    assert below.quantile(99) < 1.5
    assert above.quantile(50) > 20
    assert stable_below_rps(fleet(Rule.AWAITING, wait_s=0.5, replicas=3)) == pytest.approx(3 * 16 / 0.052)
    assert stable_below_rps(fleet(Rule.AWAITING, wait_s=0.0)) == pytest.approx(1 / 0.022)


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("routing", ROUTERS)
def test_no_simulation_beats_the_bounds(rule, routing):
    gaps = np.random.default_rng(2).exponential(1, 50_000)
    spread = np.exp(0.2 * np.random.default_rng(5).normal(size=(1, 64)))
    service = affine(0.005, 0.001, 16)
    service = Service(service.mean_s, spread / spread.mean(), service.spread_class, np.array([0.001, 0.002]))
    for load in (0.3, 0.9):
        of = Fleet(service, 4, 16, 0.004, rule, routing)
        rate_rps = load * of.limit_rps
        ran = simulate(np.cumsum(gaps) / rate_rps, of)
        for percent in (50, 99):
            found_s = ran.quantile(percent)
            assert quickest_s(of, rate_rps, percent) <= found_s
            assert needed(of, rate_rps, found_s, percent) <= 4
    assert quickest_s(of, 1.01 * of.limit_rps, 50) == math.inf
    assert needed(of, 1.0, 0.001, 50) == math.inf
