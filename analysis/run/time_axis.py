"""The run on one axis of time: equal slices, in which arrivals are counted by latency as the rows go past.

A run of any length has at most a thousand slices. Owns the slices; what is counted in them is `tally`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tailrate.analysis.stats.array_types import Floats

if TYPE_CHECKING:
    from tailrate.analysis.run.recorded_run import RecordedRun

_SLICES = 1000
_ROUND_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
_AFTER_NS = 600 * 10**9
"""A run that says it finished longer after its last step than this has more in it than steps."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Equal slices of a run."""

    zero_ns: int
    seconds: float
    slice_s: int

    @classmethod
    def over(cls, first_ns: int, last_ns: int) -> Timeline:
        seconds = max(1.0, (last_ns - first_ns) / 1e9)
        least = seconds / _SLICES
        return cls(first_ns, seconds, next((s for s in _ROUND_S if s >= least), int(least) + 1))

    @classmethod
    def of(cls, run: RecordedRun) -> Timeline:
        """From the start of the run to the end of its last step, and of what came after it."""
        manifest, steps = run.manifest, run.manifest.scenario["steps"]
        stop = run.ended_ns
        begins = [int(step["start_ns"]) for step in steps if stop is None or step["start_ns"] < stop]
        first = min(begins, default=manifest.started_ns)
        last = max((int(step["end_ns"]) for step in steps), default=first)
        last = last if stop is None else min(last, stop)
        if manifest.finished_ns < last + _AFTER_NS:
            last = max(last, manifest.finished_ns)
        started = manifest.started_ns
        return cls.over(started if first - _AFTER_NS < started < first else first, last)

    @property
    def slice_ns(self) -> int:
        return self.slice_s * 10**9

    @property
    def slices(self) -> int:
        return max(1, -int(-self.seconds // self.slice_s))

    def span(self, step: Mapping[str, Any]) -> tuple[int, int]:
        """The first slice of a step and how many it has; at least one, so that whatever came late has a place."""
        first = min(max(0, (int(step["start_ns"]) - self.zero_ns) // self.slice_ns), self.slices - 1)
        last = min(max(first, (int(step["end_ns"]) - 1 - self.zero_ns) // self.slice_ns), self.slices - 1)
        return first, last - first + 1

    def at(self, time_ns: float) -> float:
        """Seconds since the start."""
        return (time_ns - self.zero_ns) / 1e9

    def numbers(self, times_ns: Any) -> npt.NDArray[np.int64]:
        """The slice of each instant."""
        found: npt.NDArray[np.int64] = np.floor_divide(times_ns - self.zero_ns, self.slice_ns)
        return found

    def means(self, times_ns: Any, values: Floats) -> Floats:
        """Of samples, by slice; NaN where nothing was said."""
        places = self.numbers(times_ns)
        known = (places >= 0) & (places < self.slices) & ~np.isnan(values)
        count, total = (np.bincount(places[known], weights, self.slices) for weights in (None, values[known]))
        found: Floats = np.full(self.slices, np.nan)
        return np.divide(total, count, out=found, where=count > 0)

    def middle(self, number: int) -> float:
        return min((number + 0.5) * self.slice_s, self.seconds)
