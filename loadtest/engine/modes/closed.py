from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from tailrate.loadtest.engine.scenario.mode import Mode
from tailrate.loadtest.engine.scenario.options import Option
from tailrate.loadtest.engine.scenario.scenario import Scenario, ScenarioError
from tailrate.loadtest.engine.scenario.steps import LoadStep, StepPlan


@dataclass(frozen=True)
class Closed(Mode):
    name = "closed"
    what = "closed loop: so many requests always under way, the next one as soon as one is answered"
    options: ClassVar[tuple[Option, ...]] = (
        Option("concurrency", "1,4,16", "how many requests are always under way, step by step [default: 1,4,16]"),
    )
    closed = True

    concurrency: tuple[int, ...] = (1, 4, 16)

    @classmethod
    def read(cls, options: Namespace) -> Self:
        try:
            found = tuple(int(word) for word in options.concurrency.split(","))
        except ValueError:
            found = ()
        if min(found, default=0) < 1:
            sentence = "is not understood; write numbers of at least 1, such as 1,4,16"
            raise ScenarioError(f"--concurrency '{options.concurrency}' {sentence}")
        return cls(found)

    def levels(self, scenario: Scenario) -> Sequence[float]:
        return self.concurrency

    def step(self, plan: StepPlan, endpoint: str, level: float, seed: int) -> LoadStep:
        return plan.step(endpoint, 0.0, seed, concurrency=int(level))
