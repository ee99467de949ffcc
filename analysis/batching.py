"""By which rule an endpoint makes its batches, told from the batches themselves, and what is wrong with the slow ones.

Whoever was received before a batch began and went into a later one, although the batch was not full, was left behind.
The good rules leave nobody behind. Ray's `@serve.batch` does: around a method that awaits it closes a batch when its
wait is over, busy or not, so that batches stay small however many requests queue; around one that blocks, what a full
batch left over closes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.batches import Batches, Bools
from analysis.simulate import Rule, Service
from analysis.stats import Floats
from analysis.words import significant

ENOUGH = 20
LEFT_SHARE = 0.05
"""Of the batches that were not full: more of them than this leave requests behind, or it is chance and clocks."""
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
    """The batch wait that was seen: how long a lone request is kept by an idle replica."""


def find(batches: Batches, max_batch: int, wait_s: float | None = None) -> Found:
    """`wait_s` is the batch wait that is declared, `max_batch` the most requests in a batch."""
    slack = slack_s(batches)
    seen_s = _idle_wait_s(batches, slack)
    wait = seen_s if wait_s is None else wait_s
    has_next = np.zeros(len(batches), dtype=bool)
    has_next[:-1] = batches.follows[1:]
    # where an answer of a batch is missing, nobody knows how much room it had
    partial = has_next & batches.whole & (batches.requests < max_batch)
    left = partial & _left(batches, slack)
    counts = int(partial.sum()), int(left.sum())
    if counts[1] >= ENOUGH and counts[1] > LEFT_SHARE * counts[0]:
        after_full = np.zeros(len(batches), dtype=bool)
        after_full[1:] = ~batches.whole[:-1] | (batches.requests[:-1] >= max_batch)
        rule = Rule.BLOCKING if (after_full & batches.follows)[left].mean() > 0.5 else Rule.AWAITING
        return Found(rule, *counts, wait)
    # told by those who came while a batch ran, and went into the next one together
    pressed = batches.follows & (batches.first_s < batches.ended_before_s - slack)
    if int((pressed & partial).sum()) < ENOUGH:
        return Found(None, *counts, wait)
    return Found(_patient(batches, partial, wait, slack), *counts, wait)


def slack_s(batches: Batches) -> float:
    return max(SURE_S, SURE_SHARE * float(np.median(batches.stages_s))) if len(batches) else SURE_S


def _left(batches: Batches, slack: float) -> Bools:
    """Whether the first of the next batch had come before this one began."""
    found = np.zeros(len(batches), dtype=bool)
    found[:-1] = batches.first_s[1:] < batches.begun_s[:-1] - slack
    return found


def _idle_wait_s(batches: Batches, slack: float) -> float:
    alone = batches.follows & (batches.requests == 1) & (batches.first_s > batches.ended_before_s + slack)
    waits = (batches.begun_s - batches.first_s)[alone]
    median = float(np.median(waits)) if len(waits) >= ENOUGH else 0.0
    return median if median > 2 * slack else 0.0


def _patient(batches: Batches, partial: Bools, wait_s: float, slack: float) -> Rule:
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
    most, could = awaiting_limit_rps(service, found.wait_s), service.limit_rps
    return (
        f"{endpoint} closes a batch {significant(1e3 * found.wait_s)} ms after its first request although the replica "
        f"is busy (as Ray's @serve.batch does around a method that awaits): {how}, and a replica keeps up with "
        f"{significant(most)}/s where batches of all that waits would do {significant(could)}/s"
    )


def awaiting_limit_rps(service: Service, wait_s: float) -> float:
    """Where λ·S(n̄) reaches n̄ = min(B, 1 + λW): beyond it the queue of small batches grows without bound."""
    rates = np.linspace(0, service.limit_rps, 2001)[1:]
    size: Floats = np.minimum(service.max_batch, 1 + rates * wait_s)
    time_s = np.interp(size, np.arange(1, service.max_batch + 1), service.mean_s[1:])
    stable = rates * time_s < size
    return float(rates[-1] if stable.all() else rates[max(0, int(np.argmin(stable)) - 1)])
