import math
import subprocess
import sys

import numpy as np
import pytest
from often import at_least, at_most, counts
from scipy import signal, stats
from told_apart import differs

from tailrate.analysis.stats.dependence import LEAST_BEYOND, effective_size, worth
from tailrate.analysis.stats.interval import bounds, interval, least_for_upper, ranks
from tailrate.analysis.stats.ratio import Doubt, over_rounds, ratio
from tailrate.analysis.stats.sketch import SLICES, Sketch, probabilities, quantile

pytestmark = pytest.mark.computes


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
    assert ratio([(sketch, sketch)], 99, alike=False) is None
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
    assert differs(nothing, nothing, alike=True) is None
    for n in (1, 2, 2 * LEAST_BEYOND - 1):
        sketch = _lognormal(6, n)
        assert sketch.n == n
        assert interval(sketch, 50) is None


@pytest.mark.parametrize(("n", "percent"), [(50, 99), (367, 99), (1000, 99.9)])
def test_a_sample_that_may_lie_below_the_percentile_has_no_upper_end(n: int, percent: float) -> None:
    found = interval(_lognormal(6, n), percent)
    assert found
    assert 0 < found[0] < math.exp(0.5 * stats.norm.ppf(percent / 100))
    assert found[1] == math.inf


def test_all_that_failed_has_no_latency() -> None:
    failed = Sketch.of(np.arange(400) // 2, np.full(400, math.inf))
    assert len(failed.edges) == 0
    assert interval(failed, 50) == (math.inf, math.inf)


def test_ranks_are_binomial_ones_of_the_effective_size() -> None:
    found = ranks(1000, 50, 1000)
    assert found
    assert found[1]
    # Clopper-Pearson for 500 of 1000
    assert bounds(50, 1000) == pytest.approx(stats.binomtest(500, 1000).proportion_ci(0.95), abs=1e-9)
    assert stats.binom.cdf(found[1], 1000, 0.5) - stats.binom.cdf(found[0], 1000, 0.5) >= 0.95
    narrow, wide = ranks(100_000, 99, 100_000), ranks(100_000, 99, 1000)
    assert narrow
    assert wide
    assert wide[0] < narrow[0] < 99_000 < (narrow[1] or 0) < (wide[1] or 0)
    assert ranks(100_000, 99, None) is None
    # the largest of 367 is not above P99 often enough
    assert math.ceil(least_for_upper(99)) == 368
    assert [(ranks(n, 99, n) or (0, 0))[1] for n in (367, 368)] == [None, 367]
    assert stats.binom.pmf(0, 368, 0.01) < 0.025 < stats.binom.pmf(0, 367, 0.01)


# ---- what its intervals hold


@counts(30, 200)
@pytest.mark.parametrize(("percent", "n"), [(50, 2000), (99, 2000), (99, 20_000)])
def test_intervals_of_independent_latencies_cover(percent: float, n: int, seeds: int) -> None:
    hits = _held([_lognormal(seed, n) for seed in range(seeds)], percent, math.exp(0.5 * stats.norm.ppf(percent / 100)))
    assert len(hits) == seeds
    assert at_least(0.05, seeds) <= hits.count(False) <= at_most(0.05, seeds)


@counts(30, 200)
@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("n", [1000, 5000, 20_000, 100_000])
def test_a_queue_has_intervals_that_cover_open_above_where_a_window_is_short(n: int, load: float, seeds: int) -> None:
    found = [interval(_queue(seed, n, load), 99) for seed in range(seeds)]
    truth = math.log(100) / (1 - load)
    assert all(found)
    missed = [not low <= truth <= high for low, high in filter(None, found)]
    assert missed.count(True) <= at_most(0.07, seeds)
    opened = [high == math.inf for _, high in filter(None, found)].count(True) / seeds
    if n * (1 - load) ** 2 > 7000:
        assert opened < 0.1
    if n * (1 - load) ** 2 < 100:
        assert opened > 0.9


def test_neighbours_that_resemble_each_other_are_worth_less() -> None:
    # signs of a Gaussian AR(1) process correlate as 2/π asin(φᵏ)
    n, phi = 50_000, 0.9
    inflation = 1 + 2 * np.sum(2 / np.pi * np.arcsin(phi ** np.arange(1, 400)))
    sizes = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        series = signal.lfilter([1], [1, -phi], rng.normal(size=n + 500))[500:]
        sizes.append(effective_size(_sketch(_arrivals(rng, n), series), 50) or math.nan)
    # with the allowance for a variance that is known from 8 waves
    excess = (stats.t.ppf(0.975, 8) / stats.norm.ppf(0.975)) ** 2 * (inflation - 1)
    assert np.mean(n / np.array(sizes)) == pytest.approx(1 + excess, rel=0.15)
    independent = [effective_size(_lognormal(seed, n), 50) or math.nan for seed in range(60)]
    assert 0.8 < np.median(independent) / n <= 1


def test_dependence_counts_for_more_where_few_are_beyond() -> None:
    """A tenth of the slices is twice as bad as the others; the same slices, with a hundred times the arrivals."""
    slices = np.full(SLICES, 100.0)
    bad = np.where(np.arange(SLICES) // 20 == 3, 2.0, 1.0)
    few, many = worth(slices, bad) / 20_000, worth(100 * slices, 100 * bad) / 2_000_000
    alone = worth(slices, np.ones(SLICES)) / 20_000
    assert alone == pytest.approx(1)
    assert few < 0.7
    # of a hundred times as many that come in the same clusters, each is worth less
    assert many < few
    # nothing beyond, or everything, says nothing of dependence
    assert worth(slices, np.zeros(SLICES)) == worth(slices, slices) == 20_000


def test_more_beyond_in_the_same_clusters_is_worth_less_and_evenly_no_less() -> None:
    rng = np.random.default_rng(1)
    slices = np.full(SLICES, 500.0)
    evenly = rng.binomial(500, 0.01, SLICES).astype(float)
    together = np.zeros(SLICES)
    together[60:64] = evenly.sum() / 4
    assert worth(slices, evenly) > 0.5 * slices.sum()
    assert worth(slices, together) < 0.02 * slices.sum()


def test_unequal_arrivals_alone_do_not_count_as_correlation() -> None:
    rng = np.random.default_rng(8)
    slices = np.repeat(np.arange(SLICES), 50 + 200 * (np.arange(SLICES) % 40 < 20))
    sketches = [Sketch.of(slices, rng.exponential(size=len(slices))) for _ in range(40)]
    assert np.median([effective_size(sketch, 99) or math.nan for sketch in sketches]) > 0.75 * len(slices)


# ---- two windows


@counts(30, 200)
def test_the_same_twice_is_seldom_called_different(seeds: int) -> None:
    called: dict[float | str, int] = {50: 0, 99: 0, "either": 0}
    for seed in range(seeds):
        a, b = _lognormal(2 * seed, 20_000), _lognormal(2 * seed + 1, 20_000)
        for percent in (50, 99):
            doubt = ratio([(a, b)], percent, alike=False)
            assert doubt
            change = math.log(quantile(a, percent / 100) / quantile(b, percent / 100))
            called[percent] += abs(change) > (doubt.down if change > 0 else doubt.up)
        called["either"] += bool(differs(a, b, alike=False))
    assert all(count <= at_most(0.03, seeds) for count in called.values()), called
    # it does call some: an interval that held everything would be of no use
    assert sum(called.values()) > 0


@counts(30, 200)
@pytest.mark.parametrize("paired", [False, True])
def test_one_queue_twice_is_seldom_called_different(paired: bool, seeds: int) -> None:
    wrong = 0
    for seed in range(0, 2 * seeds, 2):
        a = _queue(seed, 20_000, 0.5)
        wrong += bool(differs(a, _queue(seed + 1, 20_000, 0.5, arrivals=seed if paired else None), paired))
    assert wrong <= at_most(0.05, seeds)


def _stalling(seed: int, n: int = 20_000, apart: int = 2000) -> Sketch:
    """Two of a hundred wait for the end of one of some ten stalls: P99 is in them or far below."""
    rng = np.random.default_rng([seed, n, apart])
    came = _arrivals(rng, n)
    begins = np.concatenate([[-math.inf], np.cumsum(rng.exponential(apart, 60))])
    ends = begins[np.searchsorted(begins, came) - 1] + 0.02 * apart
    return _sketch(came, np.exp(0.3 * rng.normal(size=n)) + np.maximum(0, ends - came))


@counts(60, 200)
def test_rare_stalls_are_seldom_called_a_difference(seeds: int) -> None:
    called = 0
    for seed in range(seeds):
        a, b = _stalling(2 * seed), _stalling(2 * seed + 1)
        called += 99 in (differs(a, b, alike=False, percents=(99,)) or ())
    assert called <= at_most(0.03, seeds)


def test_a_change_of_five_percent_is_seen() -> None:
    seen = [
        differs(_lognormal(2 * seed, 20_000, slower=1.05), _lognormal(2 * seed + 1, 20_000), alike=False) or ()
        for seed in range(50)
    ]
    assert np.mean([50 in percents for percents in seen]) >= 0.9


def test_what_shared_arrivals_do_to_both_cancels() -> None:
    narrower = []
    for seed in range(10):
        came = np.random.default_rng(seed).exponential(size=22_000).cumsum() / 0.7
        noise = [np.exp(0.05 * np.random.default_rng([seed, side]).normal(size=22_000)) for side in (1, 2)]
        a, b = (_sketch(came[2000:] - came[1999], _lindley(came, served)[2000:]) for served in noise)
        pair, apart = ratio([(a, b)], 99, alike=True), ratio([(a, b)], 99, alike=False)
        assert pair
        assert apart
        narrower.append(pair.error / apart.error)
    assert np.median(narrower) < 0.5


def test_by_chance_alone_little_seems_shared() -> None:
    """One side has more beyond where the other has fewer, in a wave that the slowest eight cannot see."""
    slices = np.repeat(np.arange(SLICES), 100)
    beyond = np.round(50 + 10 * np.cos(15 * math.pi * (np.arange(SLICES) + 0.5) / SLICES)).astype(int)
    rng = np.random.default_rng(1)
    a, b = (
        Sketch.of(slices, 1 + np.concatenate([[*rng.uniform(0, 1, 100 - k), *rng.uniform(1, 2, k)] for k in more]))
        for more in (beyond, 100 - beyond)
    )
    alike, apart = ratio([(a, b)], 50, alike=True), ratio([(a, b)], 50, alike=False)
    assert alike
    assert apart
    assert alike.error > 0.8 * apart.error


@counts(40, 200)
def test_two_at_once_that_do_not_differ_have_a_ratio_of_1(seeds: int) -> None:
    """On one device at a load of 0.8: what is beyond P99 comes in a few clusters, which both sides have."""
    wrong, closed = {50: 0, 99: 0}, 0
    for seed in range(seeds):
        rng = np.random.default_rng([seed, 3])
        came, mine = _arrivals(rng, 20_000) / 0.8, rng.random(20_000) < 0.5
        latency = _lindley(came, rng.exponential(size=20_000))
        a, b = (
            Sketch.of(np.minimum((SLICES * came[of] / came[-1]).astype(int), SLICES - 1), latency[of])
            for of in (mine, ~mine)
        )
        for percent in (50, 99):
            doubt = ratio([(a, b)], percent, alike=True)
            assert doubt
            off = math.log(quantile(a, percent / 100) / quantile(b, percent / 100))
            wrong[percent] += off > doubt.down or -off > doubt.up
        closed += math.isfinite(doubt.down + doubt.up)
    assert all(count <= at_most(0.06, seeds) for count in wrong.values()), wrong
    assert closed >= at_least(0.95, seeds)


def _lindley(came: np.ndarray, served: np.ndarray) -> np.ndarray:
    work = np.cumsum(served)
    return np.maximum.accumulate(came - (work - served)) + work - came


def test_the_smallest_visible_change_is_2_8_errors() -> None:
    assert Doubt.of(0.01).smallest_visible == pytest.approx(math.exp(0.028) - 1)
    assert Doubt.of(0.01).up == Doubt.of(0.01).down == pytest.approx(0.0196)
    assert Doubt(0.1, math.inf).smallest_visible == math.inf
    assert Doubt(0.196, math.inf).error == pytest.approx(0.1)


def test_an_interval_without_1_in_it_is_what_differs() -> None:
    doubt = Doubt(0.2, 0.5)
    assert doubt.p_value(0.2) == pytest.approx(0.05, abs=1e-4)
    assert doubt.p_value(-0.5) == pytest.approx(0.05, abs=1e-4)
    assert doubt.p_value(0.25) < 0.05 < doubt.p_value(-0.25)
    assert Doubt(math.inf, 0.1).p_value(3.0) == 1


@counts(40, 300)
@pytest.mark.parametrize("times", [0.5, 1.3, 4.0])
@pytest.mark.parametrize("alike", [False, True])
def test_a_ratio_is_held_whatever_it_is(times: float, alike: bool, seeds: int) -> None:
    """Of two queues of which one is as fast again; where both have the same arrivals the interval is the narrower."""
    missed, widths = 0, []
    for seed in range(0, 2 * seeds, 2):
        a, b = _queue(seed, 20_000, 0.5), _queue(seed + 1, 20_000, 0.5, arrivals=seed if alike else None)
        a = Sketch(a.edges * times, a.counts)
        doubt = ratio([(a, b)], 99, alike)
        assert doubt
        off = math.log(quantile(a, 0.99) / quantile(b, 0.99)) - math.log(times)
        missed += off > doubt.down or -off > doubt.up
        widths.append(doubt.down + doubt.up)
    assert missed <= at_most(0.06, seeds)
    assert np.median(widths) < 0.8


def test_a_ratio_the_other_way_round_is_its_inverse() -> None:
    for seed in range(10):
        a, b = _queue(2 * seed, 5000, 0.6), _queue(2 * seed + 1, 5000, 0.6)
        one, other = ratio([(a, b)], 99, alike=False), ratio([(b, a)], 99, alike=False)
        assert one
        assert other
        assert (one.down, one.up) == pytest.approx((other.up, other.down), rel=0.03)


def test_rounds_together_know_more_than_each() -> None:
    for seed in range(5):
        both = [(_lognormal(100 * seed + 2 * k, 4000), _lognormal(100 * seed + 2 * k + 1, 4000)) for k in range(8)]
        alone, together = ratio(both[:1], 99, alike=False), ratio(both, 99, alike=False)
        assert alone
        assert together
        assert together.error == pytest.approx(alone.error / math.sqrt(8), rel=0.35)


# ---- rounds


def test_one_round_says_what_it_knows() -> None:
    assert over_rounds([0.1], Doubt(0.02, 0.03)) == (0.1, Doubt(0.02, 0.03))


@pytest.mark.parametrize("rounds", [2, 4, 20])
@pytest.mark.parametrize("between", [0.0, 1.0, 5.0])
def test_rounds_together_are_seldom_wrong(rounds: int, between: float) -> None:
    rng = np.random.default_rng([rounds, int(between)])
    wrong, errors = 0, []
    for _ in range(400):
        logs = 0.01 * math.hypot(1, between) * rng.normal(size=rounds)
        value, doubt = over_rounds(list(logs), Doubt.of(0.01 / math.sqrt(rounds)))
        wrong += abs(value) > doubt.up
        errors.append(doubt.error)
    assert wrong / 400 <= 0.09
    # never much wider than if all were known
    assert np.mean(errors) < (2.9 if rounds == 2 else 1.6) * 0.01 * math.hypot(1, between) / math.sqrt(rounds)


def test_rounds_that_disagree_are_trusted_less_on_both_sides() -> None:
    within = Doubt(0.01, 0.02)
    agree = over_rounds([0.0, 0.001, -0.001], within)[1]
    disagree = over_rounds([0.0, 0.05, -0.05], within)[1]
    assert disagree.error > 2 * agree.error
    assert agree.up / agree.down == pytest.approx(2)
    assert disagree.up / disagree.down == pytest.approx(2)
    assert over_rounds([0.0, 0.05, -0.05], Doubt(0.01, math.inf))[1].up == math.inf


def test_it_needs_no_scipy_until_asked() -> None:
    code = "import sys, tailrate.analysis.stats.interval; assert 'scipy' not in sys.modules, 'scipy'"
    subprocess.run([sys.executable, "-c", code], check=True)
