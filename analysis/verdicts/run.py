"""A run as everybody outside gets it: its rows, its steps, and its steps less the time of planned faults."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tailrate.analysis.steps.measured_run import MeasuredRun

if TYPE_CHECKING:
    import pandas as pd

    from tailrate.analysis.steps.measure import MeasuredStep


class Run(MeasuredRun):
    """One run. What it holds is read, and what follows from it worked out, when it is first asked for.

    `steps` has one row per step and endpoint, in the columns of `steps.csv`; `devices` the samples as recorded;
    `requests()` has a row per arrival, `slices` one per step, endpoint and label, where arrivals have labels.
    """

    @cached_property
    def calm(self) -> list[MeasuredStep]:
        """The steps, those with such a fault judged by the rest of their time."""
        from tailrate.analysis.verdicts.without_faults import calm

        return calm(self)

    @cached_property
    def slices(self) -> pd.DataFrame:
        from tailrate.analysis.verdicts.slices import frame

        return frame(self)
