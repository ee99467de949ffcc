import math

import numpy as np
import pytest
from folders import queue
from scipy import stats

from tailrate.analysis.records.objective import LEAST_FOR_P999
from tailrate.analysis.stats.trend import (
    Floats,
    Growth,
    early_stop_n,
    mann_kendall,
    percentile,
    queue_growth,
    rank,
)


def test_a_percentile_is_the_order_statistic() -> None:
    values = np.random.default_rng(1).permutation(np.arange(1.0, 1001.0))
    # rank ⌈(n − 1) p⌉ from zero
    assert [percentile(values, p) for p in (0, 50, 90, 99, 99.9, 100)] == [1, 501, 901, 991, 1000, 1000]
    assert math.isnan(percentile(np.empty(0), 99))


@pytest.mark.parametrize("n", [1, 2, 10, 99, 101, 1000, 12345])
def test_a_rank_is_numpys(n: int) -> None:
    for percent in (0, 50, 90, 95, 99, 99.5, 99.9, 100):
        assert rank(n, percent) == np.quantile(np.arange(n), percent / 100, method="higher")


def test_a_rank_is_exact_where_a_share_is_no_binary_fraction() -> None:
    for thousands in range(1, 200):  # 1000 * 0.999 is 999.0000000000001
        assert rank(1000 * thousands + 1, 99.9) == 999 * thousands


def test_failures_are_the_slowest() -> None:
    values = np.array([*range(90), *[math.inf] * 10], dtype=float)
    assert percentile(values, 89) == 89
    assert percentile(values, 99) == math.inf


@pytest.mark.parametrize(
    ("percent", "counts"), [(90, (44, 64, 127, 197)), (99, (459, 662, 1307, 2010)), (99.9, (4603, 6636, 13105, 20140))]
)
def test_early_stopping_counts_are_mlperfs(percent: float, counts: tuple[int, ...]) -> None:
    assert tuple(early_stop_n(percent, over) for over in (0, 1, 5, 10)) == counts


def test_the_least_for_p999_is_mlperfs() -> None:
    assert early_stop_n(99.9) == LEAST_FOR_P999


@pytest.mark.parametrize("percent", [90, 99, 99.9])
@pytest.mark.parametrize("over", range(11))
def test_early_stopping_is_the_binomial_test(percent: float, over: int) -> None:
    """So many arrivals, so few of them over: were the percentile above the limit, that came in at most 1 of 100."""
    n = early_stop_n(percent, over)
    chances = stats.binom.cdf(over, [n - 1, n], 1 - percent / 100)
    assert chances[1] <= 0.01 < chances[0]


