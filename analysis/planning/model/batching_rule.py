"""By which rule an endpoint makes its batches, told from the batches themselves, and what is wrong with the slow ones.

Whoever was received before a batch began and went into a later one, although the batch was not full, was left behind.
The good rules leave nobody behind. Ray's `@serve.batch` does: around a method that awaits it closes a batch when its
wait is over, busy or not, so that batches stay small however many requests queue; around one that blocks, what a full
batch left over closes alone (before Python 3.12, and where nobody is waited for).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailrate.analysis.planning.model.observed_batches import ObservedBatches
from tailrate.analysis.planning.simulator.fleet import Fleet, Routing, Rule, Service
from tailrate.analysis.planning.simulator.queueing_theory import stable_below_rps
from tailrate.analysis.stats.array_types import Bools
from tailrate.analysis.text.words import significant

ENOUGH = 20
LEFT_SHARE = 0.05
"""Of the batches that were not full: more of them than this leave requests behind, or it is chance and clocks."""
LEFTOVER_SHARE = 0.95
"""Of the batches that leave requests behind: so many are leftovers of the one before where a method blocks."""
COSTLY = 0.97
"""A limit that is lower than such a share of what it could be is worth a sentence."""
SURE_S, SURE_SHARE = 0.5e-3, 0.1
"""How far instants may be off: so long, or such a share of a batch's time."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the batches say."""

    rule: Rule | None
    """None: they do not say, since hardly any request ever waited, or every batch was full."""
    partial: int
    """Batches with room left, but for the last of each replica."""
    left: int
    """Those of them that left somebody behind."""
    wait_s: float
    """The batch wait that was seen: how long an idle replica keeps a request."""


def find(batches: ObservedBatches, max_batch: int, wait_s: float | None = None) -> Found:
    """`wait_s` is the batch wait that is declared, `max_batch` the most requests in a batch."""
    slack = slack_s(batches)
    has_next = np.zeros(len(batches), dtype=bool)
    has_next[:-1] = batches.follows[1:]
    # where an answer of a batch is missing, nobody knows how much room it had
    partial = has_next & batches.whole & (batches.requests < max_batch)
    wait = _idle_wait_s(batches, partial, slack) if wait_s is None else wait_s
    left = partial & _left(batches, slack)
    counts = int(partial.sum()), int(left.sum())
    if counts[1] >= ENOUGH and counts[1] > LEFT_SHARE * counts[0]:
        # what a full batch left over had come before that one began; a wait that runs out takes later ones along
        over = np.zeros(len(batches), dtype=bool)
        over[1:] = batches.last_s[1:] <= batches.begun_s[:-1] + slack
        rule = Rule.BLOCKING if (over & batches.follows)[left].mean() >= LEFTOVER_SHARE else Rule.AWAITING
        return Found(rule, *counts, wait)
    # told by those who came while a batch ran, and went into the next one together
    pressed = batches.follows & (batches.first_s < batches.ended_before_s - slack)
    if int((pressed & partial).sum()) < ENOUGH:
        return Found(None, *counts, wait)
    return Found(_patient(batches, partial, wait, slack), *counts, wait)


def slack_s(batches: ObservedBatches) -> float:
    return max(SURE_S, SURE_SHARE * float(np.median(batches.stages_s))) if len(batches) else SURE_S


def _left(batches: ObservedBatches, slack: float) -> Bools:
    """Whether the first of the next batch had come before this one began."""
    found = np.zeros(len(batches), dtype=bool)
    found[:-1] = batches.first_s[1:] < batches.begun_s[:-1] - slack
    return found


def _idle_wait_s(batches: ObservedBatches, partial: Bools, slack: float) -> float:
    """Of those that came alone; where hardly any did, of all, if they waited equally long."""
    idle = batches.follows & (batches.first_s > batches.ended_before_s + slack)
    waits_s = batches.begun_s - batches.first_s
    alone, any_s = waits_s[idle & (batches.requests == 1)], waits_s[idle & partial]
    found = alone if len(alone) >= ENOUGH else any_s
    low, middle, high = np.quantile(found, [0.25, 0.5, 0.75]) if len(found) >= ENOUGH else (0.0, 0.0, 0.0)
    alike = found is alone or high - low <= max(2 * slack, SURE_SHARE * middle)
    return float(middle) if alike and middle > 2 * slack else 0.0


def _patient(batches: ObservedBatches, partial: Bools, wait_s: float, slack: float) -> Rule:
    """Whether a batch of two or more still waits for others, or goes as soon as the second has come."""
    idle = batches.follows & partial & (batches.requests > 1) & (batches.second_s > batches.ended_before_s + slack)
    if wait_s <= 2 * slack or int(idle.sum()) < ENOUGH:
        return Rule.COMPANY
    until_s = np.maximum(batches.first_s, batches.ended_before_s) + wait_s
    since_second = np.abs(batches.begun_s - batches.second_s)[idle]
    since_wait = np.abs(batches.begun_s - until_s)[idle]
    return Rule.COMPANY if float(np.median(since_second)) <= float(np.median(since_wait)) else Rule.OPPORTUNISTIC


# ---- what is wrong with it


def warning(endpoint: str, found: Found, service: Service) -> str | None:
    """One sentence about a rule that wastes the device, or None."""
    how = f"{found.left:,} of {found.partial:,} batches with room left requests behind"
    if found.rule is Rule.BLOCKING:
        return (
            f"{endpoint} runs what a full batch left over as a batch of its own (as Ray's @serve.batch does around a "
            f"method that blocks): {how}, so batches are smaller and P99 is higher than they had to be"
        )
    if found.rule is not Rule.AWAITING:
        return None
    limits = [
        stable_below_rps(Fleet(service, 1, service.max_batch, found.wait_s, rule, Routing.LEAST))
        for rule in (Rule.AWAITING, Rule.COMPANY)
    ]
    costs = (
        f", and a replica keeps up with {significant(limits[0])}/s where batches of all that waits would do "
        f"{significant(limits[1])}/s"
    )
    return (
        f"{endpoint} closes a batch {significant(1e3 * found.wait_s)} ms after its first request although the replica "
        f"is busy (as Ray's @serve.batch does around a method that awaits): {how}"
        + (costs if limits[0] < COSTLY * limits[1] else "")
    )
