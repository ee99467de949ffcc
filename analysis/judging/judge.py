"""The one judge: whether arrivals keep an objective. True: kept, False: missed, None: that cannot be said.

Each term is tested as a share of the arrivals (`share`); rounds of one rate count together. What is sustained of
several rates is `rates`.

Pure: knows counts and words, neither runs nor steps. Everything that compares a figure with an objective asks here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tailrate.analysis.judging.share import Count, Term, between, judged, percent, terms, times_more
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.stats.distributions import chi_square_p_value
from tailrate.analysis.text.words import count as whole
from tailrate.analysis.text.words import duration

ALIKE = 0.01
"""Rounds whose shares differ more than they do by chance in one of so many cases disagree."""
LONGEST_ADVICE_S = 3600.0


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
    every = [w for w in windows if w.counts[number].n or (w.overloaded and (term.of_latency or term.for_rate))]
    trusted = [w for w in every if not w.doubts]
    doubt = _first(doubt for window in every or windows for doubt in window.doubts)
    if not every:
        return _open(term, doubt or "no arrivals were recorded", against=True)
    against = any(window.overloaded for window in every) or _share(every, number) > term.allowed
    if not trusted:
        return _open(term, doubt, against)
    counts = [window.counts[number] for window in trusted]
    overloaded = _first(window.overloaded for window in trusted)
    if overloaded and (term.of_latency or term.for_rate):
        if grew := _first(window.overloaded for window in trusted if not window.late):
            return Judgement(False, f"{'this rate' if term.for_rate else term.text} is missed: {grew}")
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
    unknown = [doubt, overloaded, *(window.unsteady for window in trusted if window.flatters)]
    unknown += [window.late for window in trusted if term.for_rate]
    if rounds and len(every) < len(windows):
        unknown.append(f"no arrivals were recorded in {len(windows) - len(every)} of {len(windows)} rounds")
    why = _first(unknown)
    return _open(term, why, against) if why else Judgement(True, f"{term.text} is kept: {said}")


def _excuse(term: Term, window: Window) -> str:
    """Why what is beyond the limit in this window may not be the endpoint's; what fails does not fail of lateness."""
    return (window.late if term.of_latency else "") or (window.unsteady if window.flatters is False else "")


def answers(slo: Slo, windows: Sequence[Window], *, rounds: bool = True) -> tuple[Judgement, ...]:
    """To each term."""
    return tuple(at_rate(term, windows, number, rounds=rounds) for number, term in enumerate(terms(slo)))


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
    if more_s > LONGEST_ADVICE_S:
        return None, f"{said}: too near the limit"
    return None, f"{said}; {duration(math.ceil(more_s))} more would settle it"


def _apart(shares: Sequence[float], worths: Sequence[float]) -> float:
    """The variance of rounds over that of chance; 1 where chance explains it."""
    whole_share = sum(share * worth for share, worth in zip(shares, worths, strict=True)) / sum(worths)
    freedom = len(shares) - 1
    if not freedom or not 0 < whole_share < 1:
        return 1.0
    spread = sum(worth * (share - whole_share) ** 2 for share, worth in zip(shares, worths, strict=True))
    score = spread / (whole_share * (1 - whole_share))
    return max(1.0, score / freedom) if chi_square_p_value(freedom, score) < ALIKE else 1.0


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


def in_time(may_take_s: float, took_s: float | None, worse_s: float | None) -> bool | None:
    """Whether users were served as before so many seconds after a fault was over; `worse_s`: still worse then."""
    if took_s is not None:
        return took_s <= may_take_s
    return False if worse_s is not None and worse_s > may_take_s else None
