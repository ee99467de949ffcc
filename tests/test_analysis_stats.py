import math

import numpy as np
import pytest
from folders import queue
from scipy import signal, special, stats

from analysis.stats import (
    LEAST_N_EFF,
    block_ratio,
    early_stop_n,
    effective_size,
    mann_kendall,
    paired_ratio,
    percentile,
    percentile_interval,
    queue_growth,
    surely_over,
)


def _correlated(rng: np.random.Generator, n: int, phi: float) -> np.ndarray:
    return signal.lfilter([math.sqrt(1 - phi**2)], [1, -phi], rng.normal(size=n + 500))[500:]


def test_a_percentile_is_the_order_statistic() -> None:
    values = np.random.default_rng(1).permutation(np.arange(1.0, 1001.0))
    # rank ⌈(n − 1) p⌉ from zero
    assert [percentile(values, p) for p in (0, 50, 90, 99, 99.9, 100)] == [1, 501, 901, 991, 1000, 1000]
    assert math.isnan(percentile(np.empty(0), 99))


def test_failures_are_the_slowest() -> None:
    values = np.array([*range(90), *[math.inf] * 10], dtype=float)
    assert percentile(values, 89) == 89
    assert percentile(values, 99) == math.inf


@pytest.mark.parametrize(
    ("percent", "counts"), [(90, (44, 64, 127, 197)), (99, (459, 662, 1307, 2010)), (99.9, (4603, 6636, 13105, 20140))]
)
def test_early_stopping_counts_are_mlperfs(percent: float, counts: tuple[int, ...]) -> None:
    assert tuple(early_stop_n(percent, over) for over in (0, 1, 5, 10)) == counts


def test_surely_over_is_the_binomial_tail() -> None:
    for n, over in ((50, 1), (50, 3), (50, 4), (459, 12), (459, 11), (10, 0)):
        tail = stats.binom.sf(over - 1, n, 0.01)
        assert surely_over(n, over, 99) == (tail <= 0.01)


@pytest.mark.parametrize("phi", [0.0, 0.6, 0.9])
def test_the_effective_size_is_that_of_a_known_process(phi: float) -> None:
    # signs of a Gaussian AR(1) process correlate as 2/π asin(φᵏ)
    lags = phi ** np.arange(1, 400)
    true_share = 1 / (1 + 2 * np.sum(2 / np.pi * np.arcsin(lags)))
    n = 20_000
    found = [effective_size(_correlated(np.random.default_rng(seed), n, phi), 50) for seed in range(100)]
    # each estimate varies by a fifth (49 degrees of freedom) and is capped at n
    assert np.median([size or math.nan for size in found]) / n == pytest.approx(true_share, rel=0.08)


def test_too_few_values_have_no_effective_size() -> None:
    assert effective_size(np.arange(99.0), 99) is None
    assert effective_size(np.full(100, 7.0), 99) == 100


@pytest.mark.parametrize("percent", [50, 99])
def test_the_interval_holds_the_true_percentile_as_often_as_it_says(percent: float) -> None:
    truth = math.exp(0.5 * float(special.ndtri(percent / 100)))
    hits = 0
    for seed in range(200):
        values = np.exp(0.5 * np.random.default_rng(seed).normal(size=5000))
        interval = percentile_interval(values, percent, effective_size(values, percent))
        assert interval is not None
        hits += interval[0] <= truth <= interval[1]
    assert 0.91 <= hits / 200 <= 0.99


def test_the_interval_allows_for_autocorrelation() -> None:
    truth = float(special.ndtri(0.99))
    hits = blind = 0
    for seed in range(200):
        values = _correlated(np.random.default_rng(seed), 20_000, 0.9)
        interval = percentile_interval(values, 99, effective_size(values, 99))
        assert interval is not None
        hits += interval[0] <= truth <= interval[1]
        naive = percentile_interval(values, 99, len(values))
        assert naive is not None
        blind += naive[0] <= truth <= naive[1]
    assert hits / 200 >= 0.88
    assert blind / 200 < 0.8


def test_an_interval_is_refused_under_the_least_effective_size() -> None:
    values = np.arange(10_000.0)
    assert percentile_interval(values, 99, None) is None
    assert percentile_interval(values, 99, LEAST_N_EFF - 1) is None
    assert percentile_interval(values, 99, LEAST_N_EFF) is not None
    # sorted values are one long trend: as correlated as can be
    assert percentile_interval(values, 99, effective_size(values, 99)) is None


def test_the_interval_is_clopper_pearsons_of_ranks() -> None:
    values = np.arange(1.0, 1001.0)
    low, high = percentile_interval(values, 90, 1000) or (0, 0)
    exact = stats.binomtest(900, 1000).proportion_ci(0.95, "exact")
    assert (low, high) == (math.floor(exact.low * 1000), math.ceil(exact.high * 1000))


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


