"""The knee: the highest rate at which an objective holds, found by asking where it is least known. Pure, no clock.

The objective's latency, and its goodput, are a share: at most `target` of the arrivals may fail or take longer.
Rates rise (or fall) geometrically until that share is crossed. From there every probe moves a posterior over two
unknowns, the rate at which the share is just `target` and how steeply it grows: log-odds of the share are a
straight line in the logarithm of the rate, which holds for queues near their knee, and a cliff is a steep line. The
next probe goes into the middle of the rate's posterior or to its upper end (where misses are many, a probe tells
more), in turn: at first that bisects, later it repeats where the answer is near. Where the highest rate that was tried
is kept, whatever missed it below (a stall, say) was no limit, and the rise goes on. A probe counts for as many
independent arrivals as all probes near the knee together show that they are worth. One that was cut, as its queue
grew, says only that the share is large there.

The interval that is given ends at probed rates, none of which speaks against it; the posterior's own lies inside.
The search ends when that is narrow enough, or unresolved with the reason: the budget, the load generator, probes
that contradict each other, an objective that no rate keeps, or that every rate keeps.

Errors, and the terms of other objectives, are a veto: a rate that misses one is above the knee. They make no probe
longer; what they leave open is said beside the answer.

With a guide (`guided`) a model of the endpoint says where to probe and when to stop; once it gives up, all of the
above goes on from what was seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tailrate.analysis.judging.share import SURE, judged
from tailrate.analysis.stats.dependence import dependence

if TYPE_CHECKING:
    from tailrate.loadtest.engine.scenario.knee_guide import Guide

Floats = npt.NDArray[np.float64]

RISE = 1.5
WIDTH = 0.098
"""Of the interval, at most: upper end ÷ lower end − 1."""
NARROW = 0.09
"""Of the posterior's inner part, from which on the ends are tried."""
INSIDE = 0.7
"""How much of the posterior that part is: with the ends that far outside of it, intervals hold more than stated."""
LEAST_REACH = 1.04
"""The ends lie at least by this factor from the middle: the line is not quite straight, and less wins nothing."""
BESIDE = 1.0025
"""An end is probed by this factor outside of what it has to hold."""
RATES, SLOPES = 400, np.geomspace(3, 3000, 40)
NEAR = 1.4
"""The straight line is asked to hold within this factor of the knee."""
MANY = 0.2
"""Above this share a probe says no more than that it is large."""
USUAL = 3.0
"""By how much arrivals depend on each other while too few have missed to tell."""
ENOUGH = 10
LEAST_PROBES = 4
FALLS = 8
TRIES = 3
RISE_SHARE = 1 / 3
"""Length of a probe of the rise, as a share of a later one's."""
SETTLES = 4.0
"""A probe takes so many settle times at least."""
CONTRADICTS = 0.9987
"""How sure a probe must be that speaks against what all the others say: three standard deviations."""


Limits = tuple[tuple[str, float], ...]
"""Figures with their limits in ms; a whole answer's latency is nameless."""


@dataclass(frozen=True, slots=True)
class KneeObjective:
    """Limits that at most a share of the arrivals may miss, each of them."""

    limits: Limits
    target: float

    @property
    def least_n(self) -> int:
        """MLPerf's rule: how many arrivals without a miss show that the share is kept, 99 times of 100.

        >>> KneeObjective((("", 50.0),), 0.01).least_n
        459
        """
        return math.ceil(math.log(1 - SURE) / math.log(1 - self.target))


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """What a probe showed of the arrivals in its window."""

    rate: float
    n: int
    missed: int
    """Of the limit that most missed."""
    inflation: float = 1.0
    """Variance of the number of misses over that of independent arrivals."""
    overloaded: bool = False
    """It was cut, as its queue grew; or a rate that misses a term which is not searched for."""
    vetoes: tuple[tuple[str, bool | None], ...] = ()
    """Terms that are not searched for, and whether the probe alone keeps them."""
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
    open: str | None = None
    """Terms of the objectives that no probe near it is known to keep."""


