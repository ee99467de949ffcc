"""Chapters of a soak whose rows are deleted as it goes on: judged while they are there, as by any report, and kept so.

    python -m tailrate.analysis.verdicts.retired_chapters FOLDER 12 3,4 5,6      (segments below 12, steps of chapters)

A program beside the run, like `compact`, whose work it does first: `chapter-0003.json` says what the steps of a chapter
showed to each objective, what stood in the way of their figures, and what users saw of the faults that were planned in
it. The word that its rows are deleted carries that on. Where it does not, as in older runs, nobody knows whether the
chapter's figures could be trusted: it counts, and nothing can be said for certain.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrate.analysis.counting.counts import Tally
from tailrate.analysis.counting.order_statistics import OrderStatistics
from tailrate.analysis.judging.judge import Window
from tailrate.analysis.judging.share import Count, terms
from tailrate.analysis.records.folder import DEVICES, METRICS, REQUESTS, judged_path, write_atomically
from tailrate.analysis.records.objective import BEFORE_FAULT_S, Slo, looked_for_s
from tailrate.analysis.run.compact import at_leisure, compact
from tailrate.analysis.run.tables import Stored
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.stats.trend import Growth
from tailrate.analysis.steps.measure import MeasuredStep
from tailrate.analysis.steps.step_summary import StepSummary

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

UNKNOWN = "rows of it were deleted, and whether its figures could be trusted was not kept"
BEFORE_NS = round(BEFORE_FAULT_S * 1e9)
NO_LINE = Timeline(0, 1.0, 1)
TIMES = {REQUESTS: "intended_ns", DEVICES: "time_ns", METRICS: "time_ns"}


# ---- before


def remembered(run: Run, chapter: Collection[int]) -> dict[str, Any]:
    """What the judge needs of the steps of a chapter, as JSON; with faults that are held against its end."""
    mine = [step for step in run.manifest.scenario["steps"] if step["index"] in chapter]
    low_ns, high_ns = min(step["start_ns"] for step in mine), max(step["end_ns"] for step in mine) + BEFORE_NS
    near = _near(run, low_ns, high_ns)
    began_ns = {event.get("id"): event.get("start_ns") for event in run.events if event["event"] == "fault"}
    felt = [one for one in near.struck if one.effect.injected and low_ns <= began_ns[one.effect.id] < high_ns]
    left = {(step.summary.index, step.summary.endpoint): step for step in near.calm}
    return {
        "steps": [
            _said(step, left.get((step.summary.index, step.summary.endpoint)), near.manifest.slos)
            for step in near.measured
            if step.summary.index in chapter
        ],
        "faults": [asdict(one) for one in felt],
    }


def _near(run: Run, low_ns: int, high_ns: int) -> Run:
    """The run as far as it bears on that time: with what comes before it, and after it while users may recover."""
    looked_ns = round(looked_for_s(run.manifest.max_recovery_s) * 1e9)
    told = [event for event in run.events if event["event"] == "fault" and event.get("start_ns")]
    lasted = [(int(event["start_ns"]), int(event.get("end_ns") or event["start_ns"]) + looked_ns) for event in told]
    felt = [(start, end) for start, end in lasted if start < high_ns and end > low_ns]
    from_ns = min([low_ns, *(start for start, _ in felt)]) - BEFORE_NS
    until_ns = max([high_ns, *(end for _, end in felt)])
    scenario = run.manifest.scenario
    steps = [step for step in scenario["steps"] if step["end_ns"] > from_ns and step["start_ns"] < until_ns]
    manifest = replace(run.manifest, status="complete", scenario=scenario | {"steps": steps})
    tables = {name: _between(stored, from_ns, until_ns) for name, stored in run.tables.items()}
    return replace(run, manifest=manifest, tables=tables)


def _between(stored: Stored, from_ns: int, until_ns: int) -> Stored:
    spans = ((part, *stored.span(part, TIMES[stored.table])) for part in stored.parts)
    return replace(stored, parts=tuple(part for part, first, last in spans if first < until_ns and last >= from_ns))


def _said(step: MeasuredStep, left: MeasuredStep | None, slos: Sequence[Slo]) -> dict[str, Any]:
    """`left`: without the time of planned faults; None where that is nothing."""
    row, rest = step.summary, left.summary if left else StepSummary()
    windows = [] if left is None else [[slo.as_json(), asdict(w)] for slo, w in zip(slos, left.windows, strict=True)]
    return {
        "index": row.index,
        "endpoint": row.endpoint,
        "in_faults": [row.n - rest.n, row.errors - rest.errors],
        "n": rest.n,
        "ok": rest.ok,
        "trusted": rest.trusted,
        "reasons": [*(rest.reasons or ())][:1],
        "windows": windows,
    }


# ---- afterwards


def retired(run: Run) -> Iterator[MeasuredStep]:
    """The steps without rows, as they were when they had some; of those that were all fault, nothing."""
    gone = {step: event for event in run.events if event["event"] == "retired" for step in event.get("steps") or ()}
    there, kept = {step for step, _ in run.tallies.groups}, defaultdict(list)
    for chapter in run.kept:
        for step in chapter["steps"]:
            kept[step["index"]].append(step)
    for plan in run.manifest.scenario["steps"]:
        if plan["index"] in gone and plan["index"] not in there:
            for step in kept[plan["index"]] or [_forgotten(plan, gone[plan["index"]])]:
                if step["n"] or not step["in_faults"][0]:
                    yield _step(run, plan, step)


def _forgotten(plan: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
    """A step of which nothing is known but how many arrivals its chapter had."""
    known = {"endpoint": plan["endpoint"], "in_faults": [0, 0], "n": event["rows"], "ok": event["totals"].get("ok", 0)}
    return known | {"trusted": False, "reasons": [UNKNOWN], "windows": []}


def _step(run: Run, plan: Mapping[str, Any], said: Mapping[str, Any]) -> MeasuredStep:
    n, ok = said["n"], said["ok"]
    unknown = Window((Count(n, n - ok),), doubts=(UNKNOWN,))
    kept = [(Slo.from_json(slo), _window(one)) for slo, one in said["windows"]]
    windows = tuple(
        next((one for known, one in kept if known == slo), replace(unknown, counts=unknown.counts * len(terms(slo))))
        for slo in run.manifest.slos
    )
    summary = StepSummary(
        index=plan["index"], endpoint=said["endpoint"], block=int(plan.get("block") or 0), n=n, ok=ok, errors=n - ok,
        trusted=said["trusted"], reasons=tuple(said["reasons"]),
    )  # fmt: skip
    overloaded = any(one.overloaded for one in windows)
    return MeasuredStep(
        summary, float(plan["rate"]), int(plan.get("concurrency") or 0), False,
        Tally.empty(plan, run.ended_ns, NO_LINE), OrderStatistics.empty(), Growth(overloaded, 0.0, 1.0), overloaded,
        Window(()), windows,
    )  # fmt: skip


def _window(said: dict[str, Any]) -> Window:
    return Window(**said | {"counts": tuple(Count(**one) for one in said["counts"]), "doubts": tuple(said["doubts"])})


def main(folder: str, until: str, *chapters: str) -> None:
    from tailrate.analysis.verdicts.run import Run

    compact(Path(folder), int(until))
    run = Run.load(folder)
    for chapter in chapters:
        steps = [*map(int, chapter.split(","))]
        write_atomically(judged_path(run.folder, steps[0]), json.dumps(remembered(run, steps)) + "\n")


if __name__ == "__main__":
    at_leisure()
    main(*sys.argv[1:])
