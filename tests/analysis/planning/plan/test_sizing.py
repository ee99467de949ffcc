"""How many replicas hold an objective, where that can be said by hand, and what follows whatever the service."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plans import draw, fleet, service, sizing

from tailrate.analysis.planning.plan.sizing import Objective, QuestionError, Sizing, Traffic, stable_from
from tailrate.analysis.planning.simulator.simulate import Fleet, Outage, Routing, Rule, Service, simulate
from tailrate.analysis.records.objective import Slo

SINGLE = fleet(Service.steady(np.array([0.0, 0.010])))
"""Requests one by one, 10 ms each."""


def test_evenly_spaced_arrivals_take_turns_and_nobody_waits() -> None:
    """950/s of 10 ms each are 9.5 replicas' work: ten of them, and every request takes 10 ms."""
    asked, taking_turns = sizing("p99<10.1ms", np.inf), replace(SINGLE, routing=Routing.ROUND_ROBIN)
    assert asked.fewest(taking_turns, 950) == 10
    assert asked.read(replace(taking_turns, replicas=10), 950).latency_s == pytest.approx(0.010)


def test_of_queues_in_parallel_half_the_requests_find_nobody_where_each_is_busy_half_the_time() -> None:
    """Arrivals at random, sent to a queue at random: a request waits with the probability that its replica is busy,
    so the median is 10 ms as long as k > 2·λ·S = 19.5."""
    assert sizing("p50<10.001ms").fewest(replace(SINGLE, routing=Routing.RANDOM), 975) == 20


@pytest.mark.parametrize("rate", [99, 100, 1000, 12_345])
def test_the_bound_is_work_over_what_a_replica_can_do(rate: float) -> None:
    batches = fleet(service(0.010, 0.0005, most=32))  # 32 requests in 26 ms
    assert stable_from(batches, rate) == int(rate * 0.026 / 32) + 1
    assert (sizing("p99<5s").fewest(batches, rate) or 0) >= stable_from(batches, rate)


def test_more_traffic_never_takes_fewer_replicas_nor_does_a_tighter_objective() -> None:
    batches = fleet(service(0.004, 0.0005))
    by_rate = [sizing().fewest(batches, rate) for rate in np.geomspace(100, 20_000, 14)]
    assert None not in by_rate
    assert by_rate == sorted(by_rate, key=lambda count: count or 0)
    assert by_rate[-1] > by_rate[0]
    by_slo = [sizing(f"p99<{limit}ms").fewest(batches, 5000) for limit in (8, 10, 12, 15, 20, 30, 50)]
    assert by_slo == sorted(by_slo, key=lambda count: -(count or 0))
    assert by_slo[0] > by_slo[-1]


def test_the_answer_holds_and_one_less_does_not_with_other_arrivals_too() -> None:
    batches, asked = fleet(service(0.004, 0.0005)), sizing("p99<20ms")
    count = asked.fewest(batches, 5000)
    assert count
    fresh = sizing("p99<20ms", seeds=(11, 12, 13))
    assert fresh.holds(replace(batches, replicas=count), 5000)
    assert not fresh.holds(replace(batches, replicas=count - 1), 5000)


@pytest.mark.parametrize("near", [1, 2, 4, 7, 30, 500])
def test_a_guess_changes_the_way_and_not_the_answer(near: int) -> None:
    batches, asked = fleet(service(0.004, 0.0005)), sizing("p99<20ms")
    assert asked.fewest(batches, 5000, near) == asked.fewest(batches, 5000)


