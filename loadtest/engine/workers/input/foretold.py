"""What a file's rows are worth for the run that is planned, said before its load, or why they are no use for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import groupby
from typing import Any

from tailrate.analysis.text.words import count, significant, size
from tailrate.loadtest.engine.modes.knee import KneeSearch
from tailrate.loadtest.engine.modes.soak import Soak
from tailrate.loadtest.engine.scenario.scenario import Scenario, ScenarioError
from tailrate.loadtest.engine.scenario.steps import LoadStep, StepPlan
from tailrate.loadtest.engine.workers.input.requests import AHEAD_BYTES, DataRequests

MOST_AT_ONCE = 64
"""Steps of a soak's last chapter, which has one for each endpoint."""
SAMPLE = 32
"""Requests from which the size of all is taken."""


def check(scenario: Scenario, requests: DataRequests) -> None:
    """`ScenarioError` where a row becomes no request, or an objective is of a slice that no row is in."""
    data, deal = requests.data, requests.deal
    if data.own or max(deal.sizes) > 1:
        for number in range(deal.rows if deal.most is None else min(deal.rows, deal.most)):
            data.inputs(deal.of(number))
    labels = sorted({label for label in data.labels if label})
    for slo in scenario.slos:
        if slo.slice and slo.slice not in labels:
            near = get_close_matches(slo.slice, labels, 1)
            hint = f"did you mean [{near[0]}]?" if near else f"there are {', '.join(labels)}"
            raise ScenarioError(f"--slo: no row of {data.name} is labelled '{slo.slice}'; {hint}")


def sentences(scenario: Scenario, endpoints: Sequence[str], requests: DataRequests) -> list[str]:
    """For people; `ScenarioError` where each row may go out once only and there are too few."""
    if isinstance(scenario.mode, Soak):  # its steps are made as it goes
        expected = scenario.mode.to_be_expected(scenario.rates[0], endpoints, 0.0, scenario.mode.total_seconds)
        return [*_enough(requests, sum(expected.values()))]
    if isinstance(scenario.mode, KneeSearch):
        return [*_enough(requests, None)]
    blocks = scenario.mode.blocks(StepPlan(scenario), endpoints)
    steps = [(step, step.arrivals(scenario.pattern)) for block in blocks for step in block]
    known = all(arrivals for step, arrivals in steps if step.concurrency)
    arrivals = sum(number for _, number in steps) if known else None
    return [*_enough(requests, arrivals), *_held(requests, steps)]


def _enough(requests: DataRequests, arrivals: int | None) -> Iterator[str]:
    """Whether the rows suffice for so many arrivals."""
    deal = requests.deal
    if not deal.unique and (arrivals is None or deal.before(arrivals) <= deal.rows):
        return
    has = f"{requests.data.name} has {count(deal.rows)} {'row' if deal.rows == 1 else 'rows'}"
    if arrivals is None:
        yield f"{has}; how many arrivals there will be is not known, and the run ends when the rows are used up"
    elif deal.unique and arrivals > (deal.most or 0):
        needs = f"the run needs {count(deal.before(arrivals))} for its {count(arrivals)} arrivals"
        raise ScenarioError(f"--data-reuse unique: {has}, and {needs}")
    elif deal.before(arrivals) > deal.rows:
        times = significant(deal.before(arrivals) / deal.rows, 2)
        yield f"{has}, and the run has {count(arrivals)} arrivals: each row is sent about {times} times"


def _held(requests: DataRequests, steps: Sequence[tuple[LoadStep, int]]) -> Iterator[str]:
    """That the requests of a block are more than are made ready before it."""
    mean_bytes = requests.mean_bytes()
    for _, block in groupby(steps, key=lambda one: one[0].block):
        among = [*block]
        nbytes = min(sum(arrivals for _, arrivals in among), requests.deal.rows) * mean_bytes
        if nbytes > AHEAD_BYTES:
            step = among[0][0]
            yield (
                f"the requests of {step.seconds:g} s at {step.rate:g}/s are {size(nbytes)}, of which each load process "
                f"makes {size(AHEAD_BYTES)} ready before: it makes the rest as it sends them, which may be late"
            )
            return


def carried(scenario: Scenario, steps: Sequence[Mapping[str, Any]]) -> int:
    """Up to which request a soak that goes on can have come; a chapter that was cut counts as a whole one."""
    assert isinstance(scenario.mode, Soak)
    seconds = scenario.mode.chapter_seconds
    found = [LoadStep.of_manifest(step) for step in steps[-MOST_AT_ONCE:]]
    whole = [replace(step, seconds=max(step.seconds, seconds)) for step in found]
    return max((step.data_from + step.arrivals(scenario.pattern) for step in whole), default=0)
