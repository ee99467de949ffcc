"""Distributions against scipy's, closed forms and sums of binomial chances."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import special, stats

from tailrate.analysis.stats import distributions
from tailrate.analysis.stats.distributions import (
    betainc,
    betaincinv,
    chi_square_p_value,
    normal_quantile,
    student_p_value,
    student_quantile,
)

LEVELS = (1e-6, 0.001, 0.01, 0.025, 0.3, 0.5, 0.9, 0.975, 0.99, 0.999)


def parameters(rng, count):
    """Of all sizes."""
    return (10 ** rng.uniform(-1, 8, (count, 2))).tolist()


def test_it_is_scipy_s_in_both_tails():
    rng = np.random.default_rng(1)
    for a, b in parameters(rng, 3000):
        x = float(stats.beta.ppf(rng.uniform(1e-9, 1 - 1e-9), a, b)) if rng.uniform() < 0.8 else float(rng.uniform())
        if not 1e-250 < x < 1:
            continue
        assert betainc(a, b, x) == pytest.approx(special.betainc(a, b, x), rel=1e-8, abs=1e-14), (a, b, x)
        assert betainc(b, a, 1 - x) == pytest.approx(special.betainc(b, a, 1 - x), rel=1e-8, abs=1e-14), (a, b, x)


def test_its_inverse_is_scipy_s():
    rng = np.random.default_rng(2)
    for a, b in parameters(rng, 1000):
        for p in rng.choice(LEVELS, 3, replace=False).tolist():
            assert betaincinv(a, b, p) == pytest.approx(special.betaincinv(a, b, p), rel=1e-7, abs=1e-50), (a, b, p)


@pytest.mark.parametrize(("a", "b"), [(0.05, 3.0), (0.004, 900.0), (0.05, 0.05), (12_000.5, 0.3), (1.0, 1.0)])
@pytest.mark.parametrize("p", LEVELS)
def test_shares_at_the_very_edge_are_between_nought_and_one(a, b, p):
    x = betaincinv(a, b, p)
    assert 0 < x <= 1
    wanted = special.betaincinv(a, b, p)
    assert x == pytest.approx(wanted, rel=1e-6, abs=1e-50) or betainc(a, b, x) == pytest.approx(p, rel=1e-6)


def test_it_is_what_binomial_chances_add_up_to():
    """At least k of n, each with the chance x, is I_x(k, n − k + 1)."""
    for n, k, x in ((1, 1, 0.3), (20, 3, 0.01), (60, 59, 0.97), (300, 150, 0.5)):
        chances = [math.comb(n, i) * x**i * (1 - x) ** (n - i) for i in range(k, n + 1)]
        assert betainc(k, n - k + 1, x) == pytest.approx(math.fsum(chances), rel=1e-11)
    assert betainc(1, 7, 0.2) == pytest.approx(1 - 0.8**7)
    assert [betainc(3, 4, x) for x in (-1, 0, 1, 2)] == [0, 0, 1, 1]
    assert betaincinv(1, 7, 1 - 0.8**7) == pytest.approx(0.2)


def test_a_large_sample_is_a_sum_and_no_series(monkeypatch):
    """What a report of millions of arrivals asks for; a series would have thousands of terms."""
    monkeypatch.setattr(distributions, "MOST_TERMS", 0)
    monkeypatch.setattr(distributions, "MOST_STEPS", 12)
    for n in (2e6, 1e7, 1e9):
        for a, b, p in product((0.5 * n, 0.99 * n, 0.003 * n), (0.5 * n, 0.01 * n), (0.025, 0.975)):
            x = betaincinv(a, b, p)
            assert x == pytest.approx(special.betaincinv(a, b, p), rel=1e-12), (a, b, p)
            assert betainc(a, b, x) == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize("none", [math.nan, math.inf])
def test_what_is_no_number_gives_none(none):
    found = (betainc(none, 1, 0.5), betainc(1, none, 0.5), betaincinv(none, 1, 0.5), betaincinv(1, none, 0.5))
    assert all(map(math.isnan, found))
    assert math.isnan(betainc(1, 1, math.nan))
    assert math.isnan(betaincinv(1, 1, math.nan))


@pytest.mark.parametrize("other", [distributions.LARGE, 1e6])
def test_there_is_no_step_where_the_sum_takes_over(other):
    for p in LEVELS:
        below, above = (betaincinv(distributions.LARGE + more, other + 1, p) for more in (0, 1e-9))
        assert below == pytest.approx(special.betaincinv(distributions.LARGE, other + 1, p), rel=1e-12)
        assert above == pytest.approx(below, rel=1e-11)


@pytest.mark.parametrize("freedom", [1, 2, 3, 8, 30, 400])
def test_student_s_t_is_scipy_s(freedom):
    for p in LEVELS:
        assert student_quantile(freedom, p) == pytest.approx(special.stdtrit(freedom, p), rel=1e-9, abs=1e-6)
        assert normal_quantile(p) == pytest.approx(special.ndtri(p), rel=1e-9, abs=1e-9)
    for t in (0.0, 0.1, -1.0, 2.5, -40.0, math.inf):
        assert student_p_value(freedom, t) == pytest.approx(2 * special.stdtr(freedom, -abs(t)), rel=1e-9)


@pytest.mark.parametrize("freedom", [*range(1, 12), 40, 99])
def test_chi_square_is_scipy_s(freedom):
    for score in (0.0, 1e-9, 0.3, 1.0, 5.0, 11.07, 40.0, 300.0):
        assert chi_square_p_value(freedom, score) == pytest.approx(special.chdtrc(freedom, score), rel=1e-9)


def test_numbers_of_numpy_s_raise_no_warning():
    assert type(betainc(np.float64(3), np.float64(8), np.float64(0.2))) is float
    assert type(betaincinv(np.float64(0.1), np.float64(900), np.float64(1e-6))) is float
