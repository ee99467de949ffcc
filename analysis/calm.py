"""The steps as the objective is held against them: without the time of the faults that were injected on purpose.

A step that no fault touched is as it was measured. Of one that was, what is left is judged by the same rules from its
rows; whether that was steady is not asked, and P99 has no interval. Only the verdict, its sentence and the risks look
here: rows of the report, capacities and comparisons are of whole steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import stats, verdict, words
from analysis.excerpt import Excerpt, read
from analysis.faults import LOAD_KILLED
from analysis.layout import NEVER
from analysis.records import REQUESTS
from analysis.steps import cpu_pct
from analysis.struck import Spans, injected, inside, lost_s, spans

if TYPE_CHECKING:
    from analysis.steps import MeasuredStep
    from analysis.store import Run


def calm(run: Run) -> list[MeasuredStep]:
    """All but those of which faults left nothing."""
    return [left for step in run.measured if (left := _left(run, step)) is not None]


def _left(run: Run, step: MeasuredStep) -> MeasuredStep | None:
    row, window = step.summary, (step.start_ns, step.end_ns)
    taken = [span for span in spans(run, row.endpoint) if span[0] < window[1] and span[1] > window[0]]
    if not taken or not row.n:
        return step
    plan = next(plan for plan in run.manifest.scenario["steps"] if plan["index"] == row.index)
    whole = run._reading(REQUESTS, partial(read, endpoint=row.endpoint, steps=[plan], span=window))
    rows = whole.where(~inside(whole.intended_ns, taken))
    gone_s = lost_s(taken, *window)
    seconds = (window[1] - window[0]) / 1e9 - gone_s
    if not len(rows) or seconds <= 0:
        return None
    counts, latency_ms = rows.totals(), np.where(rows.ok, rows.latency_ms, np.inf)
    growth = stats.queue_growth(_in_flight(step, taken), seconds, len(rows))
    overloaded = verdict.is_overloaded(growth, (counts["timed_out"] + counts["dropped"]) / len(rows))
    doubts = _doubts(run, step, plan, rows, 0.0 if overloaded else counts["dropped"] / len(rows))
    sample, achieved_rps = _sample(run, latency_ms, rows.errors, overloaded), counts["ok"] / seconds
    at_rate = not verdict.is_rising(run)
    answers = [verdict.meets(slo, sample, achieved_rps, step.rate, at_rate=at_rate) for slo in run.manifest.slos]
    against = [sentence for _, sentences in answers for sentence in sentences] or ["the queue grew"] * overloaded
    met = tuple(answer for answer, _ in answers)
    said = f" ({words.significant(gone_s)} s of planned faults left out)"
    summary = replace(
        row,
        n=len(rows),
        ok=counts["ok"],
        errors=rows.errors,
        dropped=counts["dropped"],
        offered_rps=len(rows) / seconds,
        achieved_rps=achieved_rps,
        p99_ms=stats.percentile(latency_ms, 99),
        p99_low_ms=None,
        p99_high_ms=None,
        slo=verdict.all_of(met) if met else None,
        trusted=not doubts,
        steady=None,
        reasons=tuple(f"{sentence}{said}" for sentence in dict.fromkeys([*doubts, *against])),
    )
    return replace(step, summary=summary, growth=growth, overloaded=overloaded, met=met)


def _doubts(run: Run, step: MeasuredStep, plan: Mapping[str, Any], rows: Excerpt, unsent: float) -> list[str]:
    late_ms = (rows.sent_ns - rows.intended_ns)[rows.sent_ns != NEVER] / 1e6
    limit_ms = step.order.late_limit_ms
    p99_ms = stats.percentile(late_ms, 99) if len(late_ms) else 0.0
    found = verdict.doubts(p99_ms, int((late_ms > limit_ms).sum()), limit_ms, unsent, cpu_pct(run, plan))
    check, offered_rps = run.manifest.extra.get("self_check"), step.summary.offered_rps or 0.0
    found += verdict.beyond(check, offered_rps, bool(step.concurrency))
    if _crew_shrank(run, step.summary.index):
        found.append("a load process was lost, and its share of the arrivals with it")
    return found


def _in_flight(step: MeasuredStep, taken: Spans) -> stats.Floats:
    grid = step.tally.grid
    level = step.tally.in_flight()[grid.before :]
    middles = grid.start_ns + np.arange(len(level), dtype=np.int64) * grid.slice_ns + grid.slice_ns // 2
    return level[~inside(middles, taken)]


def _sample(run: Run, latency_ms: stats.Floats, failed: int, overloaded: bool) -> verdict.Sample:
    bounds = [(slo.percentile, slo.latency_ms) for slo in run.manifest.slos if slo.percentile and slo.latency_ms]
    percentiles = {percent: stats.percentile(latency_ms, percent) for percent, _ in bounds}
    over = {bound: int((latency_ms > bound[1]).sum()) for bound in bounds}
    return verdict.Sample(len(latency_ms), failed, percentiles, over, overloaded)


def _crew_shrank(run: Run, index: int) -> bool:
    """A load process was lost in this step, and nobody had planned that."""
    kills = [one.start_ns for one in injected(run) if one.effect.fault == LOAD_KILLED]
    lost = [event for event in run.events if event["event"] == "worker_lost" and index in (event.get("steps") or ())]
    return any(not any(at <= event.get("time_ns", 0) for at in kills) for event in lost)
