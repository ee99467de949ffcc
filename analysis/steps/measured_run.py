"""A run with what was measured in each of its steps."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from tailrate.analysis.counting.counted_run import CountedRun
from tailrate.analysis.records.folder import REQUESTS

if TYPE_CHECKING:
    import pandas as pd

    from tailrate.analysis.server_metrics.by_step import StepMetric
    from tailrate.analysis.server_metrics.tracks import MetricTrack
    from tailrate.analysis.steps.fault_effects import Struck
    from tailrate.analysis.steps.measure import MeasuredStep


class MeasuredRun(CountedRun):
    """`steps` has one row per step and endpoint, in the columns of `steps.csv`."""

    @cached_property
    def measured(self) -> list[MeasuredStep]:
        """The steps with what belongs to them beyond their row: window, rate asked for, answers per objective."""
        from tailrate.analysis.steps.measure import measure

        return measure(self)

    @cached_property
    def kept(self) -> list[dict[str, Any]]:
        """What chapters had shown whose rows were deleted as the run went on, as `retired_chapters` put it."""
        there = self.tables[REQUESTS].held.keys()
        told = (event for event in self.events if event["event"] == "retired" and event.get("judged"))
        return [event["judged"] for event in told if not there & set(event["files"])]

    @cached_property
    def struck(self) -> list[Struck]:
        """The faults that were injected on purpose, with the time that each takes out of what is judged."""
        from tailrate.analysis.steps.fault_effects import struck

        return struck(self)

    @cached_property
    def steps(self) -> pd.DataFrame:
        from tailrate.analysis.steps.step_summary import frame

        return frame([step.summary for step in self.measured])

    @cached_property
    def metric_tracks(self) -> list[MetricTrack]:
        """The servers' own metrics over the run; nothing where none were asked for."""
        from tailrate.analysis.server_metrics.tracks import tracks

        return tracks(self)

    @cached_property
    def measured_metrics(self) -> list[StepMetric]:
        """The same in the window of each step."""
        from tailrate.analysis.server_metrics.by_step import by_step

        steps = ((s.summary.index, s.summary.endpoint, s.start_ns, s.end_ns) for s in self.measured)
        return by_step(self.metric_tracks, steps)

    @cached_property
    def step_metrics(self) -> pd.DataFrame:
        """One row per step and metric; `metrics` has every series at every look."""
        from tailrate.analysis.server_metrics.by_step import frame

        return frame(self.measured_metrics)
