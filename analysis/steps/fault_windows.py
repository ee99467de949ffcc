"""The time of the faults that were injected on purpose: what happened in it is told by `faults`, and judged here alone.

It begins with the first request that a fault found under way and ends when users were served as before, at the latest
so long after the fault as a recovery may take. A fault that only the harness feels takes its own time alone. Its
arrivals stay in every count. Judged is that users are served as before in time, and how many failed until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tailrate.analysis.judging.judge import Judgement
from tailrate.analysis.judging.share import percent
from tailrate.analysis.records.folder import REQUESTS
from tailrate.analysis.run.window import read
from tailrate.analysis.steps.fault_effects import UNKNOWN, UNRECOVERED
from tailrate.analysis.steps.faults import reach
from tailrate.analysis.text import words

if TYPE_CHECKING:
    from tailrate.analysis.steps.fault_effects import FaultEffect, Struck
    from tailrate.analysis.steps.measured_run import MeasuredRun

Spans = list[tuple[int, int]]
"""[start, end) in ns, in order and apart."""


def injected(run: MeasuredRun, endpoint: str | None = None) -> list[Struck]:
    """All of them, or those that one endpoint can have felt."""
    return [one for one in run.struck if one.effect.injected and endpoint in (None, one.effect.endpoint or endpoint)]


def spans(run: MeasuredRun, endpoint: str | None = None) -> Spans:
    return joined((one.start_ns, one.end_ns) for one in injected(run, endpoint))


def joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """Those that meet or overlap as one."""
    found: Spans = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def inside(times_ns: Any, taken: Spans) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.zeros(len(times_ns), dtype=bool)
    for start, end in taken:
        found |= (times_ns >= start) & (times_ns < end)
    return found


def lost_s(taken: Spans, start_ns: int, end_ns: int) -> float:
    """How much of a time they take."""
    return sum(max(0, min(end, end_ns) - max(start, start_ns)) for start, end in taken) / 1e9


def counted(run: MeasuredRun, endpoint: str) -> tuple[int, int]:
    """(arrivals, failed ones) of an endpoint in that time, settle times aside."""
    kept = [step["in_faults"] for chapter in run.kept for step in chapter["steps"] if step["endpoint"] == endpoint]
    n, failed = (sum(each[place] for each in kept) for place in (0, 1))
    mine = [step for step in run.manifest.scenario["steps"] if step["endpoint"] == endpoint]
    for span in spans(run, endpoint):
        rows = run.reading(REQUESTS, partial(read, endpoint=endpoint, steps=mine, span=span))
        n, failed = n + len(rows), failed + rows.errors
    return n, failed


def _felt(run: MeasuredRun) -> Iterator[tuple[FaultEffect, bool]]:
    """What an endpoint can have felt, and whether the next fault is held against the same time before, and so tells."""
    found = [one.effect for one in injected(run) if one.effect.endpoint and reach(one.effect.fault).endpoint]
    for number, one in enumerate(found):
        later = next((other for other in found[number + 1 :] if other.endpoint == one.endpoint), None)
        yield one, one.why == UNRECOVERED and later is not None and later.why != UNKNOWN


def answers(run: MeasuredRun) -> Iterator[Judgement]:
    """Whether users of each endpoint were served as before in time, after each fault that they can have felt."""
    may_fail = run.manifest.max_failed
    for one, told_by_next in _felt(run):
        may_take = f"{one.max_recovery_s:g} s"
        said = f"{one.endpoint}: users were not served as before within {may_take} of the end of {one.fault}"
        if one.healed is False:
            late = one.recovered_s is not None
            after = f"; it took {words.significant((one.recovered_s or 0.0) - (one.seconds or 0.0))} s" if late else ""
            yield Judgement(False, said + after)
        elif one.why == UNRECOVERED and not told_by_next:
            yield Judgement(None, f"{said}, as far as is known: the next fault or the end came before that")
        elif one.why == UNKNOWN and not run.manifest.slos:  # an objective is held against what comes later
            yield Judgement(None, f"{one.endpoint}: {one.why} after {one.fault}")
        if one.errors > may_fail * one.n:
            share = f"{percent(one.errors / one.n)} of {words.count(one.n)} requests"
            yield Judgement(
                False,
                f"{one.endpoint}: {share} failed from {one.fault} until users were served as before, where "
                f"{percent(may_fail)} may",
            )


def sentences(run: MeasuredRun) -> Iterator[str]:
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
    for one, told_by_next in _felt(run):
        if one.why and one.healed is None and not told_by_next:
            yield f"when users of {one.endpoint} were served as before after {one.fault} is not known"
