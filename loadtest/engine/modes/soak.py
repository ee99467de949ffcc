from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tailrate.loadtest.engine.scenario import soak_limits
from tailrate.loadtest.engine.scenario.arrivals import mean_arrivals, parse_shape, peak
from tailrate.loadtest.engine.scenario.mode import Mode
from tailrate.loadtest.engine.scenario.options import Option
from tailrate.loadtest.engine.scenario.scenario import Scenario, ScenarioError
from tailrate.loadtest.engine.scenario.steps import Blocks, StepPlan
from tailrate.loadtest.engine.scenario.stop_rules import Stop

LEAST_CHAPTER_S = 1.0
"""What is left of a soak's time and is shorter than this is left out."""


@dataclass(frozen=True)
class Soak(Mode):
    name = "soak"
    what = "one rate for hours or days, all variants at once, in chapters"
    options = (
        Option("total-seconds", 3600.0, "how long it is in all, in seconds [default: 3600]", least=1),
        Option(
            "chapter-seconds", 600.0, "length of its steps, which follow each other, in seconds [default: 600]", least=1
        ),
        Option("daily", "", "a curve over all of it, such as sine:0.5:86400 (depth, period in seconds)"),
        Option(
            "keep-hours",
            0.0,
            "rows of requests older than this are deleted, their minutes stay; 0: none [default: 0]",
            least=0,
        ),
        Option(
            "keep-gb",
            0.0,
            "so much of the disk for rows of requests, the oldest are deleted; 0: any [default: 0]",
            least=0,
        ),
        Option("stop-on", "", "ends early on errors over a share, on slo or replica, such as slo,replica"),
        Option("limits", "", "the most of p99_trend, p99_step, memory, stall and gap that passes: see docs/soak.md"),
        Option("max-memory-mb", 0.0, "ends when a process of the harness is larger; 0: never [default: 0]", least=0),
        Option("resume", "", "the run folder that it goes on with"),
    )
    step_option = "chapter_seconds"
    steps_word = "a soak"
    at_once = True

    total_seconds: float = 3600.0
    chapter_seconds: float = 600.0
    daily: str = ""
    keep_hours: float = 0.0
    keep_gb: float = 0.0
    stop_on: str = ""
    limits: str = ""
    max_memory_mb: float = 0.0
    resume: str = ""

    @classmethod
    def read(cls, options: Namespace) -> Self:
        try:
            Stop.parse(options.stop_on)
        except ValueError as problem:
            raise ScenarioError(f"--stop-on {problem}") from None
        try:
            soak_limits.parse(options.limits)
        except ValueError as problem:
            raise ScenarioError(f"--limits {problem}") from None
        return super().read(options)

    def check(self, scenario: Scenario) -> None:
        if len(scenario.rates) > 1:
            given = ",".join(f"{rate:g}" for rate in scenario.rates)
            raise ScenarioError(f"mode soak has one rate, and --rates '{given}' has {len(scenario.rates)}")
        if not self.daily:
            return
        try:
            kind, numbers = parse_shape(self.daily)
        except ValueError:
            kind, numbers = "", ()
        if kind != "sine" or len(numbers) != 2:
            raise ScenarioError(f"--daily '{self.daily}' is not understood; write for instance sine:0.5:86400")
        if scenario.pattern.shape != "flat":
            raise ScenarioError("--daily is a curve over the whole soak, --shape one over each step: give one of them")

    @property
    def resumes(self) -> str:
        return self.resume

    @property
    def stop(self) -> Stop:
        """When it ends before its time."""
        return Stop.parse(self.stop_on, self.max_memory_mb)

    def measured_s(self, scenario: Scenario) -> float:
        return self.total_seconds

    def peak_rps(self, scenario: Scenario) -> float:
        return max(scenario.rates) * peak(self.daily or scenario.pattern.shape)

    def as_json(self) -> dict[str, Any]:
        keys = ("total_seconds", "chapter_seconds", "daily", "keep_hours", "keep_gb", "stop_on", "max_memory_mb")
        return {key: getattr(self, key) for key in keys} | {"soak": soak_limits.parse(self.limits)}

    def _shape(self, at_s: float) -> str:
        """Of a chapter that begins so long after the soak did."""
        return f"{self.daily}:{at_s:.3f}" if self.daily else ""

    def chapters(self, plan: StepPlan, endpoints: Sequence[str], elapsed_s: Callable[[], float]) -> Blocks:
        """Until its time is over: all endpoints at once, each at an equal share of the rate.

        `elapsed_s` counts from the soak's start; what the plan already numbers was there before a resumption.
        """
        scenario, first = plan.scenario, len(plan.blocks)
        while (left_s := self.total_seconds - (at_s := elapsed_s())) >= LEAST_CHAPTER_S:
            number = len(plan.blocks)
            settle_s = scenario.settle_seconds if number == first else 0.0
            seconds = min(self.chapter_seconds, left_s)
            seed = scenario.seed * 1_000_003 + number * 1_009
            how: dict[str, Any] = {"seconds": seconds, "settle_s": settle_s, "shape": self._shape(at_s)}
            yield plan.add_at_once(endpoints, scenario.rates[0], seed, **how)

    def to_be_expected(self, rate: float, endpoints: Sequence[str], from_s: float, to_s: float) -> dict[str, int]:
        """Arrivals that its plan had between two times since its start, in the mean over all seeds."""
        factor = to_s - from_s
        if self.daily and factor > 0:
            factor = mean_arrivals(self._shape(from_s), factor)
        return {name: round(max(0.0, factor) * rate / len(endpoints)) for name in endpoints}
