from __future__ import annotations

from tailrate.loadtest.engine.scenario.mode import Mode
from tailrate.loadtest.engine.scenario.scenario import Scenario, ScenarioError


class Ramp(Mode):
    name = "ramp"
    what = "rising rates, the variants one after the other at each rate"

    def check(self, scenario: Scenario) -> None:
        if list(scenario.rates) != sorted(set(scenario.rates)):
            given = ",".join(f"{rate:g}" for rate in scenario.rates)
            raise ScenarioError(f"--rates '{given}' must rise in mode ramp; use --mode hold for any order")