def test_mann_kendall_of_a_constant_is_no_trend() -> None:
    assert mann_kendall([3.0] * 10) == (0.0, 1.0)


def _in_flight(load: float, seed: int, rate: float = 200.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    sent_s = np.cumsum(rng.exponential(1 / rate, size=int(rate * 35)))
    return sent_s, sent_s + queue(load / rate * 1e3)(rng, sent_s) / 1e3


@pytest.mark.parametrize(
    ("load", "least", "most"), [(0.5, 0, 0), (0.9, 0, 0.015), (0.95, 0, 0.02), (1.05, 0.9, 1), (1.2, 1, 1)]
)
def test_overload_is_found_and_load_is_not_mistaken_for_it(load: float, least: float, most: float) -> None:
    found = [queue_growth(*_in_flight(load, seed), 5.0, 35.0).rising for seed in range(200)]
    assert least <= np.mean(found) <= most


@pytest.mark.parametrize(("s", "rising"), [(25, False), (27, True)])
def test_the_queue_rises_where_mann_kendall_is_surer_than_one_percent(s: int, rising: bool) -> None:
    # as many requests as the permutation says are in flight during each of ten seconds: P is 0.014 or 0.0083
    sent_s = np.concatenate([np.full(10 * (level + 1), float(k)) for k, level in enumerate(_sequence(10, s))])
    assert queue_growth(sent_s, sent_s + 1.0, 0.0, 10.0).rising == rising


def test_growth_is_what_arrives_but_is_not_served() -> None:
    sent_s = np.arange(0, 30, 0.01)
    done_s = 0.05 + np.arange(len(sent_s)) / 80  # 100 arrive each second, 80 are answered
    growth = queue_growth(sent_s, done_s, 0.0, 30.0)
    assert growth.rising
    assert growth.per_s == pytest.approx(20.0, rel=0.01)
    assert growth.p_value == pytest.approx(1 / math.factorial(10), rel=1e-6)


def test_requests_without_an_answer_stay_in_flight() -> None:
    sent_s = np.arange(0, 30, 0.01)
    done_s = np.where(np.arange(len(sent_s)) % 10 == 0, math.inf, sent_s + 0.05)
    assert queue_growth(sent_s, done_s, 0.0, 30.0).per_s == pytest.approx(10.0, rel=0.01)


def test_a_creeping_latency_is_not_overload() -> None:
    sent_s = np.arange(0, 30, 0.01)
    done_s = sent_s + 0.020 + 0.0001 * sent_s  # 23 ms after 30 s: a third of a request more in flight
    growth = queue_growth(sent_s, done_s, 0.0, 30.0)
    assert growth.p_value < 0.01
    assert not growth.rising


def test_the_ratio_over_rounds_is_students_t_on_logarithms() -> None:
    a, b = [20.0, 22.0, 19.0, 24.0], [10.0, 12.0, 9.0, 11.0]
    ratio = paired_ratio(a, b)
    assert ratio is not None
    truth = stats.ttest_rel(np.log(a), np.log(b)).confidence_interval(0.95)
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(truth.low), math.exp(truth.high)))
    assert ratio.value == pytest.approx(stats.gmean(a) / stats.gmean(b))
    spread = np.std(np.log(a) - np.log(b), ddof=1)
    assert ratio.smallest_visible == pytest.approx(math.exp(2.8 * spread / 2) - 1)


def test_no_ratio_from_one_round_or_from_failures() -> None:
    assert paired_ratio([20.0], [10.0]) is None
    assert paired_ratio([20.0, math.inf], [10.0, 10.0]) is None


@pytest.mark.parametrize("phi", [0.0, 0.6])
def test_the_ratio_of_two_series_holds_the_truth_as_often_as_it_says(phi: float) -> None:
    hits = seen = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        a, b = (np.exp(0.3 * _correlated(rng, 6000, phi)) for _ in range(2))
        same, faster = block_ratio(a, b, 99), block_ratio(1.3 * a, b, 99)
        assert same is not None
        assert faster is not None
        hits += same.low <= 1 <= same.high
        seen += faster.low > 1
    assert hits / 100 >= 0.9
    assert seen / 100 >= 0.95


def test_a_series_that_cannot_carry_a_ratio_has_none() -> None:
    values = np.random.default_rng(1).exponential(size=5000)
    assert block_ratio(values, values[:150], 99) is None
    assert block_ratio(values, np.sort(values), 99) is None
    assert block_ratio(values, np.where(values > np.quantile(values, 0.98), math.inf, values), 99) is None
    assert block_ratio(values, values, 99) is not None
