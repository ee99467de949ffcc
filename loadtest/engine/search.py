"""The knee: the highest rate at which an objective holds, found by asking where it is least known. Pure, no clock.

An objective is a share: at most `target` of the arrivals may fail or take longer than its latency. Rates rise (or fall)
geometrically until that share is crossed. From there every probe moves a posterior over two unknowns, the rate at which
the share is just `target` and how steeply it grows: log-odds of the share are a straight line in the logarithm of the
rate, which holds for queues near their knee, and a cliff is a steep line. The next probe goes into the middle of the
rate's posterior or to its upper end (where misses are many, a probe tells more), in turn: at first that bisects, later
it repeats where the answer is near. A probe counts for as many independent arrivals as batch means show it to be worth.
An overloaded probe says only that the share is large there, since it depends on how long one looks.

The search ends when the interval is narrow enough, or unresolved with the reason: the budget, the load generator,
probes that contradict each other, an objective that no rate keeps, or that every rate keeps.

With a guide (`guided`) a model of the endpoint says where to probe and when to stop; once it gives up, all of the above
goes on from what was seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from loadtest.engine.guided import Guide

Floats = npt.NDArray[np.float64]

RISE = 1.5
WIDTH = 0.098
"""Of the interval: upper end ÷ lower end − 1."""
CONFIDENCE = 0.99
RATES, SLOPES = 600, np.geomspace(3, 3000, 40)
NEAR = 1.4
"""The straight line is asked to hold within this factor of the knee."""
MANY = 0.2
"""Above this share a probe says no more than that it is large."""
ENOUGH = 10
"""Misses from which a probe's own batch means tell how much its arrivals depend on each other."""
NONE_BY_CHANCE = 6.0
"""Misses to be expected of which there is none once in four hundred times."""
LEAST_PROBES = 3
FALLS = 8
TRIES = 3
RISE_SHARE = 1 / 3
"""Length of a probe of the rise, as a share of a later one's."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A latency that at most a share of the arrivals may miss."""

    latency_ms: float
    target: float

    @property
    def least_n(self) -> int:
        """MLPerf's rule: how many arrivals without a miss show that the share is kept, 99 times of 100.

        >>> Objective(50, 0.01).least_n
        459
        """
        return math.ceil(math.log(0.01) / math.log(1 - self.target))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a probe showed of the arrivals in its window."""

    rate: float
    n: int
    missed: int
    dependence: float = 1.0
    """Variance of the share of misses over that of independent arrivals, by batch means."""
    overloaded: bool = False
    hindered: str | None = None
    """Why it says more about the load generator than about the endpoint."""
    seconds: float = 0.0
    """How long it took, the last answers included."""


@dataclass(frozen=True, slots=True)
class Knee:
    """The search's answer; without `reason` it is resolved."""

    low_rps: float | None
    high_rps: float | None
    reason: str | None
    guide: str | None = None
    """How it was come by, where a guide was asked for."""


