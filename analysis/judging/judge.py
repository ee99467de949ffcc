"""The one judge: whether arrivals keep an objective. True: kept, False: missed, None: that cannot be said.

A term of an objective is a share: at most so many of the arrivals may be beyond a limit, be it a latency or success
itself. So there is one test for all of them: a binomial one, at the number of independent arrivals that those measured
are worth, which has to be sure to 99 % on either side. Rounds of one rate count together. A rate is sustained where it
is kept and nothing below it speaks against that.

Pure: knows counts and words, neither runs nor steps. Everything that compares a figure with an objective asks here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tailrate.analysis.records import LATE_MS, LATE_SHARE, MOST_CPU_PCT, MOST_UNSENT, Slo
from tailrate.analysis.text.words import count as whole
from tailrate.analysis.text.words import duration, significant

SURE = 0.99
ALIKE = 0.01
"""Rounds whose shares differ more than they do by chance in one of so many cases disagree."""
LONGEST_ADVICE_S = 3600.0
MOST_GIVEN_UP = 0.05
SPARE = 1.5
"""Of requests under way, over rate times P99: what to ask for where there were too few."""
BUILT_UP = 2.0
"""A queue is seen by answers that take so many times as long as the first ones."""


def all_of(answers: Iterable[bool | None]) -> bool | None:
    """False if any is, else unknown if any is, else True."""
    found = list(answers)
    return False if False in found else None if None in found else True


# ---- one share


@dataclass(frozen=True, slots=True)
class Term:
    """At most a share of the arrivals may be beyond a limit."""

    text: str
    allowed: float
    limit_ms: float
    """A failure is beyond any; beyond an infinite one are failures alone."""

    @property
    def beyond(self) -> str:
        """What those did that are."""
        return "failed" if math.isinf(self.limit_ms) else f"took longer than {significant(self.limit_ms)} ms or failed"

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
    """All of an objective but the rate that it asks for, which is no share: `reaches`."""
    found = []
    limit_ms = math.inf if slo.latency_ms is None else slo.latency_ms
    if slo.percentile is not None:
        found.append(Term(f"p{slo.percentile:g}<{limit_ms:g}ms", _rest(slo.percentile / 100), limit_ms))
    if slo.min_goodput is not None:
        found.append(Term(f"goodput>{100 * slo.min_goodput:g}%", _rest(slo.min_goodput), limit_ms))
    if slo.max_error_rate is not None:
        found.append(Term(f"errors<{100 * slo.max_error_rate:g}%", slo.max_error_rate, math.inf))
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
    from scipy import special

    beyond = share * worth
    if worth <= 0 or allowed >= 1:
        return True if worth > 0 else None
    if beyond > 0 and (allowed <= 0 or special.betainc(beyond, worth - beyond + 1, allowed) <= 1 - sure):
        return False
    if allowed > 0 and worth > beyond and special.betainc(beyond + 1, worth - beyond, allowed) >= sure:
        return True
    return None


def between(share: float, worth: float) -> tuple[float, float]:
    """The shares of all arrivals that such a sample leaves open: each end is sure to 99 %."""
    from scipy import special

    beyond = share * worth
    low = float(special.betaincinv(beyond, worth - beyond + 1, 1 - SURE)) if beyond > 0 else 0.0
    high = float(special.betaincinv(beyond + 1, worth - beyond, SURE)) if worth > beyond else 1.0
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


# ---- one rate


@dataclass(frozen=True, slots=True)
class Window:
    """What one step showed at a rate. Sentences are empty where there is nothing to say."""

    counts: tuple[Count, ...]
    """One for each term."""
    overloaded: str = ""
    """The queue grew: at this rate no latency lasts."""
    late: str = ""
    """The load generator sent late. That is in the latencies, so it can have brought about a miss, and nothing else."""
    doubts: tuple[str, ...] = ()
    """Why it says more about the load generator than about the endpoint."""
    flatters: bool | None = None
    """Of an unsteady window: whether what lasts is worse than what it shows, or else better."""
    unsteady: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of one term at one rate."""

    kept: bool | None
    sentence: str
    against: bool = False
    """It cannot be said, but what was seen speaks against it."""
    few: bool = False
    """It cannot be said for nothing but too few arrivals."""


