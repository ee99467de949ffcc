from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tailrate.loadtest.engine.scenario.arrivals import Pattern
from tailrate.loadtest.engine.scenario.mode import Mode
from tailrate.loadtest.engine.scenario.options import Option
from tailrate.loadtest.engine.scenario.scenario import Scenario, ScenarioError
from tailrate.loadtest.engine.scenario.steps import LoadStep, StepPlan

END_S = 0.001
"""After its last arrival a step goes on for so long, so that it holds it."""


@dataclass(frozen=True)
class Replay(Mode):
    name = "replay"
    what = "the arrivals of a recorded trace"
    options = (
        Option("trace", "", "CSV, Parquet or JSON lines (.jsonl) file with a column of instants"),
        Option("speed", 1.0, "how many times as fast as recorded [default: 1]", least=0.001),
    )
    rates_known = False

    trace: str = ""
    speed: float = 1.0
    trace_ns: tuple[int, ...] = ()
    """Its arrivals, from the first."""

    @classmethod
    def read(cls, options: Namespace) -> Self:
        from tailrate.loadtest.engine.modes import _trace  # which takes pyarrow

        if not options.trace:
            raise ScenarioError("mode replay and --trace FILE go together")
        return cls(options.trace, options.speed, _trace.read(Path(options.trace), options.speed))

    @property
    def _seconds(self) -> float:
        return self.trace_ns[-1] / 1e9

    def pattern(self, drawn: Pattern) -> Pattern:
        return replace(drawn, trace_ns=self.trace_ns)

    def peak_rps(self, scenario: Scenario) -> float:
        return len(self.trace_ns) / max(1e-3, self._seconds)

    def levels(self, scenario: Scenario) -> Sequence[float]:
        return (len(self.trace_ns) / (self._seconds + END_S),)

    def step(self, plan: StepPlan, endpoint: str, level: float, seed: int) -> LoadStep:
        return plan.step(endpoint, level, seed, seconds=self._seconds + END_S, settle_s=0.0)

    def as_json(self) -> dict[str, Any]:
        return {"trace": self.trace, "speed": self.speed}
