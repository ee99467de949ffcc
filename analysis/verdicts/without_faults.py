"""The steps as the objective is held against them: without the time of the faults that were injected on purpose.

A step that no fault touched is as it was measured. Of one that was, what is left is judged by the same rules, and P99
has no interval. Only the verdict, its sentence and the risks look here: rows of the report, capacities and comparisons
are of whole steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.counting.counts import Grid, Tally
from tailrate.analysis.counting.slices import Said, counted
from tailrate.analysis.counting.slices import slices as by_label
from tailrate.analysis.counting.steadiness import Steadiness, steadiness
from tailrate.analysis.judging.judge import Window
from tailrate.analysis.judging.judge import answers as judged
from tailrate.analysis.judging.share import Count, all_of
from tailrate.analysis.judging.trust import doubts, lateness, overload
from tailrate.analysis.records.folder import REQUESTS
from tailrate.analysis.run.bins import NEVER
from tailrate.analysis.run.window import Excerpt, read
from tailrate.analysis.stats import trend
from tailrate.analysis.stats.array_types import Bools
from tailrate.analysis.stats.sketch import SLICES
from tailrate.analysis.stats.trend import Growth
from tailrate.analysis.steps import by_rate
from tailrate.analysis.steps.by_rate import level
from tailrate.analysis.steps.fault_windows import Spans, injected, inside, lost_s, spans
from tailrate.analysis.steps.faults import reach
from tailrate.analysis.steps.step_evidence import cpu_pct, growth_of
from tailrate.analysis.steps.step_summary import StepSummary
from tailrate.analysis.text import words
from tailrate.analysis.verdicts.retired_chapters import retired

if TYPE_CHECKING:
    from tailrate.analysis.steps.measure import MeasuredStep
    from tailrate.analysis.verdicts.run import Run

NOTHING = "planned faults left no time in which it could be judged"


def calm(run: Run) -> list[MeasuredStep]:
    """First those whose rows were deleted. A step of which faults left nothing is empty, or left out where its endpoint
    has another at the same load."""
    gone, left = [*retired(run)], [(step, _left(run, step)) for step in run.measured]
    judged = {(step.summary.endpoint, level(step)) for step in (*gone, *(rest for _, rest in left if rest))}
    kept = (rest or _emptied(step) for step, rest in left if rest or (step.summary.endpoint, level(step)) not in judged)
    return [*gone, *kept]


def _emptied(step: MeasuredStep) -> MeasuredStep:
    row = step.summary
    windows = tuple(Window(tuple(Count(0, 0) for _ in one.counts), doubts=(NOTHING,)) for one in step.windows)
    summary = StepSummary(row.index, row.endpoint, row.block, reasons=(NOTHING,))
    return replace(step, summary=summary, overloaded=False, showed=Window((), doubts=(NOTHING,)), windows=windows)


def _left(run: Run, step: MeasuredStep) -> MeasuredStep | None:
    row, window = step.summary, (step.start_ns, step.end_ns)
    faults = spans(run, row.endpoint)
    taken = [span for span in faults if span[0] < window[1] and span[1] > window[0]]
    if not taken or not row.n:
        return step
    plan = next(plan for plan in run.manifest.scenario["steps"] if plan["index"] == row.index)
    whole = _answerable(run, row.endpoint, window)
    rows = whole.where(~inside(whole.intended_ns, taken) & (whole.intended_ns >= window[0]) & (whole.step == row.index))
    gone_s = lost_s(taken, *window)
    seconds = (window[1] - window[0]) / 1e9 - gone_s
    if not len(rows) or seconds <= 0:
        return None
    totals, latency_ms = rows.totals(), np.where(rows.ok, rows.latency_ms, np.inf)
    untouched = _untouched(step.tally.grid, faults)
    growth = growth_of(step.tally, step.streams, untouched)
    later_ms = float(rows.latency_ms[rows.ok].mean()) if rows.ok.any() else math.inf
    given_up = totals["timed_out"] + totals["dropped"]
    overloaded = overload(growth, len(rows), given_up, totals["dropped"], step.tally.early_ms(), later_ms)
    steady, unsteady = (Steadiness(), "") if overloaded else _steadiness(step.tally, untouched, growth)
    why = _doubts(run, step, plan, len(rows), 0 if overloaded else totals["dropped"])
    late = _late(step, rows)
    showed = Window((), overloaded, late, why, steady.flatters, unsteady)
    slos = run.manifest.slos
    said = Said.of(rows, step.tally.grid, seconds, slos)
    parts = by_label(rows, step.tally.grid, seconds, slos) if run.manifest.labelled else {}
    windows = tuple(replace(showed, counts=counted(parts, slo) if slo.slice else said.to(slo)) for slo in slos)
    answers = [answer for slo, one in zip(slos, windows, strict=True) for answer in judged(slo, [one])]
    against = dict.fromkeys(answer.sentence for answer in answers if answer.kept is not True)
    reasons = dict.fromkeys([*filter(None, [late]), *why, *against, *filter(None, [unsteady])])
    without = f" ({words.significant(gone_s)} s of planned faults left out)"
    done = whole.ok & (whole.done_ns >= window[0]) & (whole.done_ns < window[1]) & ~inside(whole.done_ns, taken)
    summary = replace(
        row,
        n=len(rows),
        ok=totals["ok"],
        errors=rows.errors,
        dropped=totals["dropped"],
        offered_rps=len(rows) / seconds,
        achieved_rps=int(done.sum()) / seconds,
        p99_ms=trend.percentile(latency_ms, 99),
        p99_low_ms=None,
        p99_high_ms=None,
        slo=all_of(answer.kept for answer in answers) if answers else None,
        trusted=not (why or late),
        steady=False if overloaded else steady.steady,
        drift_pct=steady.drift_pct,
        reasons=tuple(f"{sentence}{without}" for sentence in reasons),
    )
    return replace(step, summary=summary, growth=growth, overloaded=bool(overloaded), showed=showed, windows=windows)


def _answerable(run: Run, endpoint: str, window: tuple[int, int]) -> Excerpt:
    """Whatever step's arrivals, settle times too, that can have been answered in a window."""
    plans = [{**plan, "settle_s": 0.0} for plan in run.manifest.scenario["steps"]]
    first_ns = window[0] - round(float(run.manifest.scenario.get("timeout_s") or 0.0) * 1e9)
    return run.reading(REQUESTS, partial(read, endpoint=endpoint, steps=plans, span=(first_ns, window[1]), tokens=True))


