from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tailrate.loadtest.engine.scenario.mode import Mode
from tailrate.loadtest.engine.scenario.options import Option
from tailrate.loadtest.engine.scenario.steps import StepPlan


@dataclass(frozen=True)
class Ab(Mode):
    name = "ab"
    what = (
        "every rate in rounds, the variants in random and balanced order on the same arrivals, some of them twice "
        "in a row to show the noise"
    )
    options = (Option("rounds", 4, "how often each rate is repeated [default: 4]", least=1),)

    rounds: int = 4

    @property
    def repeats(self) -> int:
        return self.rounds

    def add(self, plan: StepPlan, endpoints: Sequence[str], level: float, seed: int) -> None:
        """Each endpoint once a round; orders are random, and every second one is the last one reversed (A B, B A).

        In every second round one endpoint, another each time, is driven twice in a row.
        """
        draw = random.Random(seed)
        order: list[str] = []
        for number in range(self.rounds):
            order = order[::-1] if number % 2 else draw.sample(list(endpoints), len(endpoints))
            twice = endpoints[number // 2 % len(endpoints)] if number % 2 == 0 else None
            for name in order:
                plan.add(plan.step(name, level, seed + number))
                if name == twice:
                    plan.add(plan.step(name, level, seed + number, twin=True))