def test_the_same_is_simulated_once_and_nothing_else_is_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all these on the same arrivals, each is what it is on arrivals of its own."""
    made: list[object] = []
    monkeypatch.setattr(
        "tailrate.analysis.planning.simulator.simulate.simulate", lambda *given: made.append(given) or simulate(*given)
    )
    shared, batches = Traffic(draw), fleet(service(0.004, 0.0005))
    asks = [
        (Sizing(Objective(Slo.parse(slo)), shared, seeds, sparing), replace(batches, replicas=replicas), rate)
        for slo in ("p90<20ms", "p95<20ms") for seeds in ((1,), (2, 3)) for sparing in (1, 2)
        for replicas in (3, 4) for rate in (1000.0, 1100.0)
    ]  # fmt: skip

    def answers(asked: Sizing, one: Fleet, rate: float) -> tuple[object, ...]:
        return asked.read(one, rate), asked.alone(one), asked.after_loss(one, rate, 1, 2), asked.knee_rps(one)

    apart = [answers(replace(asked, traffic=Traffic(draw)), *what) for asked, *what in asks]
    assert [answers(*ask) for ask in asks] == apart
    made.clear()
    assert [answers(*ask) for ask in asks] == apart
    assert made == []


@pytest.mark.parametrize("lost", [1, 3])
def test_what_may_be_lost_may_be_lost(lost: int) -> None:
    batches, asked = fleet(service(0.004, 0.0005)), sizing("p99<20ms")
    count = asked.fewest_after_loss(batches, 5000, lost)
    assert count == (asked.fewest(batches, 5000) or 0) + lost
    arrivals = asked.traffic.at(5000, 200_000, 5)
    broken = replace(batches, replicas=count, outages=tuple(Outage(n, 20.0) for n in range(lost)))
    outcome = simulate(arrivals, broken, 5)
    after = outcome.latency_s[arrivals > 19.9]
    assert outcome.lost > 0
    assert np.isinf(after).any()
    assert np.quantile(after, 0.99, method="higher") <= 0.020
    one_less = replace(broken, replicas=count - 1)
    assert np.quantile(simulate(arrivals, one_less, 5).latency_s[arrivals > 19.9], 0.99, method="higher") > 0.020


def test_no_number_helps_below_the_latency_of_a_request_that_is_alone() -> None:
    asked = sizing("p99<9ms")
    assert asked.fewest(SINGLE, 100) is None
    assert asked.alone(SINGLE).latency_s == pytest.approx(0.010)
    assert not asked.alone(SINGLE).kept


def test_few_replicas_can_hold_what_many_cannot_where_batches_wait_to_be_full() -> None:
    """Four fill up in 22 ms (P99) at 500/s a replica, and in 34 at 250/s; a request that is alone waits for 40."""
    waiting = fleet(service(0.005, 0.0, most=4), rule=Rule.OPPORTUNISTIC, batch_wait_s=0.040)
    waiting = replace(waiting, routing=Routing.ROUND_ROBIN)
    asked = sizing("p99<30ms")
    assert not asked.alone(waiting).kept
    assert asked.fewest(waiting, 1000) == 2
    assert not asked.holds(replace(waiting, replicas=8), 1000)


def test_a_full_queue_refuses_and_errors_count() -> None:
    """Five at most wait: the median is fine at three times what the replica can do, but two thirds are refused."""
    short = fleet(Service.steady(np.array([0.0, 0.010])), queue=5)
    reading = sizing("p20<100ms,errors<1%").read(short, 300)
    assert reading.failed == pytest.approx(2 / 3, abs=0.02)
    assert reading.latency_s < 0.1
    assert not reading.kept
    assert sizing("p20<100ms").read(short, 300).kept
    assert not sizing("p20<100ms,goodput>50%").read(short, 300).kept


def test_the_knee_is_where_the_objective_is_just_held() -> None:
    batches, asked = fleet(service(0.004, 0.0005), queue=0), sizing("p99<20ms")
    knee = asked.knee_rps(replace(batches, replicas=4))
    assert asked.holds(replace(batches, replicas=4), knee)
    assert not asked.holds(replace(batches, replicas=4), 1.03 * knee)


def test_replicas_that_would_not_catch_up_after_a_disturbance_are_too_few() -> None:
    """One by one nine do 9 × 8 a second and hold it; in fours, which any queue makes of them, they do 9 × 4."""
    slow = fleet(Service.steady(np.array([0.0, 0.125, 0.4, 0.7, 1.0])), queue=0)
    assert sizing("p99<1000ms").holds(replace(slow, replicas=9), 40)
    assert sizing("p99<1000ms").fewest(slow, 40) == 11


@pytest.mark.parametrize(
    ("slo", "said"),
    [
        ("errors<1%", "has no latency"),
        ("p99<50ms,rate>=200", "--rate says here"),
        ("p99.9999<50ms", "one request in 1,000,000"),
        ("p99<50ms,goodput>99.9999%", "one request in 1,000,000"),
    ],
)
def test_objectives_that_no_simulation_answers(slo: str, said: str) -> None:
    with pytest.raises(QuestionError, match=said):
        Objective(Slo.parse(slo))


def test_traffic_is_the_same_at_every_rate_but_for_its_pace() -> None:
    traffic = Traffic.parse("gamma:0.25", draw)
    assert np.allclose(traffic.at(10, 100, 1), 2 * traffic.at(20, 100, 1))
    gaps = np.diff(traffic.at(1, 100_000, 1))
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(4, rel=0.05)
    twice = np.diff(traffic.burstier(2).at(1, 100_000, 1))
    assert twice.var() / twice.mean() ** 2 == pytest.approx(8, rel=0.05)


@pytest.mark.parametrize(
    "text", ["", "often", "gamma", "gamma:", "gamma:0", "gamma:-1", "gamma:nan", "poisson:2", "constant:1"]
)
def test_arrivals_that_are_none(text: str) -> None:
    with pytest.raises(QuestionError, match=f"--burst '{text}' is not understood"):
        Traffic.parse(text, draw)
