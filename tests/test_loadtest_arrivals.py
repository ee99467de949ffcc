import numpy as np
import pytest
from scipy import stats

from loadtest.engine.arrivals import offsets, share


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


def test_unknown_process_names_the_known():
    with pytest.raises(ValueError, match="constant, poisson"):
        offsets("bursty", 1.0, 1.0, 1)
