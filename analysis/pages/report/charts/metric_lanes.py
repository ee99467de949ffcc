"""The servers' own metrics in the slices of the time line, a lane per metric, ready to be drawn. Draws nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.server_metrics.tracks import MetricTrack
from tailrate.analysis.stats.array_types import Floats

MOST_LANES = 8
ORDER = ("queue", "running", "batch", "cache", "errors", "requests")
"""By what a metric is to the report; those without a role come behind, in the order of the page."""
WIDE = 1e5
HOLDS = 3.0
"""Periods for which what was seen is taken to hold between two looks."""


@dataclass(frozen=True, slots=True, eq=False)
class MetricLine:
    series: int | None
    """Number of the endpoint's colour; None for the server as a whole."""
    label: str
    values: Floats
    """By slice, NaN where nothing is known."""


@dataclass(frozen=True, slots=True, eq=False)
class MetricLane:
    name: str
    """With its unit."""
    unit: str
    lines: Sequence[MetricLine]


def metric_lanes(tracks: Sequence[MetricTrack], line: Timeline, series: Mapping[str, int]) -> list[MetricLane]:
    """Those that were ever more than nothing, the most telling first."""
    found: dict[str, list[MetricTrack]] = defaultdict(list)
    for track in sorted(tracks, key=lambda one: ORDER.index(one.role) if one.role in ORDER else len(ORDER)):
        found[track.name].append(track)
    lanes = []
    for mine in found.values():
        several = len({track.source for track in mine}) > 1
        lines = [MetricLine(series.get(one.endpoint), _label(one, several), _sliced(one, line)) for one in mine]
        if any(np.nan_to_num(each.values).any() for each in lines):
            first = mine[0]
            unit = f"{first.unit}/s" if not (first.is_gauge or first.is_quotient) else first.unit
            lanes.append(_fitting(first.title, unit, lines))
    return lanes[:MOST_LANES]


def _fitting(title: str, unit: str, lines: Sequence[MetricLine]) -> MetricLane:
    """In a unit whose numbers fit beside the axis, and named without saying anything twice."""
    highest = max(float(np.nanmax(each.values, initial=0.0)) for each in lines)
    factor = 1.0
    if unit == "s" and highest < 1:
        unit, factor = ("ms", 1e3) if highest >= 1e-3 else ("µs", 1e6)
    elif highest >= WIDE:
        unit, factor = f"thousand {unit}", 1e-3
    lines = [replace(each, values=each.values * factor) for each in lines]
    name = title if unit in title.split() else unit if unit.startswith(title) else f"{title}, {unit}"
    return MetricLane(name, unit, lines)


def _label(track: MetricTrack, several: bool) -> str:
    return f"{track.title} ({track.source})" if several else track.title


def _sliced(track: MetricTrack, line: Timeline) -> Floats:
    """A gauge's mean, a counter's rate, a histogram's mean in each slice."""
    edges = line.zero_ns + np.arange(line.slices + 1) * line.slice_ns
    edges[-1] = min(int(edges[-1]), line.zero_ns + round(line.seconds * 1e9))
    since = (track.time_ns - line.zero_ns).astype(np.float64)
    at = (edges - line.zero_ns).astype(np.float64)
    if track.is_gauge:
        return _gauge(track, line, since, at)
    rise = np.diff(np.interp(at, since, track.values))
    below = np.diff(at) / 1e9 if track.per is None else np.diff(np.interp(at, since, track.per))
    known = (at[:-1] < since[-1]) & (at[1:] > since[0]) & (below > 0)
    found: Floats = np.full(line.slices, math.nan)
    return np.divide(rise, below, out=found, where=known)


def _gauge(track: MetricTrack, line: Timeline, since: Floats, at: Floats) -> Floats:
    """Slices without a look lie between two that are not far apart."""
    found = line.means(track.time_ns, track.values)
    known = ~np.isnan(track.values)
    if known.sum() > 1:
        times, middles = since[known], (at[:-1] + at[1:]) / 2
        behind = np.clip(np.searchsorted(times, middles), 1, len(times) - 1)
        near = times[behind] - times[behind - 1] <= HOLDS * np.median(np.diff(times))
        fill = np.isnan(found) & near & (middles > times[0]) & (middles < times[-1])
        found[fill] = np.interp(middles[fill], times, track.values[known])
    return found
