"""A term of an objective: at most so many of the arrivals may be beyond a limit, be it a latency or success itself.

One test for all of them: a binomial one, at the number of independent arrivals that those measured are worth, which
has to be sure to 99 % on either side. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tailrate.analysis.records.objective import Slo
from tailrate.analysis.stats.distributions import betainc, betaincinv
from tailrate.analysis.text.words import significant

SURE = 0.99
ALL = "all"
RATE_ERRORS = 0.01
"""Share of the arrivals that may fail where an objective asks for nothing but a rate."""


def all_of(answers: Iterable[bool | None]) -> bool | None:
    """False if any is, else unknown if any is, else True."""
    found = list(answers)
    return False if False in found else None if None in found else True


@dataclass(frozen=True, slots=True)
class Term:
    """At most a share of the arrivals may be beyond a limit."""

    text: str
    allowed: float
    limit_ms: float
    """A failure is beyond any; beyond an infinite one are failures alone."""
    figure: str = ""
    """What is limited: a whole answer's latency, `ttft`, `tpot`, or `all` limits of the objective at once."""
    joint: tuple[tuple[str, float], ...] = ()
    """Of `all`: the figures with their limits."""
    for_rate: bool = False
    """Asked beside a rate and no latency: it holds where the endpoint keeps up and the rate was sent in time."""

    @property
    def of_latency(self) -> bool:
        """Whether waiting shows in it: in a queue, or in the load generator."""
        return math.isfinite(self.limit_ms) or self.figure == ALL

    @property
    def beyond(self) -> str:
        """What those did that are."""
        if not self.of_latency:
            return "failed"
        if self.figure == ALL:
            return "missed a limit or failed"
        what = f"had a {self.figure.upper()} above" if self.figure else "took longer than"
        return f"{what} {significant(self.limit_ms)} ms or failed"

    @property
    def least(self) -> float:
        """Independent arrivals that keep it if none of them is beyond.

        >>> math.ceil(Term("p99<50ms", 0.01, 50).least)
        459
        """
        if not 0 < self.allowed < 1:
            return 1.0 if self.allowed else math.inf
        return math.log(1 - SURE) / math.log1p(-self.allowed)


def terms(slo: Slo) -> tuple[Term, ...]:
    """All of an objective but the rate that it asks for, which is no share: `reaches`.

    >>> [term.text for term in terms(Slo.parse("rate>=200"))]
    ['errors<1%']
    """
    found = []
    for name, bound in slo.bounds.items():
        found.append(Term(f"{slo.prefix}{bound.text(name)}", _rest(bound.percentile / 100), bound.ms, name))
    if slo.min_goodput is not None:
        text, allowed = f"{slo.prefix}goodput>{100 * slo.min_goodput:g}%", _rest(slo.min_goodput)
        limits = tuple((name, bound.ms) for name, bound in slo.bounds.items())
        (name, limit_ms), *more = limits
        found.append(Term(text, allowed, math.inf, ALL, limits) if more else Term(text, allowed, limit_ms, name))
    errors = RATE_ERRORS if slo.max_error_rate is None and not found else slo.max_error_rate
    if errors is not None:
        for_rate = slo.min_rate_rps is not None and not found
        found.append(Term(f"{slo.prefix}errors<{100 * errors:g}%", errors, math.inf, for_rate=for_rate))
    return tuple(found)


def _rest(share: float) -> float:
    """Without the dust of 1 − 0.99, so that two terms that mean the same are the same."""
    return round(1 - share, 12)


@dataclass(frozen=True, slots=True)
class Count:
    """Arrivals of a window, those of them beyond a limit, and how many say as much as one independent arrival."""

    n: int
    beyond: int
    dependence: float = 1.0
    seconds: float = 0.0
    by: str = ""
    """What the dependence is that of, where it is not of those beyond."""

    @property
    def share(self) -> float:
        return self.beyond / self.n if self.n else 0.0

    @property
    def worth(self) -> float:
        return self.n / max(1.0, self.dependence)


def judged(share: float, worth: float, allowed: float, sure: float = SURE) -> bool | None:
    """Whether the share of all arrivals, of which these are a sample, is surely below what is allowed, or above.

    One-sided, each at 99 % unless told (Clopper and Pearson).
    """
    beyond = share * worth
    if worth <= 0 or allowed >= 1:
        return True if worth > 0 else None
    if beyond > 0 and (allowed <= 0 or betainc(beyond, worth - beyond + 1, allowed) <= 1 - sure):
        return False
    if allowed > 0 and worth > beyond and betainc(beyond + 1, worth - beyond, allowed) >= sure:
        return True
    return None


def between(share: float, worth: float) -> tuple[float, float]:
    """The shares of all arrivals that such a sample leaves open: each end is sure to 99 %."""
    beyond = share * worth
    low = betaincinv(beyond, worth - beyond + 1, 1 - SURE) if beyond > 0 else 0.0
    high = betaincinv(beyond + 1, worth - beyond, SURE) if worth > beyond else 1.0
    return low, high


def times_more(share: float, worth: float, allowed: float) -> float:
    """By how many times as many arrivals it would be settled, if their share stayed what it is; infinite: by none."""

    def settled(times: float) -> bool:
        return judged(share, times * worth, allowed) is not None

    low, high = 1.0, 2.0
    while not settled(high):
        low, high = high, 2 * high
        if high > 1e9:
            return math.inf
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if settled(middle) else (middle, high)
    return high


def percent(share: float) -> str:
    """A share as `0.31 %`, without what rounding left of nothing."""
    return f"{significant(100 * share, 2) if share > 1e-9 else 0} %"
