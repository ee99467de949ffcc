"""For how long batches occupy their replica, and what a request spends beside that: the parts of a `Service`.

A batch occupies its replica from its begin to the earliest begin of the next one. That is longer than its stages: the
answers are handed out, and the event loop wants the interpreter, too. How much longer is seen where requests waited all
along, so that the next batch began at once; the stages themselves are from all batches, since long ones are more likely
to have somebody wait behind them. What is left of a request's latency, when occupation and waiting are taken away, is
overhead: network, ingress, and both ends' own work.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from tailrate.analysis.planning.model.observed_batches import Observed, ObservedBatches
from tailrate.analysis.planning.simulator.fleet import AWAKE, Waking
from tailrate.analysis.planning.simulator.simulate import Rule
from tailrate.analysis.stats.array_types import Bools, Floats, Ints

SEEN = 8
"""Batches of a size from which its own mean counts; the time of the others comes from their neighbours."""
OWN_SPREAD = 500
"""Batches of a size from which it has a spread of its own."""
OWN_GAP = 100
"""Pauses behind full batches, and behind others, from which they have a mean of their own."""
SPREAD_POINTS = 512
HOLE_S = 0.010
"""A pause between two batches longer than this, and longer than the batch, hides one that is not in the rows."""


IDLE_S = (0.0, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0)
"""Ends of the ramp that are tried."""
HINGES = 24
"""Numbers of answers that are tried, beyond which more hold up no longer."""
SURE, WORTH = 5.0, 0.03
"""Standard errors, and share of a batch's time, from which waking counts."""


def computed_as(buckets: str, rows: float, most: int) -> Ints:
    """Of each number of requests from 0 to `most`, the rows that a batch of them is padded to; else those it has.

    >>> computed_as("1,4,8", 1, 9).tolist(), computed_as("", 2, 3).tolist()
    ([1, 1, 4, 4, 4, 8, 8, 8, 8, 9], [0, 2, 4, 6])
    """
    held = np.arange(most + 1, dtype=np.float64) * rows
    known = np.unique([int(found[0]) for one in buckets.split(",") if (found := re.match(r"\d+", one.strip()))])
    place = np.searchsorted(known, held)
    return np.where(place < len(known), np.append(known, 0)[place], np.ceil(held)).astype(np.int64)


def by_size(sizes: Ints, values: Floats, most: int, padded: Ints | None = None) -> tuple[Floats, Bools]:
    """Means by size, from 1 to `most`, and which of them were seen; `padded`: what each size is computed as.

    Where a straight line through all sizes is as near to their means as chance allows, and begins at nothing or more,
    it is that line, which is surer than each mean by itself. Else sizes that were not seen take as long as those that
    are padded alike, or lie on the lines between their neighbours, above the last on the straight line's slope, or in
    proportion where there is but one; below the first they take as long as that.
    """
    counts = np.bincount(sizes, minlength=most + 1)[: most + 1]
    known = counts >= min(SEEN, int(counts.max()))
    at = np.flatnonzero(known)
    means, errors = np.array([_mean(values[sizes == size]) for size in at]).T
    every = np.arange(most + 1.0) if padded is None else padded.astype(np.float64)
    steps, step = np.unique(every[at], return_inverse=True)
    levels = np.bincount(step, means / errors**2) / np.bincount(step, 1 / errors**2)
    found: Floats = np.interp(every, steps, levels)
    beyond = every > steps[-1]
    if len(steps) > 1:
        slope, level = np.polyfit(every[at], means, 1, w=1 / errors)
        found[beyond] = levels[-1] + max(0.0, slope) * (every[beyond] - steps[-1])
        found[at] = means
        off = (means - level - slope * every[at]) / errors
        free = len(at) - 2
        if free and slope >= 0 and level >= 0 and off @ off <= free + 2 * math.sqrt(2 * free):
            found = level + slope * every
    else:
        found[beyond] = levels[-1] / steps[-1] * every[beyond]
        found[at] = means
    found[0] = 0.0
    return found, known


def _mean(values: Floats) -> tuple[float, float]:
    """With its standard error, a hundred-thousandth of it at least."""
    mean = float(values.mean())
    spread = float(values.std(ddof=1)) if len(values) > 1 else mean
    return mean, max(spread / math.sqrt(len(values)), 1e-5 * abs(mean), 1e-12)


