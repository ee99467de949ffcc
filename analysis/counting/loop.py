"""The loop over the rows of one part: every sum of a `Tally` in one pass, compiled.

A row costs some tens of nanoseconds, and no array of a part's length is made but those that are kept. What goes in and
comes out is put together in `tally`. `NEVER` is an instant that was not recorded, NaN a figure that was not.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba import types

from tailrate.analysis.run.bins import (
    BATCH,
    BINS,
    COMPUTE,
    FAILED,
    FIGURES,
    LOWEST,
    MOST_ROWS,
    NEVER,
    SLICE_BITS,
    SPLIT,
)


def _array(kind: Any, dimensions: int = 1, readonly: bool = True) -> Any:
    return types.Array(kind, dimensions, "C", readonly=readonly)


_int, _long, _float, _flag = (_array(kind) for kind in (types.int32, types.int64, types.float64, types.boolean))
_figures: Any = types.UniTuple  # untyped
_ROWS = (_int, _int, _long, _long, _long, _int, _int, _int, _figures(_float, len(FIGURES)), _float)
_MEANING = (_flag, _flag, _array(types.int32, 2), types.int64, _array(types.int64, 2), types.int64)
_LINE = (types.int64, types.int64)
_DEVICES = (_long, _long, _long, _long, _array(types.int64, 2), _array(types.float64, 2))
_SUMS = tuple(
    _array(kind, dimensions, readonly=False)
    for kind, dimensions in [
        (types.int64, 3), (types.int64, 2), (types.int64, 2), (types.float64, 3), (types.float64, 3),
        (types.float64, 3), (types.int32, 2), (types.int32, 2),
        (types.float64, 2), (types.boolean, 2), (types.int64, 1), (types.int64, 2),
        (types.int64, 1), (types.int64, 1), (types.int64, 1), (types.int64, 1), (types.int64, 1),
    ]
)  # fmt: skip


_SIGNATURE = types.void(*_ROWS, *_MEANING, *_LINE, *_DEVICES, *_SUMS)


def _compiled(function: Any) -> Any:
    """As machine code, kept for the next process where there is a place to keep it."""
    try:
        return numba.njit(_SIGNATURE, nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # neither beside this file nor in a folder of the user's own
        return numba.njit(_SIGNATURE, nogil=True, error_model="numpy")(function)


@_compiled
def gather(
    # rows; those without a text have −1 there
    step: Any, endpoint: Any, intended: Any, sent: Any, done: Any, status: Any, error: Any, device: Any,
    figures: Any, own_rows: Any,
    # what they mean: which status is a success and which error none; the group of a step and an endpoint (−1: none) and
    # each group's window: start, end, start of the first slice, length of a slice, slices before the window; its
    # rows of the time line: where they begin, the first slice, how many
    good: Any, clean: Any, table: Any, lowest: int, grids: Any, window: int,
    # the run's time line
    zero_ns: int, line_ns: int,
    # devices: the track of each, where a track's samples are, where to start looking, its period and clock error
    track_of: Any, starts: Any, looking: Any, times: Any, reach: Any, state: Any,
    # sums by group: statuses (whole, inside), counts, figures that are missing, by slice, by latency,
    # by rows of the batch, by time and latency, answered by time, states seen, devices used; joins
    statuses: Any, counts: Any, missing: Any, by_slice: Any, by_latency: Any, by_batch: Any,
    by_time: Any, answered_by_time: Any, seen: Any, used: Any, joins: Any,
    # where the kept figures of each group end, and these
    kept: Any, packed: Any, service: Any, late: Any, late_outside: Any, done_after: Any,
) -> None:  # fmt: skip
    g, of_step, of_endpoint = np.int32(-1), np.int32(-1), np.int32(-2)
    for i in range(step.shape[0]):  # room for each group
        if step[i] != of_step or endpoint[i] != of_endpoint:
            of_step, of_endpoint = step[i], endpoint[i]
            g = table[of_step - lowest, of_endpoint + 1]
        if g >= 0:
            kept[g, 0] += 1
    room = 0
    for group in range(kept.shape[0]):
        mine = kept[group, 0]
        kept[group, :] = room
        room += mine

    at_sample = looking.copy()
    has_own, has_batch, has_compute = own_rows.shape[0] > 0, figures[BATCH].shape[0] > 0, figures[COMPUTE].shape[0] > 0
    per_line = 1.0 / line_ns
    for i in range(step.shape[0]):
        if step[i] != of_step or endpoint[i] != of_endpoint:
            of_step, of_endpoint = step[i], endpoint[i]
            g = table[of_step - lowest, of_endpoint + 1]
        if g < 0:
            continue
        begun, sent_ns, done_ns = intended[i], sent[i], done[i]
        start, end, first, slice_ns, before = grids[g, 0], grids[g, 1], grids[g, 2], grids[g, 3], grids[g, 4]
        was_sent, answered = sent_ns != NEVER, done_ns != NEVER
        ok = good[status[i]] and clean[error[i]] and answered
        within = start <= begun < end
        statuses[g, 0, status[i] + 1] += 1
        used[g, device[i] + 1] = True
        counts[g, 0] += ok
        counts[g, 1] += was_sent
        latency_ms = (done_ns - begun) * 1e-6
        b = BINS
        if ok:
            b = (int(np.float64(latency_ms).view(np.int64)) >> (52 - SPLIT)) - LOWEST
            b = min(max(b, 0), BINS - 1)
            at_line = int((done_ns - zero_ns) * per_line)
            answered_by_time[g, min(max(at_line, 0), answered_by_time.shape[1] - 1)] += 1
            if done_ns >= end:
                done_after[kept[g, 4]] = done_ns
                kept[g, 4] += 1
            elif done_ns >= start:
                counts[g, 4] += 1
        at_line = int((begun - zero_ns) * per_line) - grids[g, 6]
        by_time[grids[g, 5] + min(max(at_line, 0), grids[g, 7] - 1), b] += 1

        # by slice of time
        last, per_slice = before + window, 1.0 / slice_ns
        k = int((begun - first) * per_slice)
        k = min(max(k, before), last - 1) if within else last if begun >= end else max(min(k, before - 1), 0)
        by_slice[g, k, 0] += 1
        if ok:
            by_slice[g, k, 1] += 1
            by_slice[g, k, 2] += latency_ms
            if has_own:
                cost = figures[COMPUTE][i] * own_rows[i] / figures[BATCH][i]
                if not math.isnan(cost):
                    by_slice[g, k, 7] += cost
        # under way from sending to answer: a generator's own backlog is not the endpoint's queue
        if was_sent or answered:
            at = (sent_ns if was_sent else begun) - first
            j = min(max(int(at * per_slice), 0), last)
            by_slice[g, j, 3] += 1
            by_slice[g, j, 4] += at
        if answered:
            at = done_ns - first
            j = min(max(int(at * per_slice), 0), last)
            by_slice[g, j, 5] += 1
            by_slice[g, j, 6] += at

        # each request's own figures
        late_ns, service_ns = sent_ns - begun, done_ns - sent_ns
        if was_sent and not within:
            late_outside[kept[g, 3]] = late_ns
            kept[g, 3] += 1
        if within:
            statuses[g, 1, status[i] + 1] += 1
            counts[g, 2] += 1
            counts[g, 3] += ok
            packed[kept[g, 0]] = (((done_ns - begun) if ok else FAILED) << SLICE_BITS) | (k - before)
            kept[g, 0] += 1
            if was_sent:
                late[kept[g, 2]] = late_ns
                kept[g, 2] += 1
        if within and ok:
            by_latency[g, b, 0] += 1
            by_latency[g, b, 1] += latency_ms
            if was_sent:
                service[kept[g, 1]] = service_ns
                kept[g, 1] += 1
                by_latency[g, b, 2] += service_ns * 1e-6
            else:
                missing[g, 1] += 1
            if has_batch and not math.isnan(figures[BATCH][i]):
                of = min(max(int(figures[BATCH][i]), 0), MOST_ROWS)
                by_batch[g, of, 0] += 1
                if has_compute and not math.isnan(figures[COMPUTE][i]):
                    by_batch[g, of, 1] += 1
                    by_batch[g, of, 2] += figures[COMPUTE][i]
            for f in range(len(figures)):
                if figures[f].shape[0] > 0:
                    value = figures[f][i]
                    if math.isnan(value):
                        missing[g, 2 + f] += 1
                    else:
                        by_latency[g, b, 3 + f] += value

        # the device at the middle of the service, the instant that is never further than half of it from the work
        t = track_of[device[i]]
        if t >= 0 and answered:
            at = sent_ns + ((done_ns - sent_ns) >> 1) if was_sent else done_ns
            j = at_sample[t]
            while j > starts[t] and times[j] >= at:
                j -= 1
            while j < starts[t + 1] - 2 and times[j + 1] < at:
                j += 1
            at_sample[t] = j
            gap_before, gap_after = at - times[j], times[j + 1] - at
            if gap_after < gap_before:
                j += 1
            if abs(times[j] - at) <= reach[t, 0]:
                joins[0] += 1
                joins[1] += abs(gap_after - gap_before) < 2 * reach[t, 1]
                if within:
                    for s in range(seen.shape[1]):
                        seen[g, s] += state[j, s]
