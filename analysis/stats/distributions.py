"""Distributions that intervals are made of: beta (for shares, binomial), Student's t, chi-square, normal.

scipy has them too, and its import takes a fifth of a second, a quarter of what the report of a small run takes.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from statistics import NormalDist

LARGE = 3000.0
"""Of both parameters: a continued fraction has the root of it in terms, so from here on NODES places are added up."""
NODES = 32
NOTHING = 100.0
"""Twice the logarithm of what the density falls to there."""
EXACT, CLOSE = 4e-16, 1e-13
MOST_TERMS, MOST_STEPS = 10_000, 200


def betainc(a: float, b: float, x: float) -> float:
    """The chance that a share that is distributed as Beta(a, b) is at most x.

    >>> betainc(1, 1, 0.25), round(betainc(3, 8, 0.2), 6)
    (0.25, 0.3222)
    """
    a, b, x = float(a), float(b), float(x)  # numpy's own would warn of what is meant below
    if not math.isfinite(a + b) or math.isnan(x):
        return math.nan
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _lower(b, a, 1 - x)
    return _lower(a, b, x)


def betaincinv(a: float, b: float, p: float) -> float:
    """The share that such a one is at most with the chance p, above 0 and below 1."""
    a, b, p = float(a), float(b), float(p)
    if not math.isfinite(a + b) or math.isnan(p):
        return math.nan
    low, high, x = 0.0, 1.0, a / (a + b)
    for _ in range(MOST_STEPS):
        over = betainc(a, b, x) - p
        step = over * math.exp(min(700.0, -_log_density(a, b, x)))  # Newton's, unless it leaves what holds the share
        if abs(step) <= CLOSE * x:
            return min(x - step, high)
        low, high = (low, x) if over > 0 else (x, high)
        x = x - step if low < x - step < high else (low + high) / 2
    return x


def normal_quantile(p: float) -> float:
    return NormalDist().inv_cdf(p)


def student_quantile(freedom: float, p: float) -> float:
    """Of Student's t.

    >>> round(student_quantile(8, 0.975), 4), round(student_quantile(8, 0.025), 4)
    (2.306, -2.306)
    """
    inside = betaincinv(freedom / 2, 0.5, 2 * min(p, 1 - p))
    return math.copysign(math.sqrt(freedom * (1 - inside) / inside), p - 0.5)


def student_p_value(freedom: float, t: float) -> float:
    """How often chance shows as much, up or down."""
    return betainc(freedom / 2, 0.5, freedom / (freedom + t * t))


def chi_square_p_value(freedom: int, score: float) -> float:
    """How often chance shows as much, or more.

    >>> round(chi_square_p_value(5, 11.0705), 5)
    0.05
    """
    half = score / 2
    if half <= 0:
        return 1.0
    found = math.erfc(math.sqrt(half)) if freedom % 2 else math.exp(-half)
    for k in range(2 - freedom % 2, freedom, 2):
        found += math.exp(k / 2 * math.log(half) - half - math.lgamma(k / 2 + 1))
    return found


def _lower(a: float, b: float, x: float) -> float:
    """Below the mean."""
    return _by_sum(a, b, x) if min(a, b) > LARGE else _by_fraction(a, b, x)


def _by_fraction(a: float, b: float, x: float) -> float:
    """By the continued fraction that converges quickly there (Lentz)."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, MOST_TERMS):
        at = a + 2 * m
        for term in (m * (b - m) * x / ((at - 1) * at), -(a + m) * (a + b + m) * x / (at * (at + 1))):
            d = 1 / (1 + term * d)
            c = 1 + term / c
            found *= c * d
        if abs(c * d - 1) <= EXACT:
            break
    return math.exp(_log_density(a, b, x)) * x * (1 - x) / a * found


def _by_sum(a: float, b: float, x: float) -> float:
    """Of the density, nearly a normal one, from where nothing is left of it (Gauss and Legendre)."""
    deviation = math.sqrt(a * b / (a + b + 1)) / (a + b)
    z = (a / (a + b) - x) / deviation
    half = min(x, deviation * (math.sqrt(z * z + NOTHING) - z)) / 2
    return half * sum(weight * math.exp(_log_density(a, b, x - half + half * at)) for at, weight in _nodes())


@cache
def _nodes() -> list[tuple[float, float]]:
    """Between −1 and 1, and what each weighs."""
    from numpy.polynomial.legendre import leggauss

    return list(zip(*(found.tolist() for found in leggauss(NODES)), strict=True))


def _log_density(a: float, b: float, x: float) -> float:
    """Told from the mean, as gamma functions of large numbers have no digits to spare."""
    mean, rest = a / (a + b), b / (a + b)
    over = x - mean
    found = a * (math.log1p(over / mean) if 2 * x > mean else math.log(x / mean))
    found += b * (math.log1p(-over / rest) if 2 * (1 - x) > rest else math.log((1 - x) / rest))
    return found - math.log(x) - math.log1p(-x) + _log_scale(a, b)


@lru_cache(64)
def _log_scale(a: float, b: float) -> float:
    peak = math.log(a * b / (a + b) / (2 * math.pi)) / 2
    return peak + _beyond_stirling(a + b) - _beyond_stirling(a) - _beyond_stirling(b)


def _beyond_stirling(z: float) -> float:
    """What Stirling's formula lacks of the logarithm of the gamma function."""
    if z < 16:
        return math.lgamma(z) - (z - 0.5) * math.log(z) + z - math.log(2 * math.pi) / 2
    return (1 / 12 - (1 / 360 - (1 / 1260 - 1 / 1680 / z**2) / z**2) / z**2) / z