def pressed(batches: ObservedBatches, most: int, rule: Rule, wait_s: float) -> Bools:
    """Which batches began as soon as their replica was free, since enough of their requests waited already."""
    full = batches.requests >= most
    if wait_s == 0.0:
        ready_s = batches.first_s
    elif rule is Rule.COMPANY:
        ready_s = np.where(most == 1, batches.first_s, batches.second_s)
    elif rule is Rule.AWAITING:
        ready_s = np.where(full, batches.last_s, batches.first_s + wait_s)
    else:
        ready_s = np.where(full, batches.last_s, np.inf)
    return batches.follows & (ready_s < batches.ended_before_s)


def waking(batches: ObservedBatches) -> Waking:
    """What those of the commonest size take longer after idleness, where that is more than chance and worth a word.

    The least squares of a level and a ramp, whose two ends are tried.
    """
    usual = np.bincount(batches.requests).argmax()
    mine = batches.follows & (batches.requests == usual)
    idle_s = batches.idle_s[mine]
    if int(mine.sum()) < 2 * OWN_GAP:
        return AWAKE
    # what took very long had another reason
    took_s = np.minimum(batches.stages_s[mine], np.quantile(batches.stages_s[mine], 0.99))
    best, least = AWAKE, np.inf
    for place, from_s in enumerate(IDLE_S):
        for full_s in IDLE_S[place + 1 :]:
            if not OWN_GAP <= int((idle_s > (from_s + full_s) / 2).sum()) <= len(idle_s) - OWN_GAP:
                continue
            ramp = Waking(from_s, full_s, 1.0).after(idle_s)
            ramp -= ramp.mean()
            extra_s = float(ramp @ took_s / (ramp @ ramp))
            left = took_s - took_s.mean() - extra_s * ramp
            error_s = math.sqrt(float(left @ left) / len(left) / float(ramp @ ramp))
            if float(left @ left) < least and extra_s > max(SURE * error_s, WORTH * float(took_s.mean())):
                best, least = Waking(from_s, full_s, extra_s), float(left @ left)
    return best


def telling(batches: ObservedBatches, forced: Bools, padded: Ints) -> Floats:
    """By how much the answers of a batch of each size make one longer that begins as soon as that is done.

    In proportion to their number up to some, and no more beyond: a thread that wants the interpreter gets it after a
    while. The least squares over batches that are computed alike, with their own requests beside.
    """
    mine = forced & batches.follows
    nothing_s = np.zeros(len(padded))
    if int(mine.sum()) < 2 * OWN_GAP:
        return nothing_s
    _, kind = np.unique(padded[batches.requests[mine]], return_inverse=True)
    counts = np.bincount(kind)
    took_s = np.minimum(batches.stages_s[mine], np.quantile(batches.stages_s[mine], 0.99))

    def within(values: Floats) -> Floats:
        return values - (np.bincount(kind, values) / counts)[kind]

    own, late_s, all_told = within(batches.requests[mine].astype(np.float64)), within(took_s), _before(batches)[mine]
    best, least = nothing_s, np.inf
    for most in np.unique(np.geomspace(1, len(padded) - 1, HINGES).round()):
        told = np.minimum(all_told, most)
        before = within(told)
        before -= own * (float(before @ own) / max(float(own @ own), 1e-12))
        if not (weight := float(before @ before)):
            continue
        found_s = float(before @ late_s) / weight
        left = late_s - found_s * before
        error_s = math.sqrt(float(left @ left) / len(left) / weight)
        worth = found_s > SURE * error_s and found_s * float(told.mean()) > WORTH * float(took_s.mean())
        if worth and float(left @ left) < least:
            best, least = found_s * np.minimum(np.arange(len(padded)), most), float(left @ left)
    return best


def behind_s(batches: ObservedBatches, gap_s: Floats, telling_s: Floats) -> Floats:
    """What of each batch's stages is longer than behind one as large as itself; `gap_s` is no idleness."""
    before = _before(batches)
    idle_s = np.maximum(0.0, batches.idle_s - gap_s[before])
    found: Floats = np.maximum(0.0, telling_s[before] - idle_s) - telling_s[batches.requests]
    return np.where(batches.follows, found, 0.0)


def _before(batches: ObservedBatches) -> Ints:
    """Requests of the one before."""
    return np.concatenate([[0], batches.requests[:-1]])


