from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from tailrate.analysis.judging.knee_guess import KneeGuess
from tailrate.loadtest.engine.scenario.knee_guide import Guide
from tailrate.loadtest.engine.scenario.knee_search import WIDTH, Knee, Search
from tailrate.loadtest.engine.scenario.mode import Mode
from tailrate.loadtest.engine.scenario.options import Option
from tailrate.loadtest.engine.scenario.scenario import Scenario, ScenarioError
from tailrate.loadtest.engine.scenario.steps import Blocks, StepPlan

BUDGET_S = 1200.0
BUDGET = Option(
    "budget-seconds", BUDGET_S, "the longest that it may take for each endpoint, in seconds [default: 1200]", least=1
)


@dataclass(frozen=True)
class KneeSearch(Mode):
    name = "knee"
    what = "searches the highest rate that keeps the objective, from the first of the rates on"
    options = (
        BUDGET,
        Option("guided", "off", "let a model of the endpoint say where to probe: faster [default: off]", ("on", "off")),
    )
    endless = True
    rates_known = False

    budget_seconds: float = BUDGET_S
    guided: bool = False

    @classmethod
    def read(cls, options: Namespace) -> Self:
        return cls(options.budget_seconds, options.guided == "on")

    def check(self, scenario: Scenario) -> None:
        if scenario.objective is None:
            raise ScenarioError("mode knee searches for an objective with a latency; say for instance --slo 'p99<50ms'")
        if self.guided and any(figure for figure, _ in scenario.objective.limits):
            raise ScenarioError(f"--guided on: there is no model of {scenario.searched_slo}; search without it")

    def as_json(self) -> dict[str, Any]:
        return {"guided": True} if self.guided else {}

    def searches(
        self,
        scenario: Scenario,
        endpoints: Sequence[str],
        found: dict[str, Knee],
        ask: Callable[[str], KneeGuess] | None = None,
    ) -> Blocks:
        """One search after the other; `found` gets each endpoint's answer. With `ask` a model is to guide them."""
        assert scenario.objective is not None
        plan = StepPlan(scenario)
        most = max(scenario.rates) if len(scenario.rates) > 1 else float("inf")
        for endpoint in endpoints:
            guide = None if ask is None else Guide(partial(ask, endpoint), WIDTH)
            search = Search(
                scenario.objective,
                min(scenario.rates),
                most,
                scenario.step_seconds,
                scenario.settle_seconds,
                self.budget_seconds,
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
