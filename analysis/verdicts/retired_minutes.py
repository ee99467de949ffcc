"""Minutes of a soak whose rows were deleted as it went on: what is left of them for the judge.

A minute says how many of its arrivals were beyond each limit, and what they are worth. One of an older run says only
how many failed, and two percentiles: then there is a least and a most number, and an objective is answered only where
both say the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tailrate.analysis.judging.judge import Window
from tailrate.analysis.judging.share import Count, Term, terms
from tailrate.analysis.records.objective import Slo

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

Minute = Mapping[str, Any]


def minutes(run: Run, endpoint: str) -> list[Minute]:
    """Those of an endpoint that lie in steps without rows."""
    told = {step for event in run.events if event["event"] == "retired" for step in event.get("steps") or ()}
    spans = [
        (step["start_ns"], step["end_ns"])
        for step in run.manifest.scenario["steps"]
        if step["index"] in told and not run.tallies.of(int(step["index"]))
    ]
    return [
        event
        for event in run.events
        if event["event"] == "minute" and event.get("endpoint") == endpoint and event.get("n")
        if any(start <= event["start_ns"] < end for start, end in spans)
    ]


UNSLICED = "its first minutes are counted as a whole, and their rows, which said their slices, were deleted"

Bounds = tuple[tuple[Window, ...], tuple[Window, ...]]


def windows(found: Sequence[Minute], slo: Slo) -> Bounds:
    """Each minute as a window, with the fewest beyond the limits that there can have been, and with the most."""
    if slo.slice and found:
        unknown = (Window(tuple(Count(1, 0) for _ in terms(slo)), doubts=(UNSLICED,)),)
        return unknown, unknown
    least, most = (
        tuple(Window(tuple(_count(one, term, end) for term in terms(slo))) for one in found) for end in (False, True)
    )
    return least, most


def _count(minute: Minute, term: Term, most: bool) -> Count:
    n, seconds = int(minute["n"]), (minute["end_ns"] - minute["start_ns"]) / 1e9
    if told := _told(minute, term):
        beyond, worth = told
        return Count(n, beyond, n / max(1.0, worth), seconds)
    beyond = _bound(minute, term, most)
    return Count(n, beyond, max(1.0, beyond), seconds, "all of them at once, as it is not known how they came")


def _told(minute: Minute, term: Term) -> tuple[int, float] | None:
    limit = None if math.isinf(term.limit_ms) else term.limit_ms
    asked = (limit, term.figure, [list(each) for each in term.joint])
    if term.joint:
        asked = (None, "", asked[2])
    rows = [
        row
        for row in minute.get("counts") or ()
        if (row.get("limit_ms"), row.get("figure", ""), row.get("joint", [])) == asked
    ]
    return (int(rows[0]["beyond"]), float(rows[0]["worth"])) if rows else None


def _bound(minute: Minute, term: Term, most: bool) -> int:
    n = int(minute["n"])
    failed = n - int(minute.get("ok") or 0)
    if math.isinf(term.limit_ms) and not term.joint:
        return failed
    if term.figure:
        return n if most else failed
    within = n - failed if most else 0
    beyond = failed
    for share, name in ((0.5, "p50_ms"), (0.99, "p99_ms")):
        value = minute.get(name)
        above = math.floor((n - 1) * (1 - share))  # of n ordered ones, so many lie behind this one
        if value is not None and value <= term.limit_ms:
            within = min(within, max(0, above - failed))
        elif value is None or value > term.limit_ms:
            beyond = max(beyond, above + 1)
    return min(n, failed + within) if most else beyond
