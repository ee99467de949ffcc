"""The steps of a run: all of them before it starts, or, for a search, the next one when the last has been answered."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tailrate.loadtest.engine.scenario.arrivals import Offsets, Pattern, mean_arrivals
from tailrate.loadtest.engine.scenario.knee_guide import Guess, Guide
from tailrate.loadtest.engine.scenario.knee_search import WIDTH, Knee, ProbeOutcome, Search
from tailrate.loadtest.engine.scenario.scenario import CLOSED, Scenario


@dataclass(frozen=True, slots=True)
class LoadStep:
    """One endpoint at one rate, or in a closed loop; steps of one `block` belong to one order."""

    index: int
    endpoint: str
    rate: float
    """Requests per second; 0 in a closed loop."""
    seconds: float
    settle_s: float
    block: int
    seed: int
    start_s: float = 0.0
    """When it begins, after its block does."""
    concurrency: int = 0
    """Requests always under way in a closed loop; 0: arrivals follow a schedule."""
    requests: int = 0
    """A closed loop ends after so many, if not 0."""
    twin: bool = False
    """The same endpoint on the same arrivals once more, for the noise between two equal steps."""
    shape: str = ""
    """How its rate changes, where that is not the run's: a chapter's piece of a curve over the whole soak."""
    phase: float = 0.0
    """By which part of a gap even arrivals come later, so that those of steps at once fall between each other."""

    def offsets(self, pattern: Pattern) -> Offsets:
        pattern = replace(pattern, shape=self.shape) if self.shape else pattern
        return pattern.offsets(self.rate, self.seconds, self.seed, self.phase)


Blocks = Generator[list[LoadStep], list[ProbeOutcome], None]

LEAST_CHAPTER_S = 1.0
"""What is left of a soak's time and is shorter than this is left out."""


def blocks(scenario: Scenario, endpoints: Sequence[str]) -> list[list[LoadStep]]:
    """The whole plan of any mode but `knee` and `soak`.

    Endpoints that take turns get the same seed at one rate (in `ab`, in one round), hence the same arrivals.
    """
    plan = _Plan(scenario)
    turns = enumerate(scenario.concurrency if scenario.mode in CLOSED else scenario.rates)
    for turn, level in turns:
        seed = scenario.seed * 1_000_003 + turn * 1_009
        if scenario.mode == "mixed":
            plan.at_once(endpoints, level, seed)
        elif scenario.mode == "ab":
            _rounds(plan, endpoints, level, seed)
        elif scenario.mode == "spike":
            rates = (level, level * scenario.spike, level)
            for name in endpoints:
                plan.add(*(plan.step(name, rate, seed + part, part=part) for part, rate in enumerate(rates)))
        else:
            for name in endpoints:
                plan.add(plan.step(name, level, seed))
        if scenario.mode == "replay":  # the trace has its own rate
            break
    return plan.blocks


