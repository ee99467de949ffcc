"""Distributions against scipy's, closed forms and sums of binomial chances."""

import math

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
    """Of all sizes, up to where scipy itself is asked."""
    found = 10 ** rng.uniform(-1, math.log10(distributions.LARGE), (count, 2))
    return found[found.sum(axis=1) < distributions.LARGE].tolist()


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


def test_large_samples_are_left_to_scipy(monkeypatch):
    asked = []
    monkeypatch.setattr(special, "betainc", lambda *how: asked.append(how) or 0.5)
    monkeypatch.setattr(special, "betaincinv", lambda *how: asked.append(how) or 0.25)
    assert (betainc(distributions.LARGE, 1, 0.3), betaincinv(1, distributions.LARGE, 0.3)) == (0.5, 0.25)
    assert math.isnan(betainc(math.nan, 1, math.nan)) or asked[-1][0] != asked[-1][0]  # what is no number, too
    assert asked[:2] == [(distributions.LARGE, 1, 0.3), (1, distributions.LARGE, 0.3)]


def test_there_is_no_step_where_scipy_takes_over():
    just_below = distributions.LARGE - 101
    for p in LEVELS:
        ours = betaincinv(just_below, 100.9, p)
        assert ours == pytest.approx(special.betaincinv(just_below, 100.9, p), rel=1e-12)
        assert ours == pytest.approx(betaincinv(just_below, 101.1, p), rel=1e-4)


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
