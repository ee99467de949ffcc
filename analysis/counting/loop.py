"""The loop over the rows of one part: every sum of a `Tally` in one pass, compiled where they are many.

A row costs some tens of nanoseconds then, and no array of a part's length is made but those that are kept. What goes in
and comes out is put together in `one_pass`. `NEVER` is an instant that was not recorded, NaN a figure that was not.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tailrate.analysis.run.bins import BATCH, BINS, COMPUTE, FAILED, LOWEST, MOST_ROWS, NEVER, SLICE_BITS, SPLIT


class Rows(NamedTuple):
    """Columns of a part; a text is its number, −1 where there is none."""

    step: Any
    endpoint: Any
    intended_ns: Any
    sent_ns: Any
    done_ns: Any
    status: Any
    error: Any
    device: Any
    figures: Any  # a column for each of `FIGURES`, without a value where nothing has one
    own_rows: Any  # of the request itself


class Meaning(NamedTuple):
    """What the rows are sorted into."""

    good: Any  # by status: whether it is a success
    clean: Any  # by error: whether it is none
    group: Any  # by step, from the lowest on, and endpoint + 1: the number of its group, or −1
    lowest: Any
    grids: Any  # by group: GRID
    slices: Any  # of a window
    zero_ns: Any  # start of the run's time line
    line_ns: Any  # length of a slice of it


START, END, FIRST, SLICE, BEFORE, LINE_ROW, LINE_FIRST, LINE_SLICES = range(8)
"""GRID, in ns or in slices: window, start of the first slice, length of one, slices before the window; the group's rows
of `by_time`: where they begin, the first one's slice of the time line, how many."""


class Devices(NamedTuple):
    """Samples of all devices, one track after the other."""

    track_of: Any  # by device: its track, or −1
    starts: Any  # by track: its first sample; at last the end of all
    nearest: Any  # written, by track: the sample before the last instant that was looked for
    times_ns: Any
    reach_ns: Any  # by track: period, clock error
    state: Any  # by sample: each of `SEEN`, then whether it is known


class Sums(NamedTuple):
    """What is added up, by group."""

    statuses: Any  # of the whole step, inside the window
    counts: Any  # successes, sent; in the window arrivals, successes, answered in it
    missing: Any  # by part
    by_slice: Any
    by_latency: Any
    by_batch: Any
    by_time: Any
    answered_by_time: Any
    seen: Any
    used: Any  # by device + 1
    joins: Any  # of all groups: requests with a sample, of these those whose sample the clock error could mistake


class Kept(NamedTuple):
    """Figures that are kept one by one, in ns: a group's lie together."""

    ends: Any  # by group: where each of the next five ends
    packed: Any
    service: Any
    late: Any
    late_outside: Any
    done_after: Any  # answers after the window


PACKED, SERVICE, LATE, LATE_OUTSIDE, DONE_AFTER = range(5)


class Arrival(NamedTuple):
    """One row, and where it belongs."""

    row: Any
    group: Any
    begun_ns: Any
    sent_ns: Any
    done_ns: Any
    sent: Any
    answered: Any
    ok: Any
    inside: Any
    latency_ms: Any
    bin: Any


def gather(rows: Any, meaning: Any, devices: Any, sums: Any, kept: Any) -> None:
    _make_room(rows, meaning, kept.ends)
    group, step, endpoint = np.int32(-1), np.int32(-1), np.int32(-2)
    for i in range(rows.step.shape[0]):
        if rows.step[i] != step or rows.endpoint[i] != endpoint:
            step, endpoint = rows.step[i], rows.endpoint[i]
            group = meaning.group[step - meaning.lowest, endpoint + 1]
        if group >= 0:
            arrival = _arrival(rows, meaning, group, i)
            _count(rows, arrival, sums)
            _count_by_time(meaning, arrival, sums, kept)
            at = _count_by_slice(rows, meaning, arrival, sums)
            _keep(arrival, at, kept)
            if arrival.inside and arrival.ok:
                _add_figures(rows, arrival, sums, kept)
            _see_device(rows, devices, arrival, sums)


