"""What an endpoint sustains of the rates that it was asked for: the highest that keeps an objective.

A rate is sustained where it is kept and nothing below it speaks against that. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tailrate.analysis.judging.judge import Judgement
from tailrate.analysis.judging.share import all_of, terms
from tailrate.analysis.records.objective import Slo


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
    numbers = [number for number, term in enumerate(terms(slo)) if not term.of_latency]
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
    answers = [] if slo.min_rate_rps is None else [reaches(slo.min_rate_rps, rates)]
    each = [Judgement(at.kept, f"at {at.name} {at.sentence}", at.against) for at in rates]
    answers += [_of_any(slo, rates)] if rising else each
    kept = all_of(answer.kept for answer in answers)
    return next((answer for answer in answers if answer.kept is kept), Judgement(None, "nothing was tried"))


def _of_any(slo: Slo, rates: Sequence[AtRate]) -> Judgement:
    """Whether a rate is sustained; missed where the lowest misses and none above it is kept."""
    found = sustained(rates)
    if found.low:
        unknown = [at.name for at in rates if at.kept is None and at.rate < found.low.rate]
        said = f"; at {' and '.join(unknown)} that cannot be said" if unknown else ""
        return Judgement(True, f"{slo} is sustained at up to {found.low.name}{said}{_void(found)}")
    lowest = min(rates, key=lambda at: at.rate, default=None)
    if lowest is None:
        return Judgement(None, "nothing was tried")
    first = found.doubtful or lowest
    kept = False if lowest.kept is False and not found.void else None
    return Judgement(kept, f"at {first.name} {first.sentence}{_void(found)}", lowest.kept is False)


def _void(found: Sustained) -> str:
    names = " and ".join(at.name for at in found.void)
    return f"; that {names} kept it counts for nothing above that" if names else ""
