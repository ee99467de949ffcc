from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrate.loadtest.engine.modes.knee import BUDGET, BUDGET_S
from tailrate.loadtest.engine.scenario.mode import Mode
from tailrate.loadtest.engine.scenario.options import Option
from tailrate.loadtest.engine.scenario.scenario import Scenario
from tailrate.loadtest.engine.scenario.steps import LoadStep, StepPlan


@dataclass(frozen=True)
class Offline(Mode):
    name = "offline"
    what = "all requests at once, as many under way as allowed: rows per second"
    options = (Option("requests", 1000, "how many there are [default: 1000]", least=1), BUDGET)
    closed = True
    endless = True

    requests: int = 1000
    budget_seconds: float = BUDGET_S

    def levels(self, scenario: Scenario) -> Sequence[float]:
        return (scenario.max_in_flight,)

    def step(self, plan: StepPlan, endpoint: str, level: float, seed: int) -> LoadStep:
        asked = {"concurrency": int(level), "requests": self.requests}
        return plan.step(endpoint, 0.0, seed, seconds=self.budget_seconds, settle_s=0.0, **asked)
