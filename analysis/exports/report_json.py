"""`report.json` and `steps.csv`: everything that the run proves, for machines, and one conclusion to read out.

`report_of` puts together what `steps`, `verdict`, `compare` and `capacity` found; `write` puts it into the
run folder. JSON has neither infinity nor NaN: both are null, and a row of steps or slices names those of its figures
that are infinite (`records.infinities`).
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.counting.answer_shape import by_answer, by_position, by_prompt, by_turn
from tailrate.analysis.exports.judged_rates import judged_rates
from tailrate.analysis.records.folder import write_atomically
from tailrate.analysis.records.manifest import DERIVED_SCHEMA
from tailrate.analysis.records.rows import LOST
from tailrate.analysis.server_metrics.beside_prompts import COLUMNS as OF_PROMPTS
from tailrate.analysis.server_metrics.beside_prompts import BesidePrompts, beside_prompts
from tailrate.analysis.soak.soak_verdict import combine_verdicts, soak
from tailrate.analysis.steps.capacity import capacities
from tailrate.analysis.steps.curves import batches, curves
from tailrate.analysis.steps.fault_effects import faults
from tailrate.analysis.steps.latency_breakdown import breakdown
from tailrate.analysis.steps.step_summary import COLUMNS, StepSummary
from tailrate.analysis.steps.variant_pairs import pairs
from tailrate.analysis.verdicts import verdict
from tailrate.analysis.verdicts.conclusion import conclusion
from tailrate.analysis.verdicts.ledger import ledger
from tailrate.analysis.verdicts.risks import risks
from tailrate.analysis.verdicts.slices import Slice, slices
from tailrate.analysis.verdicts.verdict import judge

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

REPORT = "report.json"
STEPS = "steps.csv"


def report_of(run: Run) -> dict[str, Any]:
    """The whole of `report.json`."""
    compared, limits, soaked = pairs(run), capacities(run), soak(run)
    judged = combine_verdicts(run, judge(run), soaked)
    whole = {
        "schema": DERIVED_SCHEMA,
        "run": run.manifest.id,
        "verdict": judged.verdict,
        "reasons": judged.reasons,
        "conclusion": conclusion(run, judged, compared, limits, soaked.sentence if soaked else None),
        "steps": [_row(step.summary) for step in run.measured],
        "pairs": [asdict(pair) for pair in compared],
        "capacity": [asdict(row) for row in limits],
        "rates": [asdict(row) for row in judged_rates(run)],
        "breakdown": [asdict(row) for row in breakdown(run.measured)],
        "curves": [asdict(row) for row in curves(run.measured)],
        "batches": [asdict(row) for row in batches(run.measured)],
        "answers": {
            made.__name__: [asdict(row) for row in made(run.counted_streams.shapes)]
            for made in (by_position, by_prompt, by_answer, by_turn)
        }
        | {"beside_prompts": [asdict(row) for row in _beside_prompts(run)]},
        "ledger": [asdict(row) for row in ledger(run.measured)],
        "risks": [asdict(risk) for risk in risks(run, compared, limits)],
        "slices": [_row(row) for row in slices(run)],
        "faults": [asdict(effect) for effect in faults(run)],
        "metrics": [asdict(row) for row in run.measured_metrics],
        "soak": soaked.as_json() if soaked else None,
        "trust": trust(run),
    }
    plain: dict[str, Any] = _plain(whole)
    return plain


def _beside_prompts(run: Run) -> Iterator[BesidePrompts]:
    """Of each step whose server says when it read prompts."""
    for step in run.measured:
        index, endpoint = step.summary.index, step.summary.endpoint
        if step.tally.known("prefill_ms"):
            requests = run.requests(index, OF_PROMPTS)
            if row := beside_prompts(requests, index, endpoint, step.start_ns, step.end_ns):
                yield row


def write(run: Run) -> dict[str, Any]:
    """Writes `report.json` and `steps.csv` into the run folder and returns the report."""
    report = report_of(run)
    write_atomically(run.folder / REPORT, json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_atomically(run.folder / STEPS, _csv(step.summary for step in run.measured))
    return report


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


def _ms(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e6


def _row(found: StepSummary | Slice) -> dict[str, Any]:
    row = asdict(found)
    return row | {"infinite": [name for name, value in row.items() if value == math.inf]}


def _plain(value: Any) -> Any:
    """The same in what JSON has."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
