"""What a plan can answer, said before its load: for each term, from which rate on, and how long others take."""

from __future__ import annotations

from collections.abc import Iterator

from tailrate.analysis.judging.judge import terms
from tailrate.analysis.text.words import duration, significant
from tailrate.loadtest.engine.scenario.scenario import CLOSED, Scenario


def sentences(scenario: Scenario, endpoints: int) -> Iterator[str]:
    """One for each term, if all arrivals were independent and none beyond the limit: the least that it takes.

    A search makes its probes as long as they must be; a closed loop has no rate before it has run.
    """
    if scenario.mode in ("knee", "replay", *CLOSED):
        return
    soaking = scenario.mode == "soak"
    settle_s = scenario.settle_seconds
    usable_s = (scenario.total_seconds if soaking else scenario.step_seconds) - settle_s
    rounds = scenario.rounds if scenario.mode == "ab" else 1
    shared = endpoints if soaking or scenario.mode == "mixed" else 1
    for term in dict.fromkeys(term for slo in scenario.slos for term in terms(slo)):
        least_s = {rate: term.least * shared / rate / rounds for rate in scenario.rates}
        short = {rate: seconds + settle_s for rate, seconds in least_s.items() if seconds > usable_s}
        said = f"{term.text} can be answered from {significant(term.least * shared / usable_s / rounds, 2)}/s upward"
        what = "a soak" if soaking else "steps"
        said += "".join(f"; {rate:g}/s needs {what} of {duration(seconds + 0.5)}" for rate, seconds in short.items())
        yield said
