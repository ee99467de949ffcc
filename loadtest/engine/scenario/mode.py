"""What every mode is: one way to drive endpoints, in a file of `modes` each, with its own options as its fields."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tailrate.loadtest.engine.scenario.arrivals import Pattern, peak

if TYPE_CHECKING:
    from tailrate.loadtest.engine.scenario.options import Option
    from tailrate.loadtest.engine.scenario.scenario import Scenario
    from tailrate.loadtest.engine.scenario.steps import LoadStep, StepPlan


@dataclass(frozen=True)
class Mode:
    """Drives the variants one after the other at each rate, in schedule, unless a subclass says otherwise."""

    name: ClassVar[str]
    what: ClassVar[str]
    """Its line in the help."""
    options: ClassVar[tuple[Option, ...]] = ()
    """That not all modes have; the field of an option's key gets its value."""
    step_option: ClassVar[str] = "step_seconds"
    """Which option says how long its steps are."""
    steps_word: ClassVar[str] = "steps"
    """What has to be longer where a rate is too low to be judged."""
    closed: ClassVar[bool] = False
    """Without a schedule: a slow endpoint is asked less often, so nothing can be late and no rate is kept."""
    endless: ClassVar[bool] = False
    """It ends by what it finds, so nobody knows before how long it takes."""
    at_once: ClassVar[bool] = False
    """All variants share the rate at the same time."""
    rates_known: ClassVar[bool] = True
    """The rates that will be driven are those of `--rates`."""

    @classmethod
    def read(cls, options: Namespace) -> Self:
        """With its own options; `ScenarioError` where they cannot be meant."""
        return cls(**{option.key: getattr(options, option.key) for option in cls.options})

    def check(self, scenario: Scenario) -> None:
        """`ScenarioError` where the other options make no run of this mode."""

    def pattern(self, drawn: Pattern) -> Pattern:
        """How arrivals come, where it is not as the options of all modes say."""
        return drawn

    @property
    def resumes(self) -> str:
        """The run folder that it goes on with."""
        return ""

    @property
    def repeats(self) -> int:
        """How many steps each variant has at each rate."""
        return 1

    def measured_s(self, scenario: Scenario) -> float:
        """How long each rate is driven, repeats and what is left out as settling not counted."""
        return scenario.step_seconds

    def peak_rps(self, scenario: Scenario) -> float:
        """The highest rate that it will ask for, as far as that is known before."""
        return max(scenario.rates) * peak(scenario.pattern.shape)

    def levels(self, scenario: Scenario) -> Sequence[float]:
        """What rises or changes from block to block: a rate, or in a closed loop how many requests are under way."""
        return scenario.rates

    def step(self, plan: StepPlan, endpoint: str, level: float, seed: int) -> LoadStep:
        return plan.step(endpoint, level, seed)

    def add(self, plan: StepPlan, endpoints: Sequence[str], level: float, seed: int) -> None:
        """The blocks of one level."""
        for name in endpoints:
            plan.add(self.step(plan, name, level, seed))

    def blocks(self, plan: StepPlan, endpoints: Sequence[str]) -> list[list[LoadStep]]:
        """All steps, where they are known before.

        Endpoints that take turns get the same seed at one level, hence the same arrivals.
        """
        for turn, level in enumerate(self.levels(plan.scenario)):
            self.add(plan, endpoints, level, plan.scenario.seed * 1_000_003 + turn * 1_009)
        return plan.blocks

    def as_json(self) -> dict[str, Any]:
        """What the manifest's `scenario` says of it, beside its name."""
        return {}