def gaps(batches: ObservedBatches, forced: Bools, padded: Ints) -> tuple[Floats, bool]:
    """By size: from the end of a batch's compute to the begin of the next, where that was waiting.

    Below 0 where copies of a full batch overlap with the compute of the one before.
    """
    most = len(padded) - 1
    gap_s = (batches.begun_s - batches.ended_before_s)[1:]
    length_s, sizes = batches.stages_s[:-1], batches.requests[:-1]
    seen = forced[1:] & (np.abs(gap_s) < np.maximum(HOLE_S, length_s))
    if not seen.any():
        return np.zeros(most + 1), False
    found = np.full(most + 1, gap_s[seen & _usual(gap_s, seen)].mean())
    part, full = seen & (sizes < most), seen & (sizes >= most)
    if int(part.sum()) >= OWN_GAP:
        part &= _usual(gap_s, part)
        found[:most] = by_size(sizes[part], gap_s[part], most, padded)[0][:most]
    if int(full.sum()) >= OWN_GAP:
        found[most] = gap_s[full & _usual(gap_s, full)].mean()
    return found, True


def _usual(values: Floats, which: Bools) -> Bools:
    """Without the twentieth at each end of these, where clocks and ways of a noisy machine are what is measured."""
    low, high = np.quantile(values[which], (0.05, 0.95))
    found: Bools = (values >= low) & (values <= high)
    return found


def spread(sizes: Ints, multipliers: Floats, most: int) -> tuple[Floats, Ints]:
    """A row of quantiles for each size that was seen often, and before them one for all others."""
    often = np.flatnonzero(np.bincount(sizes, minlength=most + 1) >= OWN_SPREAD)
    rows = [grid(multipliers, SPREAD_POINTS)] + [grid(multipliers[sizes == size], SPREAD_POINTS) for size in often]
    which = np.zeros(most + 1, dtype=np.int64)
    which[often] = np.arange(1, len(often) + 1)
    return np.array([row / row.mean() for row in rows]), which


def overhead(
    steps: Sequence[Observed], gap_s: Floats, most: int, rule: Rule, wait_s: float
) -> tuple[Floats, Ints, Floats, float]:
    """What occupation and waiting do not explain of each latency, the sizes of their batches; and lone latencies.

    Last for how long an idle replica that waits for nobody takes others along; elsewhere that is in the first.
    """
    forced = [pressed(step.batches, most, rule, wait_s) for step in steps]
    late_s = [step.batches.begun_s - _due_s(step.batches, gap_s, most, rule, wait_s) for step in steps]
    # a replica that was idle takes a moment to wake, and what comes behind it in a rush is as much later
    idle = [step.batches.follows & ~own for step, own in zip(steps, forced, strict=True)]
    woken_s = np.concatenate([late[own] for late, own in zip(late_s, idle, strict=True)])
    usual_s = max(0.0, float(np.median(woken_s))) if len(woken_s) >= SEEN else 0.0
    wake_s = usual_s if wait_s == 0.0 and rule in (Rule.OPPORTUNISTIC, Rule.COMPANY) else 0.0
    left, alone = [], []
    for step, late, own in zip(steps, late_s, idle, strict=True):
        batches = step.batches
        waking_s = np.where(own, np.clip(late, 0.0, HOLE_S), usual_s) - wake_s
        occupied_s = batches.stages_s + gap_s[batches.requests]
        left.append(step.answered_s - step.queued_s - (occupied_s - waking_s)[step.batch])
        lone = own & (batches.requests == 1) & (batches.first_s > batches.ended_before_s)
        alone.append(step.answered_s[lone[step.batch]])
    sizes = np.concatenate([step.batches.requests[step.batch] for step in steps])
    return np.concatenate(left), sizes, np.concatenate(alone), wake_s


def _due_s(batches: ObservedBatches, gap_s: Floats, most: int, rule: Rule, wait_s: float) -> Floats:
    """When the rule would have begun each batch, had the replica been awake."""
    free_s: Floats = np.concatenate([[-np.inf], (batches.ended_before_s[1:] + gap_s[batches.requests[:-1]])])
    full_s = np.where(batches.requests >= most, batches.last_s, np.inf)
    ready_s = np.maximum(free_s, batches.first_s)
    enough_s = np.minimum(full_s, batches.second_s) if rule is Rule.COMPANY else full_s
    since_s = batches.first_s if rule is Rule.AWAITING else ready_s
    due_s: Floats = np.maximum(ready_s, np.minimum(since_s + wait_s, enough_s))
    return due_s


def grid(values: Floats, points: int) -> Floats:
    """Quantiles in the middle of as many equal shares."""
    found: Floats = np.quantile(values, (np.arange(points) + 0.5) / points)
    return found
