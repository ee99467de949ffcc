"""The servers' metrics in each step: rows of `metrics` in `report.json`, and of `run.step_metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from tailrate.analysis.server_metrics.tracks import MetricTrack

if TYPE_CHECKING:
    import pandas as pd

Window = tuple[int, str, int, int]
"""A step: index, endpoint, and its window [start, end) without settle time."""


@dataclass(frozen=True, slots=True)
class StepMetric:
    """One metric of one page in one step's window; what its kind doesn't have is None."""

    index: int
    endpoint: str
    """The step's."""
    source: str
    metric: str
    """Its name on the page, with the labels that tell it from others."""
    title: str
    kind: str
    role: str
    unit: str
    delta: float | None
    """A counter's increase; of a histogram or another quotient, how much it is the mean of."""
    rate: float | None
    """The same for each second."""
    mean: float | None
    """Of a gauge over the looks, of a quotient over what was counted."""
    highest: float | None
    """Of a gauge."""
    looks: int
    """At the page, within the window."""


def by_step(tracks: Sequence[MetricTrack], windows: Iterable[Window]) -> list[StepMetric]:
    """In the order of the steps, and of the metrics within each."""
    return [row for window in windows for row in _rows(tracks, window)]


def _rows(tracks: Sequence[MetricTrack], window: Window) -> Iterator[StepMetric]:
    index, endpoint, start_ns, end_ns = window
    for track in tracks:
        looks = int(((track.time_ns >= start_ns) & (track.time_ns < end_ns)).sum())
        if not track.is_of(endpoint) or not looks:
            continue
        delta = mean = highest = None
        if track.is_gauge:
            values = track.inside(start_ns, end_ns)
            mean, highest = (float(values.mean()), float(values.max())) if len(values) else (None, None)
        elif track.is_quotient:
            mean, delta = track.quotient(start_ns, end_ns), track.counted(start_ns, end_ns)
        else:
            delta = track.increase(start_ns, end_ns)
        yield StepMetric(
            index, endpoint, track.source, track.name, track.title, str(track.says.get("kind")), track.role, track.unit,
            delta, None if delta is None else delta / ((end_ns - start_ns) / 1e9), mean, highest, looks,
        )  # fmt: skip


def frame(rows: Sequence[StepMetric]) -> pd.DataFrame:
    """The rows as a frame: figures with NaN where there are none."""
    import pandas as pd

    names = [each.name for each in fields(StepMetric)]
    table = pd.DataFrame([asdict(row) for row in rows], columns=names)
    return table.astype({each.name: "float64" for each in fields(StepMetric) if str(each.type) == "float | None"})
