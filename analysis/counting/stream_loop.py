"""The loop over the events of streams: how long after one came the next, where in an answer, and when.

Compiled where they are many. What goes in and comes out is put together in `streams`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tailrate.analysis.counting.answer_shape import POSITIONS, QUARTERS
from tailrate.analysis.run.bins import NEVER
from tailrate.analysis.stats.select import COARSE, SPLIT


class Events(NamedTuple):
    """Columns of a part."""

    group: Any  # of a step and endpoint, −1 where there is none
    inside: Any  # a success whose arrival is in its step's window
    first_ns: Any
    tokens: Any  # of the whole answer
    tokens_in: Any
    gap_ends: Any  # where its gaps end
    gaps_us: Any


class Windows(NamedTuple):
    """When the steps of each endpoint are measured, in order; and the run's time line."""

    start_ns: Any
    end_ns: Any
    first: Any  # by group: the first window of its endpoint
    last: Any  # … and where they end
    nearest: Any  # written, by group: the window that an answer was in last
    zero_ns: Any
    line_ns: Any


class Sums(NamedTuple):
    gaps: Any  # by group and bin of `select`
    level: Any  # by group: its row of the next
    by_position: Any  # by class of position and coarse bin
    tokens_by_time: Any  # by group and slice of the time line; last what came behind it
    arrived: Any  # by window: prompt tokens of the answers that began in it, tokens that came in it
    stall_us: Any  # by row: its longest gap, −1 where it has none


def walk(events: Any, windows: Any, sums: Any) -> None:
    begin = 0
    for i in range(events.group.shape[0]):
        end = events.gap_ends[i]
        if events.group[i] >= 0 and events.first_ns[i] != NEVER:
            _count_tokens(events, windows, sums, i, begin, end)
            if events.inside[i]:
                _count_gaps(events, sums, i, begin, end)
        begin = end


def _count_tokens(events: Any, windows: Any, sums: Any, i: int, begin: int, end: int) -> None:
    """By when they came; each event of an answer has as many as the others."""
    group, at_ns = events.group[i], events.first_ns[i]
    each, behind = events.tokens[i] / (end - begin + 1), sums.tokens_by_time.shape[1] - 1
    last = windows.last[group]
    w = windows.nearest[group]
    while w > windows.first[group] and at_ns < windows.end_ns[w - 1]:
        w -= 1
    while w < last and at_ns >= windows.end_ns[w]:
        w += 1
    windows.nearest[group] = w
    if w < last and at_ns >= windows.start_ns[w]:
        sums.arrived[w, 0] += events.tokens_in[i]
    in_window, in_slice, slice_end = 0, 0, at_ns
    place = -1
    for k in range(begin, end + 1):
        if k > begin:
            at_ns += np.int64(events.gaps_us[k - 1]) * 1000
        while w < last and at_ns >= windows.end_ns[w]:
            sums.arrived[w, 1] += in_window * each
            in_window = 0
            w += 1
        in_window += w < last and at_ns >= windows.start_ns[w]
        if at_ns >= slice_end:
            if place >= 0:
                sums.tokens_by_time[group, place] += in_slice * each
            in_slice = 0
            place = min(max((at_ns - windows.zero_ns) // windows.line_ns, 0), behind)
            slice_end = windows.zero_ns + (place + 1) * windows.line_ns if place < behind else np.int64(2**62)
        in_slice += 1
    sums.tokens_by_time[group, place] += in_slice * each
    if w < last:
        sums.arrived[w, 1] += in_window * each


def _count_gaps(events: Any, sums: Any, i: int, begin: int, end: int) -> None:
    group = events.group[i]
    gaps, by_position = sums.gaps[group], sums.by_position[sums.level[group]]
    longest = np.int64(-1)
    for k in range(begin, end):
        gap_us = events.gaps_us[k]
        longest = max(longest, np.int64(gap_us))
        number = max((int(np.float64(gap_us).view(np.int64)) >> (52 - SPLIT)) - (1023 << SPLIT) + 1, 0)
        gaps[number] += 1
        position = (int(np.float64(k - begin + 1).view(np.int64)) >> (52 - QUARTERS)) - (1023 << QUARTERS)
        by_position[min(position, POSITIONS - 1), ((number - 1) >> (SPLIT - COARSE)) + 1] += 1
    sums.stall_us[i] = longest