def _make_room(rows: Any, meaning: Any, ends: Any) -> None:
    """For each group as much as it has rows."""
    group, step, endpoint = np.int32(-1), np.int32(-1), np.int32(-2)
    for i in range(rows.step.shape[0]):
        if rows.step[i] != step or rows.endpoint[i] != endpoint:
            step, endpoint = rows.step[i], rows.endpoint[i]
            group = meaning.group[step - meaning.lowest, endpoint + 1]
        if group >= 0:
            ends[group, 0] += 1
    room = 0
    for each in range(ends.shape[0]):
        mine = ends[each, 0]
        ends[each, :] = room
        room += mine


def _arrival(rows: Any, meaning: Any, group: Any, i: int) -> Any:
    begun_ns, sent_ns, done_ns = rows.intended_ns[i], rows.sent_ns[i], rows.done_ns[i]
    answered = done_ns != NEVER
    ok = meaning.good[rows.status[i]] and meaning.clean[rows.error[i]] and answered
    inside = meaning.grids[group, START] <= begun_ns < meaning.grids[group, END]
    latency_ms, of = (done_ns - begun_ns) * 1e-6, BINS
    if ok:
        of = (int(np.float64(latency_ms).view(np.int64)) >> (52 - SPLIT)) - LOWEST
        of = min(max(of, 0), BINS - 1)
    return Arrival(i, group, begun_ns, sent_ns, done_ns, sent_ns != NEVER, answered, ok, inside, latency_ms, of)


def _count(rows: Any, arrival: Any, sums: Any) -> None:
    group, status = arrival.group, rows.status[arrival.row] + 1
    sums.statuses[group, 0, status] += 1
    sums.used[group, rows.device[arrival.row] + 1] = True
    sums.counts[group, 0] += arrival.ok
    sums.counts[group, 1] += arrival.sent
    if arrival.inside:
        sums.statuses[group, 1, status] += 1
        sums.counts[group, 2] += 1
        sums.counts[group, 3] += arrival.ok


def _count_by_time(meaning: Any, arrival: Any, sums: Any, kept: Any) -> None:
    group, grid, per_line = arrival.group, meaning.grids[arrival.group], 1.0 / meaning.line_ns
    if arrival.ok:
        done_ns = arrival.done_ns
        at = int((done_ns - meaning.zero_ns) * per_line)
        sums.answered_by_time[group, min(max(at, 0), sums.answered_by_time.shape[1] - 1)] += 1
        if done_ns >= grid[END]:
            kept.done_after[kept.ends[group, DONE_AFTER]] = done_ns
            kept.ends[group, DONE_AFTER] += 1
        elif done_ns >= grid[START]:
            sums.counts[group, 4] += 1
    at = int((arrival.begun_ns - meaning.zero_ns) * per_line) - grid[LINE_FIRST]
    sums.by_time[grid[LINE_ROW] + min(max(at, 0), grid[LINE_SLICES] - 1), arrival.bin] += 1


def _count_by_slice(rows: Any, meaning: Any, arrival: Any, sums: Any) -> Any:
    """The arrival's slice of the window, from 0 on where it is inside."""
    i, grid, mine = arrival.row, meaning.grids[arrival.group], sums.by_slice[arrival.group]
    first_ns, before = grid[FIRST], grid[BEFORE]
    last, per_slice = before + meaning.slices, 1.0 / grid[SLICE]
    k = int((arrival.begun_ns - first_ns) * per_slice)
    if arrival.inside:
        k = min(max(k, before), last - 1)
    else:
        k = last if arrival.begun_ns >= grid[END] else max(min(k, before - 1), 0)
    mine[k, 0] += 1
    if arrival.ok:
        mine[k, 1] += 1
        mine[k, 2] += arrival.latency_ms
        if rows.own_rows.shape[0] > 0 and rows.figures[COMPUTE].shape[0] > 0 and rows.figures[BATCH].shape[0] > 0:
            cost = rows.figures[COMPUTE][i] * rows.own_rows[i] / rows.figures[BATCH][i]
            if not math.isnan(cost):
                mine[k, 7] += cost
    # under way from sending to answer: a generator's own backlog is not the endpoint's queue
    if arrival.sent or arrival.answered:
        at = (arrival.sent_ns if arrival.sent else arrival.begun_ns) - first_ns
        j = min(max(int(at * per_slice), 0), last)
        mine[j, 3] += 1
        mine[j, 4] += at
    if arrival.answered:
        at = arrival.done_ns - first_ns
        j = min(max(int(at * per_slice), 0), last)
        mine[j, 5] += 1
        mine[j, 6] += at
    return k - before


