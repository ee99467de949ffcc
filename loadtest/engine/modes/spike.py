from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrate.loadtest.engine.scenario.mode import Mode
from tailrate.loadtest.engine.scenario.options import Option
from tailrate.loadtest.engine.scenario.scenario import Scenario
from tailrate.loadtest.engine.scenario.steps import StepPlan


@dataclass(frozen=True)
class Spike(Mode):
    name = "spike"
    what = "each rate, then a multiple of it, then the rate again, without a pause"
    options = (Option("spike", 3.0, "how many times the rate [default: 3]", least=1),)

    spike: float = 3.0

    def peak_rps(self, scenario: Scenario) -> float:
        return self.spike * super().peak_rps(scenario)

    def add(self, plan: StepPlan, endpoints: Sequence[str], level: float, seed: int) -> None:
        for name in endpoints:
            first = plan.step(name, level, seed)
            more = [
                plan.step(name, rate, seed + part, settle_s=0.0, start_s=part * first.seconds)
                for part, rate in enumerate((level * self.spike, level), 1)
            ]
            plan.add(first, *more)
