"""Whether a step was steady: had latency settled when its window began, and did it stay?

Settling is found by MSER over means of slices of time, drift by a trend test over ten segments; both must also be large
enough to matter. perf_analyzer's rule of three windows stands beside them as a second opinion. A growing queue is not
this module's business: that step is overloaded, not unsteady.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrate.analysis.judging import server_claims
from tailrate.analysis.records.manifest import endpoint_name
from tailrate.analysis.stats import trend
from tailrate.analysis.stats.array_types import Floats
from tailrate.analysis.stats.sketch import SLICES
from tailrate.analysis.stats.trend import Growth
from tailrate.analysis.text.words import significant

if TYPE_CHECKING:
    from tailrate.analysis.counting.counts import Tally
    from tailrate.analysis.run.recorded_run import RecordedRun

MATTERS = 0.05
"""A smaller change of mean latency says nothing about the endpoint."""
MOST_APART = 5
"""Standard deviations by which the start of a window may differ by chance; and the fewest runs to tell them by."""
LEAST_IN_SLICE = 5
WINDOW_S, WINDOW_N = 5.0, 50
"""perf_analyzer's windows: so long, or so many requests."""


@dataclass(frozen=True, slots=True)
class Steadiness:
    settled_s: float | None = None
    """Since the step began; None where there are too few arrivals to say."""
    settled: bool | None = None
    """Before the window began."""
    drift_pct: float | None = None
    steady: bool | None = None
    three_windows: bool | None = None
    flatters: bool | None = None
    """Of an unsteady step: whether its latencies are lower than what lasts, or else higher."""

    def sentence(self, tally: Tally) -> str | None:
        if self.steady is not False:
            return None
        if self.settled is False:
            left_out = (tally.grid.start_ns - tally.grid.begin_ns) / 1e9
            return f"latency settled {significant(self.settled_s)} s into the step, {left_out:g} s were left out"
        way = "rose" if (self.drift_pct or 0) > 0 else "fell"
        return f"latency {way} by {significant(abs(self.drift_pct or 0))} % over the window"


def steadiness(tally: Tally, growth: Growth) -> Steadiness:
    """What the slices of a step say."""
    grid = tally.grid
    per_slice = tally.answered[grid.before :].sum() / SLICES
    merged = 1 if per_slice >= LEAST_IN_SLICE else math.ceil(LEAST_IN_SLICE / max(per_slice, 1e-9))
    if merged > SLICES // 20:  # fewer than twenty means show nothing
        return Steadiness(three_windows=_three_windows(tally))
    # from the window's start outwards, so that no slice is half settle time
    skip = grid.before % merged
    count = (grid.before + SLICES - skip) // merged
    counts = tally.answered[skip : skip + count * merged].reshape(count, merged).sum(axis=1)
    sums = np.nan_to_num(tally.latency_ms * tally.answered)[skip : skip + count * merged]
    means = np.divide(sums.reshape(count, merged).sum(axis=1), counts, out=np.full(count, np.nan), where=counts > 0)
    begin, length_s = grid.before // merged, merged * grid.slice_ns / 1e9
    cut = trend.settled_after(means, counts)
    early, rest = _mean(means, counts, begin, cut), _mean(means, counts, max(cut, begin), count)
    settled = cut <= begin or not _apart(means, counts, begin, cut, early, rest)
    settled_s = cut * length_s if cut > begin and not settled else min(cut, begin) * length_s
    first = begin if settled else cut
    drift = _drift(means[first:], counts[first:])
    drift_pct = 100 * drift if drift is not None and abs(drift) > MATTERS and not growth.rising else None
    flatters = early < rest if not settled else drift_pct > 0 if drift_pct is not None else None
    steady = settled and drift_pct is None
    return Steadiness(settled_s, settled, drift_pct, steady, _three_windows(tally), flatters)


def _mean(means: Floats, counts: Floats, first: int, last: int) -> float:
    weight = counts[first:last]
    return float(np.nansum(means[first:last] * weight) / weight.sum()) if weight.sum() else math.nan


def _apart(means: Floats, counts: Floats, begin: int, cut: int, early: float, rest: float) -> bool:
    """The cut-off start of the window is another level: by more than matters, and than chance."""
    if math.isnan(early) or math.isnan(rest) or abs(early - rest) <= MATTERS * rest:
        return False
    # against runs of the same length in the rest, as neighbouring slices resemble each other
    after, weight = means[cut:], counts[cut:]
    runs = max(MOST_APART, len(after) // (cut - begin))
    if len(after) < runs:
        return False
    levels = trend.segments(after, runs, weight)
    if np.isfinite(levels).sum() < 2:  # hardly an answer came in the rest
        return False
    # the cut was chosen as the one that shows most, so chance has had many tries
    return abs(early - rest) > MOST_APART * float(np.nanstd(levels, ddof=1))


def _drift(means: Floats, counts: Floats) -> float | None:
    """Relative change from start to end where a trend is no chance, else None."""
    if len(means) < 10:
        return None
    level = trend.segments(means, 10, counts)
    if np.isnan(level).any():
        return None
    _, rising = trend.mann_kendall(level)
    _, falling = trend.mann_kendall(-level)
    if min(rising, falling) >= 0.005:
        return None
    return 9 * trend.slope(level, 1.0) / float(np.median(level))


def _three_windows(tally: Tally) -> bool | None:
    """perf_analyzer's rule over as many whole windows as the step has."""
    grid = tally.grid
    answered = tally.answered[grid.before :]
    total = float(answered.sum())
    if not total or grid.seconds <= 0:
        return None
    length_s = max(WINDOW_S, WINDOW_N / (total / grid.seconds))
    count = int(grid.seconds / length_s)
    if count < 3:
        return None
    each = SLICES // count
    counts = answered[: each * count].reshape(count, each).sum(axis=1)
    sums = (
        np.nan_to_num(tally.latency_ms * tally.answered)[grid.before :][: each * count].reshape(count, each).sum(axis=1)
    )
    return trend.three_windows(counts.tolist(), (sums / np.maximum(counts, 1)).tolist())


def causes(run: RecordedRun, endpoint: str, span: tuple[int, int], throttled: bool, doubted: bool) -> str:
    """What else was wrong in an unsteady step, told apart as far as the run recorded it."""
    found = ["the device's clocks were held down"] if throttled else []
    begun = [event for event in run.events if event["event"] == "fault" and event.get("phase") == "begin"]
    inside = [event for event in begun if span[0] <= int(event.get("time_ns") or 0) < span[1]]
    found += dict.fromkeys(f"{event.get('fault')} was injected" for event in inside)
    for entry in run.manifest.endpoints:
        if endpoint_name(entry) == endpoint:
            if server_claims.during(entry, "recompiles"):
                found.append("torch.compile was at work during the run")
            if server_claims.during(entry, "first_hits"):
                found.append("shapes were met for the first time during the run")
    if doubted:
        found.append("the load generator stood in the way")
    return f" ({', '.join(found)})" if found else " (no cause was recorded)"