def _keep(arrival: Any, at: int, kept: Any) -> None:
    group, late_ns = arrival.group, arrival.sent_ns - arrival.begun_ns
    if arrival.inside:
        latency_ns = arrival.done_ns - arrival.begun_ns if arrival.ok else FAILED
        kept.packed[kept.ends[group, PACKED]] = (latency_ns << SLICE_BITS) | at
        kept.ends[group, PACKED] += 1
        if arrival.sent:
            kept.late[kept.ends[group, LATE]] = late_ns
            kept.ends[group, LATE] += 1
    elif arrival.sent:
        kept.late_outside[kept.ends[group, LATE_OUTSIDE]] = late_ns
        kept.ends[group, LATE_OUTSIDE] += 1


def _add_figures(rows: Any, arrival: Any, sums: Any, kept: Any) -> None:
    """Of a success in the window."""
    i, group, figures = arrival.row, arrival.group, rows.figures
    mine = sums.by_latency[group, arrival.bin]
    mine[0] += 1
    mine[1] += arrival.latency_ms
    if arrival.sent:
        service_ns = arrival.done_ns - arrival.sent_ns
        kept.service[kept.ends[group, SERVICE]] = service_ns
        kept.ends[group, SERVICE] += 1
        mine[2] += service_ns * 1e-6
    else:
        sums.missing[group, 1] += 1
    if figures[BATCH].shape[0] > 0 and not math.isnan(figures[BATCH][i]):
        of = int(min(max(figures[BATCH][i], 0.0), float(MOST_ROWS)))
        sums.by_batch[group, of, 0] += 1
        if figures[COMPUTE].shape[0] > 0 and not math.isnan(figures[COMPUTE][i]):
            sums.by_batch[group, of, 1] += 1
            sums.by_batch[group, of, 2] += figures[COMPUTE][i]
    for f in range(len(figures)):
        if figures[f].shape[0] > 0:
            value = figures[f][i]
            if math.isnan(value):
                sums.missing[group, 2 + f] += 1
            else:
                mine[3 + f] += value


def _see_device(rows: Any, devices: Any, arrival: Any, sums: Any) -> None:
    """At the middle of the service, the instant that is never further than half of it from the work."""
    track = devices.track_of[rows.device[arrival.row]]
    if track < 0 or not arrival.answered:
        return
    sent_ns, done_ns, times_ns = arrival.sent_ns, arrival.done_ns, devices.times_ns
    at_ns = sent_ns + ((done_ns - sent_ns) >> 1) if arrival.sent else done_ns
    j = devices.nearest[track]
    while j > devices.starts[track] and times_ns[j] >= at_ns:
        j -= 1
    while j < devices.starts[track + 1] - 2 and times_ns[j + 1] < at_ns:
        j += 1
    devices.nearest[track] = j
    gap_before, gap_after = at_ns - times_ns[j], times_ns[j + 1] - at_ns
    if gap_after < gap_before:
        j += 1
    if abs(times_ns[j] - at_ns) <= devices.reach_ns[track, 0]:
        sums.joins[0] += 1
        sums.joins[1] += abs(gap_after - gap_before) < 2 * devices.reach_ns[track, 1]
        if arrival.inside:
            for s in range(sums.seen.shape[1]):
                sums.seen[arrival.group, s] += devices.state[j, s]
