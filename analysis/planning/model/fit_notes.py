"""What else there is to know of a fitted model, as sentences: what was left out, what was borrowed or guessed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tailrate.analysis.planning.model.observed_batches import Observed
from tailrate.analysis.planning.simulator.fleet import Rule, Waking
from tailrate.analysis.stats.array_types import Bools, Floats
from tailrate.analysis.text.words import significant

LOSS = 0.95
"""Of the rate at the best size: below it a larger batch is said to be a loss."""
NO_PAUSE = "no batch began while others waited, so nothing is known of the pause between two batches"


def left_out(seen: Sequence[Observed]) -> list[str]:
    found = []
    if drowned := [one for one in seen if one.overloaded]:
        found.append(f"left out as overloaded: {_rates(drowned)}")
    if doubted := [one for one in seen if one.doubt is not None and not one.overloaded]:
        found.append(f"left out, since {doubted[0].doubt}: {_rates(doubted)}")
    if silent := [one for one in seen if not len(one.batches) and one.doubt is None]:
        found.append(f"left out, as no answer said what its batch took: {_rates(silent)}")
    return found


def _rates(steps: Sequence[Observed]) -> str:
    shown = ", ".join(significant(one.rate) for one in steps[:6])
    return f"{shown}{' …' if len(steps) > 6 else ''}/s"


def no_batches(endpoint: str, seen: Sequence[Observed]) -> str:
    if not seen:
        return f"the runs have no steps of {endpoint}"
    if any(len(one.batches) for one in seen):
        return f"no step of {endpoint} can be trusted: {next(one.doubt for one in seen if one.doubt)}"
    return f"the answers of {endpoint} do not say what their batches took (server-timing), so no model can be fitted"


def driven_beside(steps: Sequence[Observed]) -> list[str]:
    beside = sorted({name for one in steps for name in one.beside})
    taken = "was driven at the same time: what that took of the machine is in the times"
    return [f"{', '.join(beside)} {taken}"] if beside else []


def most_unsaid(most: int) -> str:
    return f"the endpoint does not say how large its batches may be: the largest that was seen had {most} requests"


def taken_rule(shown: Rule | None, *, ours: bool) -> list[str]:
    """Where the batches show no rule, or one that tailrate's own engine does not follow."""
    if shown is None:
        what = "tailrate's own rule is" if ours else "the best rule (all that waits goes at once) is"
        return [f"hardly any request waited in a batch with room left, so {what} taken for granted"]
    if ours and shown not in (Rule.COMPANY, Rule.OPPORTUNISTIC):
        return [f"the batches follow the rule {shown}, although tailrate's own engine does not"]
    return []


def overloaded_only(sizes: Sequence[int]) -> list[str]:
    return [f"batches of {_sizes(sizes)} requests were seen in overloaded steps only"] if sizes else []


def wakes(woken: Waking) -> list[str]:
    if not woken.extra_s:
        return []
    extra, full = (significant(1e3 * seconds) for seconds in (woken.extra_s, woken.full_s))
    return [f"a batch takes up to {extra} ms longer where its replica was idle before, all of that after {full} ms"]


def no_gain(mean_s: Floats, known: Bools) -> list[str]:
    """Batches that cost more than they bring; the engine takes all that waits, whatever that costs."""
    rates = np.where(known, np.arange(len(mean_s)) / np.where(mean_s > 0, mean_s, 1.0), 0.0)
    best, largest = int(np.argmax(rates)), int(np.flatnonzero(known)[-1])
    if rates[largest] > LOSS * rates[best]:
        return []
    return [
        f"batches of {largest} requests do {significant(float(rates[largest]))}/s, batches of {best} "
        f"{significant(float(rates[best]))}/s: with max_batch {best} a replica would take more"
    ]


def guessed(known: Bools) -> list[str]:
    absent = [size for size in range(1, len(known)) if not known[size]]
    if not absent:
        return []
    last = int(np.flatnonzero(known)[-1])
    between = [size for size in absent if size < last]
    beyond = [size for size in absent if size > last]
    found = []
    if between:
        found.append(f"batches of {_sizes(between)} requests were hardly seen: their time is their neighbours'")
    if beyond:
        found.append(
            f"batches of {_sizes(beyond)} requests were never seen: their time is that of a straight line through the "
            f"others, so nothing is known of loads that need them"
        )
    return found


def _sizes(sizes: Sequence[int]) -> str:
    """
    >>> _sizes([2, 3, 4, 7])
    '2–4, 7'
    """
    parts: list[list[int]] = []
    for size in sizes:
        if parts and size == parts[-1][-1] + 1:
            parts[-1].append(size)
        else:
            parts.append([size])
    return ", ".join(f"{part[0]}–{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