def at_rate(term: Term, windows: Sequence[Window], number: int, *, rounds: bool = True) -> Judgement:
    """What all windows of one rate say to the term that has this number among theirs.

    They are `rounds` of the same, or else one after the other what is asked about, as the chapters of a soak are.
    """
    every, trusted = ([w for w in windows if w.counts[number].n and not (w.doubts and only)] for only in (False, True))
    if not every:
        return _open(term, "no arrivals were recorded", against=True)
    against = _share(every, number) > term.allowed or any(window.overloaded for window in every)
    doubt = _first(doubt for window in windows for doubt in window.doubts)
    if not trusted:
        return _open(term, doubt, against)
    counts = [window.counts[number] for window in trusted]
    overloaded = _first(window.overloaded for window in trusted)
    if overloaded and math.isfinite(term.limit_ms):
        if grew := _first(window.overloaded for window in trusted if not window.late):
            return Judgement(False, f"{term.text} is missed: {grew}")
        return _open(term, _first(window.late for window in trusted), True)
    pooled, said = _pooled(term, counts, rounds)
    if pooled is False:
        excuses = [_excuse(term, window) for window in trusted]
        sure = [replace(one, beyond=0) if why else one for one, why in zip(counts, excuses, strict=True)]
        if any(excuses) and _pooled(term, sure, rounds)[0] is not False:
            return _open(term, _first(excuses), True)
        return Judgement(False, f"{term.text} is missed: {said}")
    if pooled is None:
        unsteady = _first(window.unsteady for window in trusted)
        return _open(term, f"{said}; {unsteady}" if unsteady else said, against, few=not (unsteady or doubt))
    # of what cannot be trusted nobody knows what it would have shown
    why = doubt or overloaded or _first(window.unsteady for window in trusted if window.flatters)
    return _open(term, why, against) if why else Judgement(True, f"{term.text} is kept: {said}")


def _excuse(term: Term, window: Window) -> str:
    """Why what is beyond the limit in this window may not be the endpoint's; what fails does not fail of lateness."""
    return (window.late if math.isfinite(term.limit_ms) else "") or (
        window.unsteady if window.flatters is False else ""
    )


def answers(slo: Slo, windows: Sequence[Window], *, rounds: bool = True) -> tuple[Judgement, ...]:
    """To each term; an objective that asks for nothing but a rate is kept where the endpoint keeps up with it."""
    if found := tuple(at_rate(term, windows, number, rounds=rounds) for number, term in enumerate(terms(slo))):
        return found
    if doubt := _first(doubt for window in windows for doubt in window.doubts):
        return (Judgement(None, f"this rate cannot be said to be kept: {doubt}", any(w.overloaded for w in windows)),)
    overloaded = _first(window.overloaded for window in windows)
    return (Judgement(not overloaded, overloaded or "the endpoint kept up"),)


def _first(sentences: Iterable[str]) -> str:
    return next(filter(None, sentences), "")


def _open(term: Term, why: str, against: bool, *, few: bool = False) -> Judgement:
    return Judgement(None, f"{term.text} cannot be said: {why}", against, few and not against)


def _share(windows: Sequence[Window], number: int) -> float:
    counts = [window.counts[number] for window in windows]
    return sum(one.beyond for one in counts) / sum(one.n for one in counts)


def _pooled(term: Term, counts: Sequence[Count], rounds: bool) -> tuple[bool | None, str]:
    """What they say together, and how."""
    n, beyond, seconds = (sum(getattr(one, name) for one in counts) for name in ("n", "beyond", "seconds"))
    share, worth = beyond / n, sum(one.worth for one in counts)
    said = f"{percent(share)} of {whole(n)} arrivals {term.beyond}, where {percent(term.allowed)} may"
    apart = _apart([one.share for one in counts], [one.n * worth / n for one in counts]) if rounds else 1.0
    if apart > 1:
        low, high = min(one.share for one in counts), max(one.share for one in counts)
        said += f", and rounds differ by more than chance ({percent(low)} to {percent(high)})"
        missed = [judged(one.share, one.worth, term.allowed) for one in counts].count(False)
        if judged(share, worth / apart, term.allowed) is False:
            return False, said
        if missed:
            return None, f"{said}: {missed} of {len(counts)} miss it"
        share = _evened(counts, worth)
        said += f": {percent(share)} if the better ones were no better than chance makes them"
    found = judged(share, worth, term.allowed)
    few = worth < 0.95 * n
    if few:
        by = _first(one.by for one in counts)
        said += f"; worth {whole(math.floor(worth))} independent ones{f' ({by})' if by else ''}"
    if found or (found is False and apart == 1):
        return found, said
    low, high = between(share, worth)
    said += f"{', they leave' if few else ', which leaves'} {percent(low)} to {percent(high)} of all"
    if not seconds or found is False:
        return None, said
    more_s = (times_more(share, worth, term.allowed) - 1) * seconds
    near = more_s > LONGEST_ADVICE_S
    return None, f"{said}: too near the limit" if near else f"{said}; {duration(more_s)} more would settle it"


