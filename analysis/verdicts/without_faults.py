"""The steps as the objective is held against them: without the time of the faults that were injected on purpose.

A step that no fault touched is as it was measured. Of one that was, what is left is judged by the same rules from its
rows; whether that was steady is not asked, and P99 has no interval. Only the verdict, its sentence and the risks look
here: rows of the report, capacities and comparisons are of whole steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tailrate.analysis.counting.slices import Said, counted
from tailrate.analysis.counting.slices import slices as by_label
from tailrate.analysis.judging.judge import Window
from tailrate.analysis.judging.judge import answers as judged
from tailrate.analysis.judging.share import all_of
from tailrate.analysis.judging.trust import doubts, lateness, queue_filled
from tailrate.analysis.records.folder import REQUESTS
from tailrate.analysis.run.bins import NEVER
from tailrate.analysis.run.window import Excerpt, read
from tailrate.analysis.stats import trend
from tailrate.analysis.stats.sketch import SLICES
from tailrate.analysis.steps import by_rate
from tailrate.analysis.steps.fault_windows import Spans, injected, inside, lost_s, spans
from tailrate.analysis.steps.faults import reach
from tailrate.analysis.steps.step_evidence import cpu_pct
from tailrate.analysis.text import words

if TYPE_CHECKING:
    from tailrate.analysis.steps.measure import MeasuredStep
    from tailrate.analysis.verdicts.run import Run


def calm(run: Run) -> list[MeasuredStep]:
    """All but those of which faults left nothing."""
    return [left for step in run.measured if (left := _left(run, step)) is not None]


def _left(run: Run, step: MeasuredStep) -> MeasuredStep | None:
    row, window = step.summary, (step.start_ns, step.end_ns)
    taken = [span for span in spans(run, row.endpoint) if span[0] < window[1] and span[1] > window[0]]
    if not taken or not row.n:
        return step
    plan = next(plan for plan in run.manifest.scenario["steps"] if plan["index"] == row.index)
    whole = run.reading(REQUESTS, partial(read, endpoint=row.endpoint, steps=[plan], span=window, tokens=True))
    rows = whole.where(~inside(whole.intended_ns, taken))
    gone_s = lost_s(taken, *window)
    seconds = (window[1] - window[0]) / 1e9 - gone_s
    if not len(rows) or seconds <= 0:
        return None
    totals, latency_ms = rows.totals(), np.where(rows.ok, rows.latency_ms, np.inf)
    untouched = _untouched(step, taken)
    growth = trend.queue_growth(
        step.tally.in_flight()[step.tally.grid.before :][untouched],
        step.tally.arrived[step.tally.grid.before :][untouched],
        seconds,
    )
    given_up = (totals["timed_out"] + totals["dropped"]) / len(rows)
    later_ms = float(rows.latency_ms[rows.ok].mean()) if rows.ok.any() else math.inf
    overloaded = growth.rising or queue_filled(given_up, step.tally.early_ms(), later_ms)
    overload = "the queue grew" if overloaded else ""
    why = _doubts(run, step, plan, len(rows), 0 if overloaded else totals["dropped"])
    slos = run.manifest.slos
    said = Said.of(rows, step.tally.grid, seconds, slos)
    late = _late(step, rows)
    showed = Window((), overload, late, why)
    parts = by_label(rows, step.tally.grid, seconds, slos) if run.manifest.labelled else {}
    windows = tuple(replace(showed, counts=counted(parts, slo) if slo.slice else said.to(slo)) for slo in slos)
    answers = [answer for slo, one in zip(slos, windows, strict=True) for answer in judged(slo, [one])]
    against = dict.fromkeys(answer.sentence for answer in answers if answer.kept is not True)
    without = f" ({words.significant(gone_s)} s of planned faults left out)"
    summary = replace(
        row,
        n=len(rows),
        ok=totals["ok"],
        errors=rows.errors,
        dropped=totals["dropped"],
        offered_rps=len(rows) / seconds,
        achieved_rps=totals["ok"] / seconds,
        p99_ms=trend.percentile(latency_ms, 99),
        p99_low_ms=None,
        p99_high_ms=None,
        slo=all_of(answer.kept for answer in answers) if answers else None,
        trusted=not (why or late),
        steady=None,
        reasons=tuple(f"{sentence}{without}" for sentence in dict.fromkeys([*filter(None, [late]), *why, *against])),
    )
    return replace(step, summary=summary, growth=growth, overloaded=overloaded, showed=showed, windows=windows)


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


def _untouched(step: MeasuredStep, taken: Spans) -> npt.NDArray[np.bool_]:
    """The slices of its window whose middle lies in none of these."""
    grid = step.tally.grid
    middles = grid.start_ns + np.arange(SLICES, dtype=np.int64) * grid.slice_ns + grid.slice_ns // 2
    return ~inside(middles, taken)


def _crew_shrank(run: Run, index: int) -> bool:
    """A load process was lost in this step, and nobody had planned that."""
    kills = [one.start_ns for one in injected(run) if reach(one.effect.fault).load]
    lost = [event for event in run.events if event["event"] == "worker_lost" and index in (event.get("steps") or ())]
    return any(not any(at <= event.get("time_ns", 0) for at in kills) for event in lost)