def _rounds(plan: _Plan, endpoints: Sequence[str], rate: float, seed: int) -> None:
    """Each endpoint once a round; orders are random, and every second one is the last one reversed (A B, B A).

    In every second round one endpoint, another each time, is driven twice in a row.
    """
    draw = random.Random(seed)
    order: list[str] = []
    for number in range(plan.scenario.rounds):
        order = order[::-1] if number % 2 else draw.sample(list(endpoints), len(endpoints))
        twice = endpoints[number // 2 % len(endpoints)] if number % 2 == 0 else None
        for name in order:
            plan.add(plan.step(name, rate, seed + number))
            if name == twice:
                plan.add(plan.step(name, rate, seed + number, twin=True))


class _Plan:
    """Numbers steps and blocks as they come."""

    def __init__(self, scenario: Scenario, blocks: int = 0, steps: int = 0) -> None:
        """`blocks` and `steps` that were planned before a run was resumed; numbering goes on from there."""
        self.scenario = scenario
        self.blocks: list[list[LoadStep]] = [[]] * blocks
        self._steps = steps

    def step(
        self,
        endpoint: str,
        level: float,
        seed: int,
        *,
        part: int = 0,
        twin: bool = False,
        seconds: float = 0.0,
        settle_s: float | None = None,
        shape: str = "",
        phase: float = 0.0,
    ) -> LoadStep:
        s = self.scenario
        seconds = seconds or (s.budget_s if s.mode == "offline" else s.step_seconds)
        if s.pattern.trace_ns:
            seconds = s.pattern.trace_ns[-1] / 1e9 + 0.001
            level = len(s.pattern.trace_ns) / seconds
        closed = s.mode in CLOSED
        step = LoadStep(
            index=self._steps,
            endpoint=endpoint,
            rate=0.0 if closed else level,
            seconds=seconds,
            settle_s=0.0
            if part or s.mode in ("offline", "replay")
            else min(s.settle_seconds if settle_s is None else settle_s, seconds / 2),
            block=len(self.blocks),
            seed=seed,
            start_s=part * seconds,
            concurrency=int(level) if closed else 0,
            requests=s.requests if s.mode == "offline" else 0,
            twin=twin,
            shape=shape,
            phase=phase,
        )
        self._steps += 1
        return step

    def at_once(self, endpoints: Sequence[str], level: float, seed: int, **more: Any) -> None:
        """A block of all endpoints, each at an equal share of the rate, on arrivals independent of the others'.

        The same instants for all would make every endpoint's requests wait for those of the one that is named first.
        """
        count = len(endpoints)
        steps = [
            self.step(name, level / count, seed + number, phase=number / count, **more)
            for number, name in enumerate(endpoints)
        ]
        self.add(*steps)

    def add(self, *steps: LoadStep) -> list[LoadStep]:
        self.blocks.append(list(steps))
        return self.blocks[-1]


def fixed(scenario: Scenario, endpoints: Sequence[str]) -> Blocks:
    for block in blocks(scenario, endpoints):  # noqa: UP028 -- `yield from` would send the outcomes to a list
        yield block


def chapters(
    scenario: Scenario, endpoints: Sequence[str], elapsed_s: Callable[[], float], blocks: int = 0, steps: int = 0
) -> Blocks:
    """A soak's, until its time is over: all endpoints at once, each at an equal share of the rate.

    `elapsed_s` counts from the soak's start; so many blocks and steps were there before a resumption.
    """
    plan = _Plan(scenario, blocks, steps)
    first = blocks
    while (left_s := scenario.total_seconds - (at_s := elapsed_s())) >= LEAST_CHAPTER_S:
        number = len(plan.blocks)
        shape = f"{scenario.daily}:{at_s:.3f}" if scenario.daily else ""
        settle_s = scenario.settle_seconds if number == first else 0.0
        seconds = min(scenario.chapter_seconds, left_s)
        seed = scenario.seed * 1_000_003 + number * 1_009
        plan.at_once(endpoints, scenario.rates[0], seed, seconds=seconds, settle_s=settle_s, shape=shape)
        yield plan.blocks[-1]


def to_be_expected(scenario: Scenario, endpoints: Sequence[str], from_s: float, to_s: float) -> dict[str, int]:
    """Arrivals that a soak's plan had between two times since its start, in the mean over all seeds."""
    factor = to_s - from_s
    if scenario.daily and factor > 0:
        factor = mean_arrivals(f"{scenario.daily}:{from_s:.3f}", factor)
    return {name: round(max(0.0, factor) * scenario.rates[0] / len(endpoints)) for name in endpoints}


def searched(
    scenario: Scenario, endpoints: Sequence[str], found: dict[str, Knee], ask: Callable[[str], Guess] | None = None
) -> Blocks:
    """One search after the other; `found` gets each endpoint's answer. With `ask` a model is to guide them."""
    assert scenario.objective is not None
    plan = _Plan(scenario)
    most = max(scenario.rates) if len(scenario.rates) > 1 else float("inf")
    for endpoint in endpoints:
        guide = None if ask is None else Guide(partial(ask, endpoint), WIDTH)
        search = Search(
            scenario.objective,
            min(scenario.rates),
            most,
            scenario.step_seconds,
            scenario.settle_seconds,
            scenario.budget_s,
            guide,
        )
        spent_s = 0.0
        try:
            while (probe := search.probe(spent_s)) is not None:
                rate, seconds = probe
                seed = scenario.seed * 1_000_003 + len(plan.blocks)
                outcomes = yield plan.add(plan.step(endpoint, rate, seed, seconds=seconds))
                spent_s += outcomes[0].seconds
                search.see(outcomes[0])
        finally:
            found[endpoint] = search.knee