def _apart(shares: Sequence[float], worths: Sequence[float]) -> float:
    """The variance of rounds over that of chance; 1 where chance explains it."""
    from scipy import special

    whole_share = sum(share * worth for share, worth in zip(shares, worths, strict=True)) / sum(worths)
    freedom = len(shares) - 1
    if not freedom or not 0 < whole_share < 1:
        return 1.0
    spread = sum(worth * (share - whole_share) ** 2 for share, worth in zip(shares, worths, strict=True))
    score = spread / (whole_share * (1 - whole_share))
    return max(1.0, score / freedom) if special.chdtrc(freedom, score) < ALIKE else 1.0


def _evened(counts: Sequence[Count], worth: float) -> float:
    """The share of all, if the best rounds are taken as no better than so that chance explains the difference.

    With the variance between rounds instead, a round that were worse could turn into a pass what was none.
    """
    n = sum(one.n for one in counts)
    worths = [one.n * worth / n for one in counts]

    def raised(to: float) -> list[float]:
        return [max(one.share, to) for one in counts]

    low, high = min(one.share for one in counts), max(one.share for one in counts)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _apart(raised(middle), worths) == 1 else (middle, high)
    return sum(share * one.n for share, one in zip(raised(high), counts, strict=True)) / n


def percent(share: float) -> str:
    """A share as `0.31 %`, without what rounding left of nothing."""
    return f"{significant(100 * share, 2) if share > 1e-9 else 0} %"


# ---- rates


@dataclass(frozen=True, slots=True)
class AtRate:
    """What an endpoint showed at a rate that was asked for (0: a closed loop asks for none), to one objective."""

    rate: float
    answers: tuple[Judgement, ...]
    name: str
    """The rate in words; of a closed loop, which asks for none, how many requests are under way."""

    @property
    def kept(self) -> bool | None:
        return all_of(answer.kept for answer in self.answers)

    @property
    def against(self) -> bool:
        return self.kept is None and any(answer.against for answer in self.answers)

    @property
    def sentence(self) -> str:
        """Of the term that decides."""
        kept = self.kept
        return next((one.sentence for one in self.answers if one.kept is kept), "")


@dataclass(frozen=True, slots=True)
class Sustained:
    """What an endpoint sustains of the rates that it was asked for."""

    low: AtRate | None
    """The highest that it sustains."""
    high: AtRate | None
    """The lowest that misses."""
    doubtful: AtRate | None
    """The lowest that cannot say and speaks against the objective, below all that miss."""
    void: tuple[AtRate, ...]
    """Kept, but above one of these two, so they count for nothing."""


def sustained(rates: Iterable[AtRate]) -> Sustained:
    low = high = doubtful = None
    void = []
    for at in sorted(rates, key=lambda at: at.rate):
        if at.kept and (high or doubtful):
            void.append(at)
        elif at.kept:
            low = at
        elif at.kept is False and high is None:
            high = at
        elif at.against and not (high or doubtful):
            doubtful = at
    return Sustained(low, high, doubtful, tuple(void))


def lent(slo: Slo, rates: Sequence[AtRate]) -> list[AtRate]:
    """The same, where errors that had too few arrivals to say are answered by a higher rate that is sustained."""
    numbers = [number for number, term in enumerate(terms(slo)) if math.isinf(term.limit_ms)]
    top = sustained(rates).low
    if top is None or not numbers:
        return list(rates)

    def with_errors(at: AtRate) -> tuple[Judgement, ...]:
        found = list(at.answers)
        for number in numbers:
            own = found[number]
            if at.rate < top.rate and own.few:
                found[number] = Judgement(True, f"{own.sentence}; at {top.name} it is kept")
        return tuple(found)

    return [replace(at, answers=with_errors(at)) for at in rates]


def reaches(wanted_rps: float, rates: Sequence[AtRate]) -> Judgement:
    """`rate>=200`: kept if a rate so high is sustained, missed if one no higher misses; of rates as asked for."""
    found = sustained(rates)
    if found.low and found.low.rate >= wanted_rps:
        return Judgement(True, f"rate>={wanted_rps:g} is kept: {found.low.name} is sustained")
    if found.high and found.high.rate <= wanted_rps:
        return Judgement(False, f"rate>={wanted_rps:g} is missed: at {found.high.name} {found.high.sentence}")
    return Judgement(
        None, f"rate>={wanted_rps:g} cannot be said: {_why_not(wanted_rps, found, rates)}", bool(found.high)
    )


