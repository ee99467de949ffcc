"""What was measured in each step of a run: `MeasuredStep`, one per step and endpoint.

`offered_rps` is a step's arrivals ÷ its length, `achieved_rps` the successes that were answered in it ÷ its length,
`goodput_rps` its arrivals that succeeded within the latency of the objective with the highest percentile ÷ its length.
What the pass over the rows counted comes from `counting`; what follows from it for a step is `step_evidence`, the
columns of its row are `step_summary`, and the rules (trusted? objective met?) are in `judging`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrate.analysis.counting.counts import Tally
from tailrate.analysis.counting.order_statistics import OrderStatistics
from tailrate.analysis.counting.stream_tally import StreamFigures
from tailrate.analysis.judging.judge import Window
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.stats.trend import Growth
from tailrate.analysis.steps.step_evidence import StepEvidence
from tailrate.analysis.steps.step_summary import StepSummary, summary_of
from tailrate.analysis.text import words

if TYPE_CHECKING:
    from tailrate.analysis.steps.measured_run import MeasuredRun


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredStep:
    """A row with what `compare`, `capacity` and `verdict` need beyond it."""

    summary: StepSummary
    rate: float
    """Asked for, in requests per second; in a closed loop what came of it."""
    concurrency: int
    """Requests always under way in a closed loop, else 0."""
    twin: bool
    """Repeats the step before it, to show the noise between equal steps."""
    tally: Tally
    order: OrderStatistics
    growth: Growth
    overloaded: bool
    showed: Window
    """What stands in the way of its figures; without counts."""
    windows: tuple[Window, ...]
    """The same for each objective, with its counts: what the judge needs to know of it."""
    idle_w: float | None = None
    """What its devices draw without load, whoever else they served, …"""
    added_w: float | None = None
    """… and what serving it added to that."""
    streams: StreamFigures | None = None
    """Where its answers come token by token."""

    @property
    def start_ns(self) -> int:
        """The window, settle time excluded; as long as the run lasted."""
        return self.tally.grid.start_ns

    @property
    def end_ns(self) -> int:
        return max(self.start_ns, self.tally.grid.end_ns)

    @property
    def asked(self) -> str:
        return words.load(self.rate, self.concurrency)


def measure(run: MeasuredRun) -> list[MeasuredStep]:
    """Every step of the manifest, in its order, for each endpoint that it drove."""
    return [_measured(step) for step in _evidence(run)]


def _evidence(run: MeasuredRun) -> list[StepEvidence]:
    idle = [(e["start_ns"], e["end_ns"]) for e in run.events if e["event"] == "idle" and "end_ns" in e]
    retired, short = (
        {step for e in run.events if e["event"] == word for step in e.get("steps") or ()}
        for word in ("retired", "worker_lost")
    )
    found: list[StepEvidence] = []
    line = Timeline.of(run)
    for plan in run.manifest.scenario["steps"]:
        tallies = run.tallies.of(int(plan["index"]))
        if not tallies and plan["index"] in retired:  # its rows were deleted, so there is no row for it here
            continue
        for endpoint in tallies or [str(plan["endpoint"])]:
            tally = tallies.get(endpoint) or Tally.empty(plan, run.ended_ns, line)
            found.append(StepEvidence(run, plan, endpoint, tally, idle, found, plan["index"] in short))
    return found


def _measured(step: StepEvidence) -> MeasuredStep:
    return MeasuredStep(
        summary_of(step),
        float(step.plan["rate"]) or (step.n / step.seconds if step.n else 0.0),
        step.concurrency,
        bool(step.plan.get("twin")),
        step.tally,
        step.order,
        step.growth,
        step.overloaded,
        step.showed,
        step.windows,
        step.energy.idle_w,
        step.added_w,
        step.streams,
    )
