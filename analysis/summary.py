"""`report.json` and `steps.csv`: everything that the run proves, for machines, and one conclusion to read out.

`report_of` puts together what `steps`, `verdict`, `compare` and `capacity` found; `write` puts it into the
run folder. JSON has neither infinity nor NaN: both are null, and a percentile that is null although `n` is
not 0 was infinite.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import verdict, words
from analysis.breakdown import breakdown
from analysis.capacity import Capacity, capacities
from analysis.compare import Pair, pairs
from analysis.curves import batches, curves
from analysis.export import EXPORTS
from analysis.ledger import ledger
from analysis.records import LOST, SCHEMA, write_atomically
from analysis.steps import COLUMNS, StepSummary
from analysis.verdict import PASS, Verdict, judge

if TYPE_CHECKING:
    from analysis.store import Run

REPORT = "report.json"
STEPS = "steps.csv"


def report_of(run: Run) -> dict[str, Any]:
    """The whole of `report.json`."""
    judged, compared, limits = judge(run), pairs(run), capacities(run)
    whole = {
        "schema": SCHEMA,
        "run": run.manifest.id,
        "verdict": judged.verdict,
        "reasons": judged.reasons,
        "conclusion": conclusion(run, judged, compared, limits),
        "steps": [asdict(step.summary) for step in run.measured],
        "pairs": [asdict(pair) for pair in compared],
        "capacity": [asdict(row) for row in limits],
        "breakdown": [asdict(row) for row in breakdown(run.measured)],
        "curves": [asdict(row) for row in curves(run.measured)],
        "batches": [asdict(row) for row in batches(run.measured)],
        "ledger": [asdict(row) for row in ledger(run.measured)],
        "trust": trust(run),
    }
    plain: dict[str, Any] = _plain(whole)
    return plain


def write(run: Run) -> dict[str, Any]:
    """Writes `report.json` and `steps.csv` into the run folder and returns the report."""
    report = report_of(run)
    write_atomically(run.folder / REPORT, json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_atomically(run.folder / STEPS, _csv(step.summary for step in run.measured))
    return report


def export(run: Run, report: Mapping[str, Any], form: str) -> Path:
    """Writes the report in another form into the run folder, and says where.

    `parquet` is a row per step with the run, when it began and what was asked for, so that files of many runs can be
    read as one table; the others are `analysis.export`'s. A step summary also goes where GitHub wants it.
    """
    if form == "parquet":
        path = run.folder / STEPS.replace("csv", "parquet")
        asked = [(step.rate, step.concurrency) for step in run.measured]
        table = run.steps.assign(rate=[rate for rate, _ in asked], concurrency=[number for _, number in asked])
        table.insert(0, "run", run.manifest.id)
        table.insert(1, "started_ns", run.manifest.started_ns)
        scratch = path.with_name(path.name + ".part")
        table.to_parquet(scratch, index=False)
        scratch.replace(path)
        return path
    name, written = EXPORTS[form]
    text = written(report, run.manifest)
    write_atomically(run.folder / name, text)
    if form == "github" and (wanted := os.environ.get("GITHUB_STEP_SUMMARY")):
        with Path(wanted).open("a", encoding="utf-8") as out:
            out.write(text)
    return run.folder / name


def _csv(rows: Iterable[StepSummary]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        cells = ((name, getattr(row, name)) for name in COLUMNS)
        writer.writerow("; ".join(value) if name == "reasons" else _cell(value) for name, value in cells)
    return out.getvalue()


def _cell(value: Any) -> Any:
    return "" if value is None else repr(float(value)) if isinstance(value, float) else value


def trust(run: Run) -> dict[str, Any]:
    """What the figures rest on."""
    rows, steps = run.tallies, run.measured
    late = [step.order.late_whole_ms for step in steps if step.order.late_whole_ms]
    cpu = [event["pct"] for event in run.events if event["event"] == "load_cpu" and event.get("pct") is not None]
    return {
        "status": run.manifest.status,
        "lateness": {
            "p99_ms": max((found[99.0] for found in late), default=None),
            "max_ms": max((found[100.0] for found in late), default=None),
            "late": sum(step.summary.late for step in steps),
        },
        "ledger": {
            "scheduled": run.manifest.totals.get("scheduled"),
            "recorded": rows.rows,
            "ok": rows.succeeded,
            "dropped": rows.statuses["dropped"],
            "timed_out": rows.statuses["timeout"],
            "lost": rows.statuses[LOST],
        },
        "self_check": run.manifest.extra.get("self_check"),
        "missing_rows": run.missing,
        "load_cpu_pct": max(cpu, default=None),
        "clock": [
            {
                "host": entry.get("host"),
                "offset_ms": _ms(entry.get("offset_ns")),
                "error_ms": _ms(entry.get("error_ns")),
                "drift_ppm": entry.get("drift_ppm"),
            }
            for entry in run.manifest.clock
        ],
        "devices": [
            {"device": name, "host": track.host, "samples": len(track.time_ns), "period_ms": _ms(track.period_ns)}
            for name, track in run.tracks.items()
        ],
        "join": {name: getattr(rows, name) for name in ("with_device", "joined", "near_boundary")},
        "settle_s": sorted({float(step.get("settle_s") or 0) for step in run.manifest.scenario["steps"]}),
        "untrusted_steps": [step.summary.index for step in steps if not step.summary.trusted],
        "overloaded_steps": [step.summary.index for step in steps if step.overloaded],
        "small_steps": [step.summary.index for step in steps if step.summary.n < (step.summary.early_stop_n or 0)],
        "warnings": verdict.warnings(run),
    }


# ---- the conclusion


def conclusion(run: Run, judged: Verdict, compared: list[Pair], limits: list[Capacity]) -> str:
    """One to three sentences for a review: what the endpoints can take, what it bought, or why this cannot be said."""
    if flaws := verdict.flaws(run):
        return f"This run cannot say what the endpoints can take: {flaws[0]}."
    open_ = judged.verdict == verdict.INCONCLUSIVE
    # what could not be judged is what an inconclusive verdict's reason says already
    judgeable = [row for row in limits if not open_ or row.low_rps is not None or row.high_rps is not None]
    said = _sustained(judgeable, compared) if limits else _held(run, judged)
    if open_:
        what = "whether the objective is met" if run.manifest.slos else "what the endpoints can take"
        why = next((reason for reason in judged.reasons if reason != verdict.NONE_SET), "")
        said.insert(0, f"This run cannot say {what}: {why}")
    return ". ".join([*said, *_bought(compared)]) + "."


def _sustained(limits: list[Capacity], compared: list[Pair]) -> list[str]:
    """Per endpoint the objective that gives way first, then what that means for the rates of two variants."""
    tightest: dict[str, Capacity] = {}
    for row in limits:
        if row.endpoint not in tightest or (row.low_rps or 0) < (tightest[row.endpoint].low_rps or 0):
            tightest[row.endpoint] = row
    said = ["; ".join(map(_phrase, tightest.values()))] if tightest else []
    for a, b in dict.fromkeys((pair.a, pair.b) for pair in compared if pair.a != pair.b):
        one, other = tightest.get(a), tightest.get(b)
        # limits lie between low and high, so their ratio lies between these
        if one and other and one.low_rps and one.high_rps and other.low_rps:
            least = other.low_rps / one.high_rps
            if other.high_rps:
                said.append(f"{b} takes {least:.3g} to {other.high_rps / one.low_rps:.3g} times the rate of {a}")
            elif least > 1:
                said.append(f"{b} takes at least {least:.3g} times the rate of {a}")
    return said


def _phrase(row: Capacity) -> str:
    why = f", limited by {row.limited_by}" if row.limited_by and row.high_rps is not None else ""
    if row.low_rps is None and row.high_rps is None:
        return f"{row.endpoint} could be judged against {row.slo} at no rate"
    if row.low_rps is None:
        return f"{row.endpoint} misses {row.slo} from {row.high_rps:g} requests/s on{why}"
    if row.high_rps is None:
        return f"{row.endpoint} sustains at least {row.low_rps:g} requests/s at {row.slo}"
    return f"{row.endpoint} sustains {row.low_rps:g} requests/s at {row.slo} and misses it at {row.high_rps:g}{why}"


def _held(run: Run, judged: Verdict) -> list[str]:
    """Without rising rates or without an objective: the highest rate that each endpoint kept up with."""
    said = []
    objectives = ", ".join(str(slo) for slo in run.manifest.slos)
    if not objectives:
        said.append("No objective was set")
    elif judged.verdict == PASS:
        said.append(f"Every step met {objectives}")
    elif judged.verdict == verdict.FAIL:
        said.append(f"The objective {objectives} was missed: {judged.reasons[0]}")
    best: dict[str, str] = {}
    for step in sorted(run.measured, key=lambda step: step.rate):
        row = step.summary
        if row.trusted and step.overloaded:
            best.setdefault(row.endpoint, f"{row.endpoint} kept up with no rate that was tried")
        elif row.trusted:
            finite = row.p99_ms is not None and math.isfinite(row.p99_ms)
            p99 = f"a P99 of {words.significant(row.p99_ms)} ms" if finite else "no finite P99"
            best[row.endpoint] = f"{row.endpoint} answered {words.significant(row.achieved_rps)} requests/s with {p99}"
    return [*said, "; ".join(best.values())] if best else said


def _bought(compared: list[Pair]) -> list[str]:
    """For each two variants the comparison at the highest rate that has an interval, else that has a ratio."""
    chosen: dict[tuple[str, str], Pair] = {}
    for pair in (pair for pair in compared if pair.a != pair.b):
        before = chosen.get((pair.a, pair.b))
        if pair.p99_ratio is not None and (before is None or pair.differs is not None or before.differs is None):
            chosen[pair.a, pair.b] = pair
    return [_difference(pair) for pair in chosen.values()]


def _difference(pair: Pair) -> str:
    at = f"{pair.concurrency} under way" if pair.concurrency else f"{pair.rate:g} requests/s"
    return f"For {pair.a.partition('/')[0]} at {at}, {words.pair_sentence(asdict(pair))}"


def _ms(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e6


def _plain(value: Any) -> Any:
    """The same in what JSON has."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
