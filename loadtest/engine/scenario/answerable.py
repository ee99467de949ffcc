"""What a plan can answer, said before its load: for each term, from which rate on, and how long others take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tailrate.analysis.judging.share import terms
from tailrate.analysis.text.words import duration, significant
from tailrate.loadtest.engine.scenario.scenario import Scenario


def sentences(scenario: Scenario, endpoints: int, shares: Mapping[str, float] | None = None) -> Iterator[str]:
    """One for each term, if all arrivals were independent and none beyond the limit: the least that it takes.

    `shares`: of the arrivals, by slice; an objective of a slice takes so many more.

    A search makes its probes as long as they must be; a closed loop has no rate before it has run.
    """
    mode, settle_s = scenario.mode, scenario.settle_seconds
    if mode.closed or not mode.rates_known:
        return
    usable_s = mode.measured_s(scenario) - settle_s
    share = (endpoints if mode.at_once else 1) / mode.repeats
    takes = {
        term: term.least * share / (shares or {}).get(slo.slice or "", 1.0)
        for slo in scenario.slos
        for term in terms(slo)
    }
    for term, least in takes.items():
        least_s = {rate: least / rate for rate in scenario.rates}
        short = {rate: seconds + settle_s for rate, seconds in least_s.items() if seconds > usable_s}
        said = f"{term.text} can be answered from {significant(least / usable_s, 2)}/s upward"
        said += "".join(
            f"; {rate:g}/s needs {mode.steps_word} of {duration(seconds + 0.5)}" for rate, seconds in short.items()
        )
        yield said
