import math
import subprocess
import sys

import numpy as np
import pytest
from often import at_least, at_most, counts
from scipy import signal, stats

from analysis.sketch import (
    LEAST_N_EFF,
    SLICES,
    Doubt,
    Sketch,
    bounds,
    differs,
    effective_size,
    interval,
    over_rounds,
    probabilities,
    quantile,
    ranks,
    ratio,
)


def _sketch(came: np.ndarray, values: np.ndarray) -> Sketch:
    return Sketch.of(np.minimum((SLICES * came / came[-1]).astype(int), SLICES - 1), values)


def _arrivals(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.cumsum(rng.exponential(size=n))


def _lognormal(seed: int, n: int, slower: float = 1.0) -> Sketch:
    rng = np.random.default_rng([seed, n])
    return _sketch(_arrivals(rng, n), slower * np.exp(0.5 * rng.normal(size=n)))


def _queue(seed: int, n: int, load: float, arrivals: int | None = None) -> Sketch:
    """M/M/1 from its steady state; its latency is exponential, of mean 1 / (1 - load)."""
    skip = int(20 / (1 - math.sqrt(load)) ** 2)
    came = _arrivals(np.random.default_rng([seed if arrivals is None else arrivals, n]), n + skip) / load
    served = np.random.default_rng([seed, n, 1]).exponential(size=n + skip)
    work = np.cumsum(served)
    latency = np.maximum.accumulate(came - (work - served)) + work - came
    return _sketch(came[skip:] - came[skip - 1], latency[skip:])


def _held(sketches: list[Sketch], percent: float, truth: float) -> list[bool]:
    found = [interval(sketch, percent) for sketch in sketches]
    return [low_high[0] <= truth <= low_high[1] for low_high in found if low_high]


# ---- what a sketch counts


def test_every_value_is_in_the_bin_whose_edges_hold_it() -> None:
    rng = np.random.default_rng(1)
    slices, values = rng.integers(0, SLICES, 5000), rng.exponential(size=5000)
    values[::200] = math.inf
    sketch = Sketch.of(slices, values)
    assert sketch.n == 5000
    assert sketch.counts[:, -1].sum() == 25
    for k in (0, 1, 50, len(sketch.edges) - 1):
        low = sketch.edges[k - 1] if k else -math.inf
        inside = (values > low) & (values <= sketch.edges[k])
        np.testing.assert_array_equal(sketch.counts[:, k], np.bincount(slices[inside], minlength=SLICES))


def test_values_in_parts_count_as_they_do_at_once() -> None:
    rng = np.random.default_rng(2)
    slices, values = rng.integers(0, SLICES, 30_000), np.round(rng.exponential(size=30_000), 2)
    whole = Sketch.of(slices, values)
    streamed = Sketch.empty(whole.edges)
    for part in np.array_split(np.arange(30_000), 7):
        streamed.add(slices[part], values[part])
    np.testing.assert_array_equal(streamed.counts, whole.counts)
    halves = [Sketch.empty(whole.edges), Sketch.empty(whole.edges)]
    halves[0].add(slices[:9_000], values[:9_000])
    halves[1].add(slices[9_000:], values[9_000:])
    np.testing.assert_array_equal((halves[0] + halves[1]).counts, whole.counts)
    with pytest.raises(ValueError, match="same edges"):
        whole + Sketch.empty(whole.edges[1:])


@pytest.mark.parametrize("n", [1, 7, 1000, 20_000, 1_000_000])
def test_edges_are_few_and_meet_the_percentiles(n: int) -> None:
    found = probabilities(n)
    assert len(found) < 420
    assert (np.diff(found) > 0).all()
    assert found[0] == 0
    assert found[-1] == 1
    assert set(np.round([0.5, 0.9, 0.95, 0.99, 0.999], 9)) <= set(found)


@pytest.mark.parametrize("percent", [50, 90, 95, 99, 99.9])
def test_a_quantile_is_the_exact_one_within_a_bin(percent: float) -> None:
    values = np.random.default_rng(3).exponential(size=20_000)
    found = quantile(Sketch.of(np.arange(20_000) * SLICES // 20_000, values), percent / 100)
    assert found == pytest.approx(np.quantile(values, percent / 100), rel=1e-3)


def test_repeated_values_are_found_exactly() -> None:
    rng = np.random.default_rng(4)
    sketch = _sketch(_arrivals(rng, 5000), np.where(rng.random(5000) < 0.6, 1.0, 10.0))
    assert (quantile(sketch, 0.55), quantile(sketch, 0.65)) == (1.0, 10.0)
    assert interval(sketch, 50) == (1.0, 1.0)
    assert interval(sketch, 99) == (10.0, 10.0)


def test_failures_are_above_every_latency() -> None:
    rng = np.random.default_rng(5)
    values = np.where(rng.random(5000) < 0.03, math.inf, rng.exponential(size=5000))
    sketch = _sketch(_arrivals(rng, 5000), values)
    assert interval(sketch, 99) == (math.inf, math.inf)
    assert ratio(sketch, sketch, 99, paired=False) is None
    found = interval(sketch, 95)
    assert found
    assert math.isfinite(found[1])
    # at the edge: the upper end is infinite, the lower one is not
    few = _sketch(_arrivals(rng, 2000), np.where(np.arange(2000) % 125 == 0, math.inf, rng.exponential(size=2000)))
    found = interval(few, 99)
    assert found
    assert math.isfinite(found[0])
    assert found[1] == math.inf


def test_tiny_and_empty_samples_have_no_interval() -> None:
    nothing = Sketch.of(np.empty(0, int), np.empty(0))
    assert nothing.n == 0
    assert math.isnan(quantile(nothing, 0.5))
    assert effective_size(nothing, 99) is None
    assert interval(nothing, 99) is None
    assert differs(nothing, nothing, paired=True) is None
    for n in (1, 2, 50, 180):
        sketch = _lognormal(6, n)
        assert sketch.n == n
        assert interval(sketch, 50) is None
    assert interval(_lognormal(6, 1000), 99.9) is None
    failed = Sketch.of(np.arange(400) // 2, np.full(400, math.inf))
    assert len(failed.edges) == 0
    assert interval(failed, 50) == (math.inf, math.inf)


def test_ranks_are_binomial_ones_of_the_effective_size() -> None:
    found = ranks(1000, 50, 1000)
    assert found
    # Clopper-Pearson for 500 of 1000
    assert bounds(1000, 50, 1000) == pytest.approx(stats.binomtest(500, 1000).proportion_ci(0.95), abs=1e-9)
    assert stats.binom.cdf(found[1], 1000, 0.5) - stats.binom.cdf(found[0], 1000, 0.5) >= 0.95
    narrow, wide = ranks(100_000, 99, 100_000), ranks(100_000, 99, 1000)
    assert narrow
    assert wide
    assert wide[0] < narrow[0] < 99_000 < narrow[1] < wide[1]
    assert ranks(100_000, 99, LEAST_N_EFF - 1) is None
    assert ranks(100_000, 99, None) is None
    # the largest of 300 is not above P99 often enough
    assert ranks(300, 99, 300) is None
    assert ranks(100_000, 99.9, 1000) is None


# ---- what its intervals hold


@counts(50, 200)
@pytest.mark.parametrize(("percent", "n"), [(50, 2000), (99, 2000), (99, 20_000)])
def test_intervals_of_independent_latencies_cover(percent: float, n: int, seeds: int) -> None:
    hits = _held([_lognormal(seed, n) for seed in range(seeds)], percent, math.exp(0.5 * stats.norm.ppf(percent / 100)))
    assert len(hits) == seeds
    assert at_least(0.05, seeds) <= hits.count(False) <= at_most(0.05, seeds)


@counts(50, 200)
@pytest.mark.parametrize(("n", "missed"), [(20_000, 0.03), (100_000, 0.05)])
def test_a_queue_at_load_0_6_has_intervals_that_cover(n: int, missed: float, seeds: int) -> None:
    # 97.6 of 100 in a thousand windows of 20k, which a few waits of the tail widen; 96 of 100k
    hits = _held([_queue(seed, n, 0.6) for seed in range(seeds)], 99, math.log(100) / 0.4)
    assert len(hits) >= 0.99 * seeds
    assert at_least(missed, seeds) <= hits.count(False) <= at_most(0.05, seeds)


@counts(50, 200)
@pytest.mark.parametrize("n", [5000, 20_000, 100_000])
def test_a_queue_at_load_0_9_has_no_interval_from_a_short_window(n: int, seeds: int) -> None:
    hits = _held([_queue(seed, n, 0.9) for seed in range(seeds)], 99, math.log(100) / 0.1)
    assert len(hits) <= 0.1 * seeds
    assert hits.count(False) <= 0.02 * seeds


@counts(20, 60)
def test_a_queue_at_load_0_9_has_intervals_that_cover_from_a_long_window(seeds: int) -> None:
    hits = _held([_queue(seed, 400_000, 0.9) for seed in range(seeds)], 99, math.log(100) / 0.1)
    assert len(hits) > 0.84 * seeds
    assert hits.count(False) <= at_most(0.05, seeds)


def test_neighbours_that_resemble_each_other_are_worth_less() -> None:
    # signs of a Gaussian AR(1) process correlate as 2/π asin(φᵏ)
    n, phi = 50_000, 0.9
    true_share = 1 / (1 + 2 * np.sum(2 / np.pi * np.arcsin(phi ** np.arange(1, 400))))
    sizes = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        series = signal.lfilter([1], [1, -phi], rng.normal(size=n + 500))[500:]
        sizes.append(effective_size(_sketch(_arrivals(rng, n), series), 50) or math.nan)
    # less by the allowance for a variance known from 30 waves, 1.086
    assert np.median(sizes) / n == pytest.approx(true_share / 1.086, rel=0.12)
    independent = [effective_size(_lognormal(seed, n), 50) or math.nan for seed in range(60)]
    assert 0.8 < np.median(independent) / n <= 1


def test_unequal_arrivals_alone_do_not_count_as_correlation() -> None:
    rng = np.random.default_rng(8)
    slices = np.repeat(np.arange(SLICES), 50 + 200 * (np.arange(SLICES) % 40 < 20))
    sketches = [Sketch.of(slices, rng.exponential(size=len(slices))) for _ in range(40)]
    assert np.median([effective_size(sketch, 99) or math.nan for sketch in sketches]) > 0.75 * len(slices)


# ---- two windows


@counts(50, 200)
def test_the_same_twice_is_seldom_called_different(seeds: int) -> None:
    called: dict[float | str, int] = {50: 0, 99: 0, "either": 0}
    for seed in range(seeds):
        a, b = _lognormal(2 * seed, 20_000), _lognormal(2 * seed + 1, 20_000)
        for percent in (50, 99):
            doubt = ratio(a, b, percent, paired=False)
            assert doubt
            change = math.log(quantile(a, percent / 100) / quantile(b, percent / 100))
            called[percent] += abs(change) > doubt.reach
        called["either"] += bool(differs(a, b, paired=False))
    assert all(count <= at_most(0.03, seeds) for count in called.values()), called
    # it does call some: an interval that held everything would be of no use
    assert sum(called.values()) > 0


@counts(50, 200)
@pytest.mark.parametrize("paired", [False, True])
def test_one_queue_twice_is_seldom_called_different(paired: bool, seeds: int) -> None:
    wrong = 0
    for seed in range(0, 2 * seeds, 2):
        a = _queue(seed, 20_000, 0.5)
        wrong += bool(differs(a, _queue(seed + 1, 20_000, 0.5, arrivals=seed if paired else None), paired))
    assert wrong <= at_most(0.03, seeds)


def _stalling(seed: int, n: int = 20_000, apart: int = 2000) -> Sketch:
    """Two of a hundred wait for the end of one of some ten stalls: P99 is in them or far below."""
    rng = np.random.default_rng([seed, n, apart])
    came = _arrivals(rng, n)
    begins = np.concatenate([[-math.inf], np.cumsum(rng.exponential(apart, 60))])
    ends = begins[np.searchsorted(begins, came) - 1] + 0.02 * apart
    return _sketch(came, np.exp(0.3 * rng.normal(size=n)) + np.maximum(0, ends - came))


@counts(100, 200)
def test_rare_stalls_are_seldom_called_a_difference(seeds: int) -> None:
    called = 0
    for seed in range(seeds):
        a, b = _stalling(2 * seed), _stalling(2 * seed + 1)
        doubt = ratio(a, b, 99, paired=False)
        called += bool(doubt and abs(math.log(quantile(a, 0.99) / quantile(b, 0.99))) > doubt.reach)
    # half the width of the intervals, in place of their longer side, would call 18 of 200
    assert called <= at_most(0.03, seeds)


def test_a_change_of_five_percent_is_seen() -> None:
    seen = [
        differs(_lognormal(2 * seed, 20_000, slower=1.05), _lognormal(2 * seed + 1, 20_000), paired=False) or ()
        for seed in range(50)
    ]
    assert np.mean([50 in percents for percents in seen]) >= 0.9


def test_what_shared_arrivals_do_to_both_cancels() -> None:
    narrower = []
    for seed in range(10):
        came = np.random.default_rng(seed).exponential(size=22_000).cumsum() / 0.7
        noise = [np.exp(0.05 * np.random.default_rng([seed, side]).normal(size=22_000)) for side in (1, 2)]
        a, b = (_sketch(came[2000:] - came[1999], _lindley(came, served)[2000:]) for served in noise)
        pair, apart = ratio(a, b, 99, paired=True), ratio(a, b, 99, paired=False)
        assert pair
        assert apart
        narrower.append(pair.error / apart.error)
    assert np.median(narrower) < 0.5


def _lindley(came: np.ndarray, served: np.ndarray) -> np.ndarray:
    work = np.cumsum(served)
    return np.maximum.accumulate(came - (work - served)) + work - came


def test_the_smallest_visible_change_is_2_8_errors() -> None:
    assert Doubt(0.01).smallest_visible == pytest.approx(math.exp(0.028) - 1)
    assert Doubt(0.01).reach == pytest.approx(0.0196)


# ---- rounds


def test_one_round_says_what_it_knows() -> None:
    value, doubt = over_rounds([0.1], [Doubt(0.02)])
    assert (value, doubt.error) == pytest.approx((0.1, 0.02))


def test_the_better_known_round_counts_for_more() -> None:
    value, _ = over_rounds([0.0, 0.03], [Doubt(0.01), Doubt(0.03)])
    assert 0 < value < 0.015
    assert over_rounds([0.0, 0.03], [Doubt(0.02), Doubt(0.02)])[0] == pytest.approx(0.015)


@pytest.mark.parametrize("rounds", [2, 4, 20])
@pytest.mark.parametrize("between", [0.0, 1.0, 5.0])
def test_rounds_together_are_seldom_wrong(rounds: int, between: float) -> None:
    rng = np.random.default_rng([rounds, int(between)])
    wrong, errors = 0, []
    for _ in range(400):
        logs = 0.01 * math.hypot(1, between) * rng.normal(size=rounds)
        value, doubt = over_rounds(list(logs), [Doubt(0.01)] * rounds)
        wrong += abs(value) > doubt.reach
        errors.append(doubt.error)
    assert wrong / 400 <= 0.09
    # never much wider than if all were known
    assert np.mean(errors) < (2.9 if rounds == 2 else 1.6) * 0.01 * math.hypot(1, between) / math.sqrt(rounds)


def test_rounds_that_disagree_are_trusted_less() -> None:
    agree = over_rounds([0.0, 0.001, -0.001], [Doubt(0.01)] * 3)[1]
    disagree = over_rounds([0.0, 0.05, -0.05], [Doubt(0.01)] * 3)[1]
    assert disagree.error > 2 * agree.error


def test_it_needs_no_scipy_until_asked() -> None:
    code = "import sys, analysis.sketch; assert 'scipy' not in sys.modules, 'scipy'"
    subprocess.run([sys.executable, "-c", code], check=True)
