from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tailrate.loadtest.engine.scenario.arrivals import SHAPES, Pattern, parse_shape, peak, share
from tailrate.loadtest.engine.scenario.steps import LoadStep


def offsets(spacing, rate, seconds, seed, **more):
    return Pattern(spacing, **more).offsets(rate, seconds, seed)


def test_constant_is_a_grid_without_drift():
    at = offsets("constant", 300.0, 60.0, seed=1)
    assert len(at) == 18_000
    assert at[0] == 0
    # rounded to the nanosecond each, never accumulated
    assert np.abs(at - np.arange(18_000) * 1e9 / 300).max() <= 0.5


def test_constant_of_a_fractional_count_keeps_the_arrival_before_the_end():
    assert offsets("constant", 0.3, 10.0, seed=1).tolist() == [0, 3_333_333_333, 6_666_666_667]


@pytest.mark.parametrize("seed", range(5))
def test_poisson_has_exponential_gaps_and_a_poisson_count(seed):
    rate, seconds = 200.0, 100.0
    at = offsets("poisson", rate, seconds, seed)
    gaps = np.diff(at) / 1e9
    assert stats.kstest(gaps, "expon", args=(0, 1 / rate)).pvalue > 0.001
    # not rescaled to land on rate × seconds: the count varies as a Poisson count does
    assert stats.poisson.sf(abs(len(at) - rate * seconds) + rate * seconds, rate * seconds) > 1e-5
    assert at[-1] < seconds * 1e9


def test_poisson_counts_vary_with_the_seed_as_they_should():
    counts = [len(offsets("poisson", 50.0, 2.0, seed)) for seed in range(400)]
    assert np.mean(counts) == pytest.approx(100, abs=2.5)
    assert np.var(counts) == pytest.approx(100, rel=0.3)  # a generator that rescales has none


def test_the_seed_decides():
    again = offsets("poisson", 50.0, 10.0, seed=7)
    assert np.array_equal(offsets("poisson", 50.0, 10.0, seed=7), again)
    assert not np.array_equal(offsets("poisson", 50.0, 10.0, seed=8)[:10], again[:10])


def test_a_schedule_much_longer_than_its_first_chunk_goes_on():
    at = offsets("poisson", 0.01, 100_000.0, seed=3)
    assert len(at) == pytest.approx(1000, abs=150)
    assert (np.diff(at) > 0).all()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shares_are_together_exactly_the_schedule(count):
    at = offsets("poisson", 100.0, 3.0, seed=2)
    parts = [arrival for index in range(count) for arrival in share(at, 5, index, count)]
    parts.sort(key=lambda arrival: arrival.seq)
    assert [arrival.seq for arrival in parts] == list(range(len(at)))
    assert [arrival.offset_ns for arrival in parts] == at.tolist()
    assert {arrival.step for arrival in parts} == {5}


def test_a_share_begins_where_its_step_does():
    assert [arrival.offset_ns for arrival in share(offsets("constant", 2, 1, 1), 0, 0, 1, 7)] == [7, 500_000_007]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 16.0])
def test_gamma_has_gamma_gaps_at_the_same_rate(burstiness):
    at = offsets("gamma", 200.0, 200.0, 3, burstiness=burstiness)
    gaps = np.diff(at) / 1e9
    gamma = stats.gamma(burstiness, 0, 1 / (200 * burstiness))
    least = 1e-7  # in bursts one gap in a hundred is shorter than the nanosecond that it is rounded to
    beyond = gamma.cdf(gaps[gaps > least])
    assert stats.kstest((beyond - gamma.cdf(least)) / gamma.sf(least), "uniform").pvalue > 0.001
    assert len(at) == pytest.approx(40_000, rel=0.05)


def test_a_burstiness_of_one_is_poisson():
    gaps = np.diff(offsets("gamma", 100.0, 200.0, 1, burstiness=1.0)) / 1e9
    assert stats.kstest(gaps, "expon", args=(0, 0.01)).pvalue > 0.001


RATE, SECONDS = 400.0, 40.0