class Search:
    """`probe()` gives the next rate and its seconds, or None when `knee` has the answer; `see` takes what it showed."""

    def __init__(
        self,
        objective: KneeObjective,
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
        self._seen: list[ProbeOutcome] = []
        self._hindered = 0
        self._next: float | None = first_rps
        self._lowest_bad, self._highest_good = math.inf, 0.0
        self._knee: Knee | None = None

    @property
    def knee(self) -> Knee:
        found = self._knee or self._unresolved("it was stopped")
        return replace(found, guide=self._guide.sentence if self._guide else None, open=self._open(found))

    def _open(self, found: Knee) -> str | None:
        """Terms that no probe keeps which is as high as the knee, or nearly."""
        least = (found.low_rps or 0.0) / NEAR
        known = {text: False for seen in self._seen for text, _ in seen.vetoes}
        known |= {text: True for seen in self._seen if seen.rate >= least for text, kept in seen.vetoes if kept}
        return ", ".join(text for text, kept in known.items() if not kept) or None

    def probe(self, spent_s: float = 0.0) -> tuple[float, float] | None:
        if self._next is None:
            return None
        whole = self._bracketed if self._whole is None else self._whole
        least_s = self._settle_s + self.objective.least_n / self._next
        usual_s = max(self._probe_s, SETTLES * self._settle_s) if whole else RISE_SHARE * self._probe_s
        seconds = max(usual_s, least_s)
        if spent_s + seconds > self._budget_s:
            needs = f", a probe at {self._next:.4g}/s takes {seconds:.0f} s" if seconds == least_s else ""
            self._end(f"the budget of {self._budget_s:g} s is spent{needs}")
            return None
        return self._next, seconds

    def see(self, outcome: ProbeOutcome) -> None:
        if outcome.hindered:
            self._hindered += 1
            if self._hindered >= TRIES:
                self._end(f"client-limited at {outcome.rate:.4g}/s: {outcome.hindered}")
            return
        self._hindered = 0
        self._seen.append(outcome)
        good = self._good(outcome)
        if good is True:
            self._highest_good = max(self._highest_good, outcome.rate)
            if outcome.rate < self._most and all(seen.rate <= outcome.rate for seen in self._seen):
                self._lowest_bad = math.inf  # nothing is known above it
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
        self._close(*advice.interval)
        return True

    # ---- the rise

    @property
    def _bracketed(self) -> bool:
        return self._highest_good > 0 and math.isfinite(self._lowest_bad)

    def _good(self, outcome: ProbeOutcome) -> bool | None:
        """Whether the probe alone keeps the objective; None: it is near."""
        if outcome.overloaded:
            return False
        share, target = outcome.missed / outcome.n, self.objective.target
        reach = 2 * math.sqrt(self._dependence(self._seen) * target * (1 - target) / outcome.n)
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
        low, median, high = _quantiles(rates, weights, ((1 - INSIDE) / 2, 0.5, (1 + INSIDE) / 2))
        near = self._near(median)
        if high / low - 1 <= NARROW and len(near) >= LEAST_PROBES:
            self._close(low, high)
            return
        below, above = _quantiles(rates, weights, (0.3, 0.9))
        self._next = below if sum(seen.rate > median for seen in near) > len(near) / 2 else above

    def _near(self, rate: float) -> list[ProbeOutcome]:
        return [seen for seen in self._seen if rate / NEAR <= seen.rate <= rate * NEAR]

    def _posterior(self) -> tuple[Floats, Floats]:
        """Weights of rates at which the share is just the target, whatever the slope.

        The first look finds the knee; the second is finer, and asks of the line only what it holds for.
        """
        lowest, highest = min(seen.rate for seen in self._seen), max(seen.rate for seen in self._seen)
        rates = np.geomspace(lowest, highest, RATES)
        weights = self._weights(rates, self._seen)
        (median,) = _quantiles(rates, weights, (0.5,))
        near = self._near(median)
        if len(near) < LEAST_PROBES - 1:
            return rates, weights
        rates = np.geomspace(max(lowest, median / NEAR), min(highest, median * NEAR), RATES)
        return rates, self._weights(rates, near)

    def _dependence(self, seen: list[ProbeOutcome]) -> float:
        """Of these probes alike: by chance one comes out small together with its misses, and would weigh most."""
        telling = [one for one in seen if one.missed and not self._large(one)]
        independent = [one.missed * (1 - one.missed / one.n) for one in telling]
        if sum(independent) < ENOUGH:
            return USUAL
        found = sum(one.inflation * each for one, each in zip(telling, independent, strict=True)) / sum(independent)
        return dependence(found, sum(one.missed for one in telling), len(telling))

    @staticmethod
    def _large(outcome: ProbeOutcome) -> bool:
        return outcome.overloaded or outcome.missed > MANY * outcome.n

    def _weights(self, rates: Floats, seen: list[ProbeOutcome]) -> Floats:
        target, usual = self.objective.target, self._dependence(seen)
        at, slopes = np.log(rates)[:, None], SLOPES[None, :]
        log_likelihood = np.zeros((RATES, len(SLOPES)))
        for outcome in seen:
            odds = math.log(target / (1 - target)) + slopes * (math.log(outcome.rate) - at)
            if self._large(outcome):
                # a large share, and nothing about how large
                log_likelihood -= np.logaddexp(0, -4 * (odds - math.log(MANY / 2)))
                continue
            worth, share = outcome.n / usual, outcome.missed / outcome.n
            log_likelihood += worth * (share * -np.logaddexp(0, -odds) + (1 - share) * -np.logaddexp(0, odds))
        weights = np.exp(log_likelihood - log_likelihood.max()).sum(axis=1)
        return np.asarray(weights / weights.sum(), dtype=np.float64)

    # ---- the end

    def _end(self, reason: str | None, interval: tuple[float, float] | None = None) -> None:
        self._next = None
        self._knee = Knee(*interval, reason) if interval else self._unresolved(reason or "")

    def _close(self, low: float, high: float) -> None:
        """Ends with the probed rates just outside of an interval, or has one probed that is missing."""
        middle = math.sqrt(low * high)
        low, high = min(low, middle / LEAST_REACH), min(max(high, middle * LEAST_REACH), self._most)
        lows = [seen.rate for seen in self._seen if high / (1 + WIDTH) <= seen.rate <= low]
        highs = [seen.rate for seen in self._seen if high <= seen.rate <= low * (1 + WIDTH)]
        if not lows or not highs or min(highs) / max(lows) - 1 > WIDTH:
            self._whole = True
            below = not lows or (highs and high - max(lows) > min(highs) - low)
            self._next = low / BESIDE if below else min(high * BESIDE, self._most)
            return
        low, high = max(lows), min(highs)
        for seen in self._seen:
            if (kept := self._against(seen, low, high)) is not None:
                why = f"unstable: the objective {'was kept' if kept else 'was missed'} at {seen.rate:.4g}/s"
                interval = (low if kept else low / RISE, high * RISE if kept else high)
                self._end(f"{why}, where other probes said otherwise", interval)
                return
        self._end(None, (low, high))

    def _against(self, outcome: ProbeOutcome, low: float, high: float) -> bool | None:
        """What a probe says against the interval, by more than chance: True for an objective that was kept above it,
        False for one that was missed below it, None where it leaves it standing."""
        kept = False
        if not outcome.overloaded:
            worth = outcome.n / self._dependence(self._seen)
            said = judged(outcome.missed / outcome.n, worth, self.objective.target, CONTRADICTS)
            if said is None:
                return None
            kept = said
        return True if kept and outcome.rate >= high else False if not kept and outcome.rate <= low else None

    def _unresolved(self, reason: str) -> Knee:
        if self._bracketed:
            low, high = _quantiles(*self._posterior(), ((1 - INSIDE) / 2, (1 + INSIDE) / 2))
            return Knee(low, high, reason)
        low_rps = self._highest_good or None
        return Knee(low_rps, self._lowest_bad if math.isfinite(self._lowest_bad) else None, reason)


def _quantiles(values: Floats, weights: Floats, wanted: tuple[float, ...]) -> list[float]:
    return [float(value) for value in np.interp(wanted, np.cumsum(weights), values)]
