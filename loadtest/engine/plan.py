"""The steps of a run: all of them before it starts, or, for a search, the next one when the last has been answered."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from loadtest.engine.arrivals import Offsets, Pattern
from loadtest.engine.scenario import CLOSED, Scenario
from loadtest.engine.search import Knee, Outcome, Search


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

    def offsets(self, pattern: Pattern) -> Offsets:
        return pattern.offsets(self.rate, self.seconds, self.seed)


Blocks = Generator[list[LoadStep], list[Outcome], None]


def blocks(scenario: Scenario, endpoints: Sequence[str]) -> list[list[LoadStep]]:
    """The whole plan of any mode but `knee`. Steps at one rate (in `ab`, of one round) have the same seed, hence the
    same arrivals and payloads."""
    plan = _Plan(scenario)
    turns = enumerate(scenario.concurrency if scenario.mode in CLOSED else scenario.rates)
    for turn, level in turns:
        seed = scenario.seed * 1_000_003 + turn * 1_009
        if scenario.mode == "mixed":
            plan.add(*(plan.step(name, level / len(endpoints), seed) for name in endpoints))
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

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.blocks: list[list[LoadStep]] = []
        self._steps = 0

    def step(
        self, endpoint: str, level: float, seed: int, *, part: int = 0, twin: bool = False, seconds: float = 0.0
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
            settle_s=0.0 if part or s.mode in ("offline", "replay") else min(s.settle_seconds, seconds / 2),
            block=len(self.blocks),
            seed=seed,
            start_s=part * seconds,
            concurrency=int(level) if closed else 0,
            requests=s.requests if s.mode == "offline" else 0,
            twin=twin,
        )
        self._steps += 1
        return step

    def add(self, *steps: LoadStep) -> list[LoadStep]:
        self.blocks.append(list(steps))
        return self.blocks[-1]


def fixed(scenario: Scenario, endpoints: Sequence[str]) -> Blocks:
    for block in blocks(scenario, endpoints):  # noqa: UP028 -- `yield from` would send the outcomes to a list
        yield block


def searched(scenario: Scenario, endpoints: Sequence[str], found: dict[str, Knee]) -> Blocks:
    """One search after the other; `found` gets each endpoint's answer."""
    assert scenario.objective is not None
    plan = _Plan(scenario)
    most = max(scenario.rates) if len(scenario.rates) > 1 else float("inf")
    for endpoint in endpoints:
        search = Search(
            scenario.objective,
            min(scenario.rates),
            most,
            scenario.step_seconds,
            scenario.settle_seconds,
            scenario.budget_s,
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