def _why_not(wanted_rps: float, found: Sustained, rates: Sequence[AtRate]) -> str:
    if found.doubtful:
        return f"at {found.doubtful.name} {found.doubtful.sentence}"
    tried = [at for at in rates if at.rate >= wanted_rps]
    if not tried:
        highest = max(rates, key=lambda at: at.rate, default=None)
        return f"at most {highest.name} were asked for" if highest and highest.rate else "no rate was asked for"
    nearest = min(tried, key=lambda at: at.rate)
    return f"at {nearest.name} {nearest.sentence}"


def of_rates(slo: Slo, rates: Sequence[AtRate], rising: bool) -> Judgement:
    """The objective as a whole, for one endpoint. `rising`: high rates may miss it, one that is sustained will do."""
    rates = lent(slo, rates)
    if slo.min_rate_rps is not None and (rising or not terms(slo)):
        return reaches(slo.min_rate_rps, rates)
    found = sustained(rates)
    if not rising:
        answers = [Judgement(at.kept, f"at {at.name} {at.sentence}", at.against) for at in rates]
        if slo.min_rate_rps is not None:
            answers.append(reaches(slo.min_rate_rps, rates))
        kept = all_of(answer.kept for answer in answers)
        return next((answer for answer in answers if answer.kept is kept), Judgement(None, "nothing was tried"))
    if found.low:
        few = [at.name for at in rates if at.kept is None and at.rate < found.low.rate]
        said = f"; {' and '.join(few)} had too few arrivals to say" if few else ""
        return Judgement(True, f"{slo} is sustained at up to {found.low.name}{said}{_void(found)}")
    lowest = min(rates, key=lambda at: at.rate, default=None)
    if lowest is None:
        return Judgement(None, "nothing was tried")
    first = found.doubtful or found.high or lowest
    kept = False if lowest.kept is False and not found.void else None
    return Judgement(kept, f"at {first.name} {first.sentence}{_void(found)}", lowest.kept is False)


def _void(found: Sustained) -> str:
    names = " and ".join(at.name for at in found.void)
    return f"; that {names} kept it counts for nothing above that" if names else ""


# ---- what a window is worth


def late_limit_ms(limits_ms: Sequence[float], usual_ms: float) -> float:
    """How late arrivals may be sent: so that the nearest objective would not show it, or else the usual service."""
    return max(LATE_MS, LATE_SHARE * min(limits_ms, default=usual_ms))


def lateness(p99_ms: float, late: int, limit_ms: float) -> str:
    """Why latencies may be the load generator's, or nothing."""
    # under a hundred arrivals the P99 is the latest of all: one hiccup is not a late generator
    if p99_ms <= limit_ms or late <= 1:
        return ""
    p99, limit = significant(p99_ms), significant(limit_ms)
    return f"the load generator was late: P99 {p99} ms, where {limit} ms would do no harm"


def doubts(dropped: int, n: int, would_do: float | None, cpu_pct: float | None) -> list[str]:
    """Why a step's figures say more about the load generator than about the endpoint; empty: they can be trusted."""
    found = []
    if dropped > MOST_UNSENT * n:
        to = f" to {significant(float(f'{would_do:.2g}'))}" if would_do else ""
        share = percent(dropped / n)
        found.append(f"{share} of the arrivals were dropped although the queue did not grow: raise max_in_flight{to}")
    if cpu_pct is not None and cpu_pct > MOST_CPU_PCT:
        found.append(f"a load process was busy for {cpu_pct:.0f} % of the time")
    return found


def in_time(may_take_s: float, took_s: float | None, worse_s: float | None) -> bool | None:
    """Whether users were served as before so many seconds after a fault was over; `worse_s`: still worse then."""
    if took_s is not None:
        return took_s <= may_take_s
    return False if worse_s is not None and worse_s > may_take_s else None


def queue_filled(given_up: float, early_ms: float, later_ms: float) -> bool:
    """Whether arrivals were dropped, or ran into the time limit, because a queue had grown so far.

    Where answers took as long from the beginning, only the client's own limit was reached.
    """
    return given_up >= MOST_GIVEN_UP and not later_ms < BUILT_UP * early_ms