def _sequence(n: int, s: int) -> list[int]:
    """A permutation whose rising pairs outnumber the falling ones by s: one with (n(n − 1)/2 − s)/2 inversions."""
    left, found = (n * (n - 1) // 2 - s) // 2, list[int]()
    for value in range(n):
        behind = min(left, len(found))
        found.insert(len(found) - behind, value)
        left -= behind
    return found


@pytest.mark.parametrize(
    ("n", "s", "p"),
    # the table of P(S ≥ s) in Kendall's "Rank Correlation Methods"
    [
        (4, 4, 0.167),
        (4, 6, 0.042),
        (5, 8, 0.042),
        (5, 10, 0.0083),
        (10, 15, 0.108),
        (10, 21, 0.036),
        (10, 25, 0.014),
        (10, 27, 0.0083),
        (10, 29, 0.0046),
        (10, -15, 1 - 0.078),
    ],
)
def test_mann_kendall_agrees_with_kendalls_table(n: int, s: int, p: float) -> None:
    tau, found = mann_kendall(_sequence(n, s))
    assert tau == pytest.approx(2 * s / (n * (n - 1)))
    assert found == pytest.approx(p, rel=0.03)


@pytest.mark.parametrize("seed", range(20))
def test_mann_kendall_is_scipys_with_and_without_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for values in (rng.normal(size=10), rng.normal(size=200), rng.integers(0, 6, size=12)):
        found = stats.kendalltau(np.arange(len(values)), values, alternative="greater")
        assert mann_kendall(values.astype(float)) == pytest.approx((found.statistic, found.pvalue), abs=1e-9)


def test_mann_kendall_of_a_constant_is_no_trend() -> None:
    assert mann_kendall([3.0] * 10) == (0.0, 1.0)


def _in_flight(load: float, seed: int, rate: float = 200.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    sent_s = np.cumsum(rng.exponential(1 / rate, size=int(rate * 35)))
    return sent_s, sent_s + queue(load / rate * 1e3)(rng, sent_s) / 1e3


def _growth(sent_s: Floats, done_s: Floats, start_s: float, end_s: float) -> Growth:
    """From the mean number under way in each of 200 slices."""
    edges = np.linspace(start_s, end_s, 201)

    def passed(instants: Floats) -> Floats:
        """The seconds since each instant, of all together, at each edge."""
        instants = np.sort(instants)
        before = np.searchsorted(instants, edges)
        return edges * before - np.concatenate([[0.0], np.cumsum(instants)])[before]

    in_flight = np.diff(passed(sent_s) - passed(done_s[np.isfinite(done_s)])) / (edges[1] - edges[0])
    arrived = np.histogram(sent_s, edges)[0].astype(float)
    return queue_growth(in_flight, arrived, end_s - start_s)


@pytest.mark.parametrize(
    ("load", "least", "most"), [(0.5, 0, 0), (0.9, 0, 0.015), (0.95, 0, 0.02), (1.05, 0.9, 1), (1.2, 1, 1)]
)
def test_overload_is_found_and_load_is_not_mistaken_for_it(load: float, least: float, most: float) -> None:
    found = [_growth(*_in_flight(load, seed), 5.0, 35.0).rising for seed in range(200)]
    assert least <= np.mean(found) <= most


@pytest.mark.parametrize(("s", "rising"), [(25, False), (27, True)])
def test_the_queue_rises_where_mann_kendall_is_surer_than_one_percent(s: int, rising: bool) -> None:
    # as many requests as the permutation says are in flight during each of ten seconds: P is 0.014 or 0.0083
    in_flight = np.repeat([10.0 * (level + 1) for level in _sequence(10, s)], 20)
    assert queue_growth(in_flight, np.full(200, 5.0), 10.0).rising == rising


@pytest.mark.parametrize("held_s", [0.02, 0.3])
def test_a_rate_that_rises_has_more_under_way_and_no_queue(held_s: float) -> None:
    sent_s = 30 * np.sqrt(np.arange(0, 1, 1 / 6000))  # from nothing to 400/s
    assert not _growth(sent_s, sent_s + held_s, 5.0, 30.0).rising
    assert _growth(sent_s, sent_s + held_s + sent_s / 10, 5.0, 30.0).rising


def test_growth_is_what_arrives_but_is_not_served() -> None:
    sent_s = np.arange(0, 30, 0.01)
    done_s = 0.05 + np.arange(len(sent_s)) / 80  # 100 arrive each second, 80 are answered
    growth = _growth(sent_s, done_s, 0.0, 30.0)
    assert growth.rising
    assert growth.per_s == pytest.approx(20.0, rel=0.01)
    assert growth.p_value == pytest.approx(1 / math.factorial(10), rel=1e-6)


def test_requests_without_an_answer_stay_in_flight() -> None:
    sent_s = np.arange(0, 30, 0.01)
    done_s = np.where(np.arange(len(sent_s)) % 10 == 0, math.inf, sent_s + 0.05)
    assert _growth(sent_s, done_s, 0.0, 30.0).per_s == pytest.approx(10.0, rel=0.01)


def test_a_creeping_latency_is_not_overload() -> None:
    sent_s = np.arange(0, 30, 0.01)
    done_s = sent_s + 0.020 + 0.0001 * sent_s  # 23 ms after 30 s: a third of a request more in flight
    growth = _growth(sent_s, done_s, 0.0, 30.0)
    assert growth.p_value < 0.01
    assert not growth.rising
