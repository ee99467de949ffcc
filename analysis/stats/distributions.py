"""Distributions that intervals are made of: beta (for shares, binomial), Student's t, chi-square, normal.

scipy has them too, and its import takes a fifth of a second, a quarter of what the report of a small run takes. The
samples of a large one are left to it, whose series do not grow with them.
"""

from __future__ import annotations

import math
from statistics import NormalDist

LARGE = 20_000.0
"""The sum of both parameters from which on scipy is asked: here one takes as many terms as the root of that."""
EXACT = 4e-16
MOST_TERMS, MOST_STEPS = 10_000, 200


def betainc(a: float, b: float, x: float) -> float:
    """The chance that a share that is distributed as Beta(a, b) is at most x.

    >>> betainc(1, 1, 0.25), round(betainc(3, 8, 0.2), 6)
    (0.25, 0.3222)
    """
    a, b, x = float(a), float(b), float(x)  # numpy's own would warn of what is meant below
    if not a + b < LARGE:
        from scipy import special

        return float(special.betainc(a, b, x))
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _lower(b, a, 1 - x)
    return _lower(a, b, x)


def betaincinv(a: float, b: float, p: float) -> float:
    """The share that such a one is at most with the chance p, above 0 and below 1."""
    if not a + b < LARGE:
        from scipy import special

        return float(special.betaincinv(a, b, p))
    a, b, p = float(a), float(b), float(p)
    low, high, x = 0.0, 1.0, a / (a + b)
    for _ in range(MOST_STEPS):
        over = betainc(a, b, x) - p
        low, high = (low, x) if over > 0 else (x, high)
        before, x = x, x - over * math.exp(min(700.0, -_log_density(a, b, x)))
        if not low < x < high:  # Newton's step does not stay between
            x = (low + high) / 2
        if abs(x - before) <= 1e-15 * x:
            break
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
    """By the continued fraction that converges quickly below the mean (Lentz)."""
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


def _log_density(a: float, b: float, x: float) -> float:
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return (a - 1) * math.log(x) + (b - 1) * math.log1p(-x) - log_beta
