from __future__ import annotations

from collections.abc import Sequence

from tailrate.loadtest.engine.scenario.mode import Mode
from tailrate.loadtest.engine.scenario.steps import StepPlan


class Mixed(Mode):
    name = "mixed"
    what = "rising rates, all variants at once, each at an equal share of the rate"
    at_once = True

    def add(self, plan: StepPlan, endpoints: Sequence[str], level: float, seed: int) -> None:
        plan.add_at_once(endpoints, level, seed)