def _steadiness(tally: Tally, untouched: Bools, growth: Growth) -> tuple[Steadiness, str]:
    """Of the rest, drawn out to the length of the window; and how it was not steady."""
    before, slice_ns = tally.grid.before, tally.grid.slice_ns
    rest = before + np.flatnonzero(untouched[before:])
    if not len(rest):
        return Steadiness(), ""
    drawn = np.concatenate([np.arange(before), rest[np.arange(SLICES) * len(rest) // SLICES], [before + SLICES]])
    found = steadiness(replace(tally, by_slice=tally.by_slice[drawn]), growth)
    if found.settled_s is not None:
        found = replace(found, settled_s=float(drawn[int(found.settled_s * 1e9 / slice_ns)] * slice_ns / 1e9))
    how = found.sentence(tally)
    return found, f"not steady: {how}" if how else ""


def _late(step: MeasuredStep, rows: Excerpt) -> str:
    late_ms, limit_ms = (rows.sent_ns - rows.intended_ns)[rows.sent_ns != NEVER] / 1e6, step.order.late_limit_ms
    return lateness(trend.percentile(late_ms, 99), int((late_ms > limit_ms).sum()), limit_ms)


def _doubts(run: Run, step: MeasuredStep, plan: Mapping[str, Any], n: int, dropped: int) -> tuple[str, ...]:
    found = doubts(dropped, n, None, cpu_pct(run, plan))
    check, offered_rps = run.manifest.extra.get("self_check"), step.summary.offered_rps or 0.0
    found += by_rate.beyond(check, offered_rps, bool(step.concurrency))
    if _crew_shrank(run, step.summary.index):
        found.append("a load process was lost, and its share of the arrivals with it")
    return tuple(found)


def _untouched(grid: Grid, taken: Spans) -> Bools:
    """The slices of a step, settle time first, that have no part in these."""
    starts = grid.first_ns + np.arange(grid.before + SLICES, dtype=np.int64) * grid.slice_ns
    found: Bools = np.ones(len(starts), dtype=np.bool_)
    for start, end in taken:
        found &= (starts >= end) | (starts + grid.slice_ns <= start)
    return found


def _crew_shrank(run: Run, index: int) -> bool:
    """A load process was lost in this step, and nobody had planned that."""
    kills = [one.start_ns for one in injected(run) if reach(one.effect.fault).load]
    lost = [event for event in run.events if event["event"] == "worker_lost" and index in (event.get("steps") or ())]
    return any(not any(at <= event.get("time_ns", 0) for at in kills) for event in lost)