class Search:
    """`probe()` gives the next rate and its seconds, or None when `knee` has the answer; `see` takes what it showed."""

    def __init__(
        self,
        objective: Objective,
        first_rps: float,
        most_rps: float,
        probe_s: float,
        settle_s: float,
        budget_s: float,
        guide: Guide | None = None,
    ) -> None:
        self.objective = objective
        self._first, self._most = first_rps, most_rps
        self._probe_s, self._settle_s, self._budget_s = probe_s, settle_s, budget_s
        self._guide, self._guided = guide, guide is not None
        """Whether it is still followed."""
        self._whole: bool | None = None
        """Whether the next probe takes all of its time, where the guide says so."""
        self._seen: list[Outcome] = []
        self._hindered = 0
        self._next: float | None = first_rps
        self._lowest_bad, self._highest_good = math.inf, 0.0
        self._ends: list[tuple[float, float]] | None = None
        """The interval that is being confirmed, once for each end still to be tried."""
        self._knee: Knee | None = None

    @property
    def knee(self) -> Knee:
        found = self._knee or self._unresolved("it was stopped")
        return replace(found, guide=self._guide.sentence) if self._guide else found

    def probe(self, spent_s: float = 0.0) -> tuple[float, float] | None:
        if self._next is None:
            return None
        whole = self._bracketed if self._whole is None else self._whole
        least_s = self._settle_s + self.objective.least_n / self._next
        seconds = max(self._probe_s * (1.0 if whole else RISE_SHARE), least_s)
        if spent_s + seconds > self._budget_s:
            needs = f", a probe at {self._next:.4g}/s takes {seconds:.0f} s" if seconds == least_s else ""
            self._end(f"the budget of {self._budget_s:g} s is spent{needs}")
            return None
        return self._next, seconds

    def see(self, outcome: Outcome) -> None:
        if outcome.hindered:
            self._hindered += 1
            if self._hindered >= TRIES:
                self._end(f"client-limited at {outcome.rate:.4g}/s: {outcome.hindered}")
            return
        self._hindered = 0
        self._seen.append(outcome)
        if self._ends and not self._confirm(outcome):
            return
        good = self._good(outcome)
        if good is True:
            self._highest_good = max(self._highest_good, outcome.rate)
        elif good is False:
            self._lowest_bad = min(self._lowest_bad, outcome.rate)
        if self._guided:
            self._guided = self._follow()
        if self._guided:
            return
        if self._bracketed:
            self._narrow()
        elif math.isinf(self._lowest_bad):
            self._rise(outcome.rate)
        else:
            self._fall(outcome.rate)

    def _follow(self) -> bool:
        """Whether the guide has said what comes next."""
        assert self._guide is not None
        advice = self._guide.advise([seen.rate for seen in self._seen], self._most)
        self._whole = None if advice is None else advice.whole
        if advice is None:
            return False
        if advice.interval is None:
            self._next = advice.rate
            return True
        for seen in self._seen:
            if (kept := self._against(seen, *advice.interval)) is not None:
                self._guide.contradicted(seen.rate, kept)
                self._whole = None
                return False
        self._end(None, advice.interval)
        return True

    # ---- the rise

    @property
    def _bracketed(self) -> bool:
        return self._highest_good > 0 and math.isfinite(self._lowest_bad)

    def _good(self, outcome: Outcome) -> bool | None:
        """Whether the probe alone keeps the objective; None: it is near."""
        if outcome.overloaded:
            return False
        share, target = outcome.missed / outcome.n, self.objective.target
        reach = 2 * math.sqrt(outcome.dependence * target * (1 - target) / outcome.n)
        return True if share <= max(target - reach, target / 4) else False if share > target + reach else None

    def _rise(self, rate: float) -> None:
        if rate >= self._most:
            self._end(f"the objective still holds at {rate:.4g}/s, the highest rate to be tried")
        else:
            self._next = min(self._most, rate * RISE)

    def _fall(self, rate: float) -> None:
        if rate < self._first / RISE**FALLS:
            self._end(f"the objective is missed even at {rate:.4g}/s")
        else:
            self._next = rate / RISE

    # ---- the posterior

    def _narrow(self) -> None:
        rates, weights = self._posterior()
        low, median, high = _quantiles(rates, weights, ((1 - CONFIDENCE) / 2, 0.5, (1 + CONFIDENCE) / 2))
        near = [seen for seen in self._seen if median / NEAR <= seen.rate <= median * NEAR]
        # the probes that confirm it make the interval narrower, too
        if high / low - 1 <= (1.2 * WIDTH if self._ends is None else WIDTH) and len(near) >= LEAST_PROBES:
            if self._ends is None:
                self._ends = [(low, high), (low, high)]
            if self._ends:  # what was found is tried once more at both ends
                self._next = self._ends[0][len(self._ends) - 1]
                return
            self._end(None, (low, high))
            return
        below, above = _quantiles(rates, weights, (0.4, 0.95))
        self._next = below if sum(seen.rate > median for seen in near) > len(near) / 2 else above

    def _posterior(self) -> tuple[Floats, Floats]:
        """Weights of rates at which the share is just the target, whatever the slope.

        The first look finds the knee; the second is finer, and asks of the line only what it holds for.
        """
        lowest, highest = min(seen.rate for seen in self._seen), max(seen.rate for seen in self._seen)
        rates = np.geomspace(lowest, highest, RATES)
        usual = self._dependence()
        weights = self._weights(rates, self._seen, usual)
        (median,) = _quantiles(rates, weights, (0.5,))
        near = [seen for seen in self._seen if median / NEAR <= seen.rate <= median * NEAR]
        if len(near) < LEAST_PROBES:
            return rates, weights
        rates = np.geomspace(max(lowest, median / NEAR), min(highest, median * NEAR), RATES)
        return rates, self._weights(rates, near, usual)

    def _dependence(self) -> float:
        """Of all probes alike: by chance it comes out small together with the misses, which would weigh those most."""
        known = [max(1.0, s.dependence) for s in self._seen if s.missed >= ENOUGH and not s.overloaded]
        return float(np.mean(known[-8:])) if known else 3.0

    def _weights(self, rates: Floats, seen: list[Outcome], usual: float) -> Floats:
        target = self.objective.target
        at, slopes = np.log(rates)[:, None], SLOPES[None, :]
        log_likelihood = np.zeros((RATES, len(SLOPES)))
        for outcome in seen:
            odds = math.log(target / (1 - target)) + slopes * (math.log(outcome.rate) - at)
            share = outcome.missed / outcome.n
            if outcome.overloaded or share > MANY:
                # a large share, and nothing about how large
                log_likelihood -= np.logaddexp(0, -4 * (odds - math.log(MANY / 2)))
                continue
            worth = outcome.n / usual
            log_likelihood += worth * (share * -np.logaddexp(0, -odds) + (1 - share) * -np.logaddexp(0, odds))
        weights = np.exp(log_likelihood - log_likelihood.max()).sum(axis=1)
        return np.asarray(weights / weights.sum(), dtype=np.float64)

    # ---- the end

    def _end(self, reason: str | None, interval: tuple[float, float] | None = None) -> None:
        self._next = None
        self._knee = Knee(*interval, reason) if interval else self._unresolved(reason or "")

    def _confirm(self, outcome: Outcome) -> bool:
        """Whether a probe at an end of the interval leaves it standing: a miss at its lower end does not, by more
        than chance, nor does an objective that is kept at its upper end."""
        assert self._ends
        low, high = self._ends.pop()
        kept = self._against(outcome, low, high)
        if kept is None:
            return True
        why = f"unstable: the objective {'was kept' if kept else 'was missed'} at {outcome.rate:.4g}/s"
        interval = (low if kept else low / RISE, high * RISE if kept else high)
        self._end(f"{why}, where earlier probes said otherwise", interval)
        return False

    def _against(self, outcome: Outcome, low: float, high: float) -> bool | None:
        """What a probe says against the interval, by more than chance: True for an objective that was kept above it,
        False for one that was missed below it, None where it leaves it standing."""
        share, worth, target = outcome.missed / outcome.n, outcome.n / self._dependence(), self.objective.target
        reach = 3 * math.sqrt(target * (1 - target) / worth)
        good = share < target - reach or (not outcome.missed and worth * target > NONE_BY_CHANCE)
        bad = outcome.overloaded or share > target + reach
        return True if good and outcome.rate >= high else False if bad and outcome.rate <= low else None

    def _unresolved(self, reason: str) -> Knee:
        if self._bracketed:
            low, high = _quantiles(*self._posterior(), ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
            return Knee(low, high, reason)
        low_rps = self._highest_good or None
        return Knee(low_rps, self._lowest_bad if math.isfinite(self._lowest_bad) else None, reason)


def _quantiles(values: Floats, weights: Floats, wanted: tuple[float, ...]) -> list[float]:
    return [float(value) for value in np.interp(wanted, np.cumsum(weights), values)]
