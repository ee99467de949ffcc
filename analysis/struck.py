"""The time of the faults that were injected on purpose: what happened in it is told by `faults`, and judged by nothing.

It begins with the first request that a fault found under way and ends when users were served as before; where nobody
can tell that, a minute after the fault, or ten where they still were not. A fault that only the harness feels takes its
own time alone. Its arrivals stay in every count.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis import words
from analysis.excerpt import read
from analysis.faults import UNFELT
from analysis.records import REQUESTS

if TYPE_CHECKING:
    from analysis.faults import Struck
    from analysis.store import Run

Spans = list[tuple[int, int]]
"""[start, end) in ns, in order and apart."""


def injected(run: Run, endpoint: str | None = None) -> list[Struck]:
    """All of them, or those that one endpoint can have felt."""
    return [one for one in run.struck if one.effect.injected and endpoint in (None, one.effect.endpoint or endpoint)]


def spans(run: Run, endpoint: str | None = None) -> Spans:
    found: Spans = []
    for one in sorted(injected(run, endpoint), key=lambda one: one.start_ns):
        if found and one.start_ns <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], one.end_ns)
        else:
            found.append((one.start_ns, one.end_ns))
    return found


def inside(times_ns: Any, taken: Spans) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.zeros(len(times_ns), dtype=bool)
    for start, end in taken:
        found |= (times_ns >= start) & (times_ns < end)
    return found


def lost_s(taken: Spans, start_ns: int, end_ns: int) -> float:
    """How much of a time they take."""
    return sum(max(0, min(end, end_ns) - max(start, start_ns)) for start, end in taken) / 1e9


def counted(run: Run, endpoint: str) -> tuple[int, int]:
    """(arrivals, failed ones) of an endpoint in that time, settle times aside."""
    n = failed = 0
    mine = [step for step in run.manifest.scenario["steps"] if step["endpoint"] == endpoint]
    for span in spans(run, endpoint):
        rows = run._reading(REQUESTS, partial(read, endpoint=endpoint, steps=mine, span=span))
        n, failed = n + len(rows), failed + rows.errors
    return n, failed


def sentences(run: Run) -> Iterator[str]:
    """What a verdict that leaves them out has to say."""
    known = injected(run)
    if not known:
        return
    seconds = words.significant(sum(end - start for start, end in spans(run)) / 1e9)
    count = len({one.effect.id for one in known})
    names = dict.fromkeys(str(step["endpoint"]) for step in run.manifest.scenario["steps"])
    n, failed = (sum(column) for column in zip(*(counted(run, name) for name in names), strict=True))
    yield (
        f"{seconds} s of {count} planned {'fault' if count == 1 else 'faults'}, in which {words.count(failed)} of "
        f"{words.count(n)} requests failed, are left out of this verdict"
    )
    for one in known:
        if one.effect.endpoint and one.effect.recovered_s is None and one.effect.fault not in UNFELT:
            yield f"when users of {one.effect.endpoint} were served as before after {one.effect.fault} is not known"