@pytest.mark.parametrize(
    ("shape", "factor"),
    [
        ("linear:0:2", lambda t: 2 * t / SECONDS),
        ("linear:1.5:0.5", lambda t: 1.5 - t / SECONDS),
        ("sine:0.8:20", lambda t: 1 + 0.8 * np.sin(2 * np.pi * t / 20)),
        ("sine:0.8", lambda t: 1 + 0.8 * np.sin(2 * np.pi * t / SECONDS)),
        ("steps:1:3:0.5:1", lambda t: np.array([1, 3, 0.5, 1])[np.minimum(3, (t / 10).astype(int))]),
        ("spike:5:10:4", lambda t: np.where((t >= 10) & (t < 14), 5, 1)),
    ],
)
@pytest.mark.parametrize("spacing", ["constant", "poisson"])
def test_the_rate_follows_the_shape(shape, factor, spacing):
    at = offsets(spacing, RATE, SECONDS, 5, shape=shape) / 1e9
    edges = np.linspace(0, SECONDS, 41)
    found = np.histogram(at, edges)[0]
    fine = np.linspace(0, SECONDS, 40_001)[:-1]
    wanted = RATE * factor(fine + 5e-4).reshape(40, -1).mean(axis=1)
    noise = 1.5 if spacing == "constant" else 5 * np.sqrt(wanted) + 1
    assert (np.abs(found - wanted) <= noise).all()
    assert (np.diff(at) >= 0).all()
    assert at[0] >= 0
    assert at[-1] < SECONDS
    assert peak(shape) == pytest.approx(factor(fine).max(), rel=0.001)


def test_poisson_arrivals_of_any_shape_are_uniform_in_expected_arrivals():
    at = offsets("poisson", RATE, SECONDS, 9, shape="linear:0:2") / 1e9
    assert stats.kstest((at / SECONDS) ** 2, "uniform").pvalue > 0.001


def test_a_trace_is_kept_as_it_was():
    pattern = Pattern(trace_ns=(0, 5, 5, 900_000_000, 1_100_000_000))
    assert pattern.offsets(1, 1.0, 1).tolist() == [0, 5, 5, 900_000_000]
    assert pattern.offsets(99, 2.0, 2).tolist() == list(pattern.trace_ns)


@pytest.mark.parametrize(
    "text", ["wavy", "flat:1", "linear:1", "linear:0:0", "linear:-1:2", "sine:1.5", "sine:0.5:0", "sine", "sine:x",
             "spike:2:1", "spike:2:1:0", "steps", "steps:1:-1", "steps:nan"],
)  # fmt: skip
def test_shapes_that_make_no_sense(text):
    with pytest.raises(ValueError, match=f"shape '{text}' is not understood; write one of flat, linear:FROM:TO"):
        parse_shape(text)


def test_every_shape_is_described():
    assert set(SHAPES) == {"flat", "linear", "sine", "steps", "spike"}


def test_constant_of_a_count_that_is_not_whole_keeps_the_last_arrival():
    assert offsets("constant", 0.3, 11.0, seed=1).tolist() == [0, 3_333_333_333, 6_666_666_667, 10_000_000_000]


@pytest.mark.parametrize("seconds", [10.0, 30.0, 60.0, 4.1])
def test_nothing_is_due_at_the_end_of_a_step_where_no_window_counts_it(seconds):
    step = LoadStep(0, "m/a", 1.0, seconds, 0.0, 0, 1)
    for rate in np.arange(1, 3000) / 10:
        at = replace(step, rate=float(rate)).offsets(Pattern())
        assert at[-1] < step.length_ns
        assert abs(len(at) - rate * seconds) < 1
    assert len(offsets("constant", 8.3, 30.0, 1)) == 249
    assert Pattern("constant", shape="steps:1:1").offsets(8.3, 30.0, 1)[-1] < 30_000_000_000
    assert Pattern(trace_ns=(0, step.length_ns - 1, step.length_ns)).offsets(1, seconds, 1)[-1] == step.length_ns - 1


def test_a_shape_that_changes_nothing_gives_the_plain_grid():
    plain, shaped = (offsets("constant", 300.0, 2.0, 1, shape=shape) for shape in ("flat", "steps:1:1"))
    assert len(shaped) == len(plain)
    assert np.abs(shaped - plain).max() <= 1
