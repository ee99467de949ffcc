"""A row of `run.steps`, of `steps.csv` and of `steps` in `report.json`: each column declared once, here.

A field of `StepSummary` says all of its column: name (its suffix is the unit), type, the group and the heading under
which people see it, what it means, and what works it out from the evidence of the step. Fields stand in the order of
the files. Only `analysis/exports/report.schema.json`, for readers in other languages, describes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from tailrate.analysis.judging.share import all_of
from tailrate.analysis.records.objective import LEAST_FOR_P999
from tailrate.analysis.text.column import (
    ARRIVALS,
    DEVICE,
    GROUPS,
    JUDGED,
    KINDS,
    LATENCY,
    RATE,
    SAMPLE,
    SEEN,
    STAGES,
    STEADINESS,
    STEP,
    TOKENS,
    Column,
    Show,
    met,
    text,
)  # fmt: skip
from tailrate.analysis.text.words import count, size

if TYPE_CHECKING:
    import pandas as pd

    from tailrate.analysis.steps.step_evidence import StepEvidence


Value = TypeVar("Value")


def column(
    group: str,
    head: str,
    meaning: str,
    value: Callable[[StepEvidence], Value],
    *,
    show: Show | None = None,
    brief: bool = False,
    after: str = "",
    default: Any = None,
) -> Value:
    """A field of `StepSummary`, with the value of a step without arrivals as its default."""
    told = {"group": group, "head": head, "meaning": meaning, "value": value, "brief": brief, "after": after}
    declared: Value = field(default=default, metadata=told | ({"show": show} if show else {}))
    return declared


# fmt: off
@dataclass(frozen=True, slots=True)
class StepSummary:
    """One endpoint in one step, over its window: [start + settle, end) by intended time.

    In percentiles but `ok_p99_ms` and `late_p99_ms` a failure is infinite. What is unknown is None, never 0.
    """

    index: int = column(STEP, "step", "Number of the step in the scenario",
        lambda step: step.plan["index"], after="endpoint")
    endpoint: str = column(STEP, "endpoint", "Model and variant under load", lambda step: step.endpoint, brief=True)
    block: int = column(STEP, "round", "Which repetition of the schedule the step belongs to",
        lambda step: int(step.plan.get("block") or 0))

    offered_rps: float | None = column(RATE, "offered", "Arrivals per second in the step's window",
        lambda step: step.n / step.seconds, brief=True)
    achieved_rps: float | None = column(RATE, "achieved", "Successes per second in the window",
        lambda step: step.done / step.seconds, brief=True)
    goodput_rps: float | None = column(RATE, "goodput", "Successes within the objective per second",
        lambda step: step.goodput_rps)

    n: int = column(ARRIVALS, "n", "Arrivals in the window, sent or not", lambda step: step.n, default=0)
    ok: int = column(ARRIVALS, "", "Arrivals that were a success", lambda step: step.tally.ok, default=0)
    errors: int = column(ARRIVALS, "failed", "Arrivals that were no success, dropped ones included",
        lambda step: step.n - step.tally.ok, brief=True, default=0)
    late: int = column(ARRIVALS, "late", "Arrivals that the load generator sent late",
        lambda step: step.order.late, default=0)
    dropped: int = column(ARRIVALS, "dropped", "Arrivals never sent: too many were in flight",
        lambda step: step.tally.inside["dropped"], default=0)

    mean_ms: float | None = column(LATENCY, "mean", "Mean latency of successes from the intended start",
        lambda step: step.tally.mean("latency_ms"))
    p50_ms: float | None = column(LATENCY, "P50", "Half of all arrivals were faster; failures are infinite",
        lambda step: step.order.latency_ms[50.0], brief=True)
    p90_ms: float | None = column(LATENCY, "P90", "90 % of all arrivals were faster; failures are infinite",
        lambda step: step.order.latency_ms[90.0])
    p95_ms: float | None = column(LATENCY, "P95", "95 % of all arrivals were faster; failures are infinite",
        lambda step: step.order.latency_ms[95.0])
    p99_ms: float | None = column(LATENCY, "P99", "99 % of all arrivals were faster; failures are infinite",
        lambda step: step.order.latency_ms[99.0], brief=True)
    p999_ms: float | None = column(LATENCY, "P99.9", "999 of 1000 arrivals were faster; failures are infinite",
        lambda step: step.order.latency_ms[99.9] if step.n >= LEAST_FOR_P999 else None, after="p99_high_ms")
    p99_low_ms: float | None = column(LATENCY, "from", "Lower end of the interval of P99",
        lambda step: step.p99_interval_ms[0])
    p99_high_ms: float | None = column(LATENCY, "to", "Upper end of the interval of P99",
        lambda step: step.p99_interval_ms[1])
    ok_p99_ms: float | None = column(LATENCY, "P99 of ok", "P99 of the successes alone",
        lambda step: step.order.ok_ms.get(99.0))
    service_p99_ms: float | None = column(LATENCY, "P99 service", "P99 from the actual send instead of the intended",
        lambda step: step.order.service_all_ms.get(99.0))
    late_p99_ms: float | None = column(LATENCY, "P99 lateness", "P99 of how late the load generator itself sent",
        lambda step: step.order.late_ms.get(99.0))

    n_eff: float | None = column(SAMPLE, "n effective", "Independent samples that the correlated arrivals are worth",
        lambda step: step.order.n_eff, show=count)
    early_stop_n: int | None = column(SAMPLE, "n needed", "Samples that this percentile needs to be stated at all",
        lambda step: step.early_stop_n)

    queue_mean_ms: float | None = column(STAGES, "queue", "Waiting in the replica's queue",
        lambda step: step.tally.mean("queue_ms"))
    batch_mean_ms: float | None = column(STAGES, "batch", "Waiting for and building the batch",
        lambda step: step.tally.mean("batch_ms"))
    h2d_mean_ms: float | None = column(STAGES, "h2d", "Copying from host to device",
        lambda step: step.tally.mean("h2d_ms"))
    compute_mean_ms: float | None = column(STAGES, "compute", "Running the model",
        lambda step: step.tally.mean("compute_ms"))
    d2h_mean_ms: float | None = column(STAGES, "d2h", "Copying from device to host",
        lambda step: step.tally.mean("d2h_ms"))
    batch_rows_mean: float | None = column(STAGES, "rows", "Mean rows in a request's batch",
        lambda step: step.tally.mean("batch_rows"))

    util_pct: float | None = column(DEVICE, "use, %", "Mean device utilisation", lambda step: step.device.util_pct)
    mem_peak_bytes: int | None = column(DEVICE, "memory", "Largest device memory in use",
        lambda step: step.device.mem_peak_bytes, show=size)
    power_w: float | None = column(DEVICE, "power, W", "Mean power",
        lambda step: None if step.unsampled else step.device.power_w)
    joules: float | None = column(DEVICE, "energy, J", "Energy over the window", lambda step: step.energy.joules)
    joules_per_request: float | None = column(DEVICE, "J/request", "Energy for each success",
        lambda step: step.per_success(step.energy.joules))
    net_joules_per_request: float | None = column(DEVICE, "net J/request", "Energy for each success above idle",
        lambda step: step.per_success(step.energy.net_joules))
    temp_c: float | None = column(DEVICE, "°C", "Device temperature", lambda step: step.device.temp_c)
    sm_mhz: float | None = column(DEVICE, "SM, MHz", "Clock of the processors", lambda step: step.device.sm_mhz)
    throttled_pct: float | None = column(DEVICE, "throttled, %", "Share of samples with a lowered clock",
        lambda step: step.device.throttled_pct)

    slo: bool | None = column(JUDGED, "objective", "Whether the step met the objective",
        lambda step: all_of(answer.kept for answer in step.answers) if step.answers else None, show=met, brief=True)
    trusted: bool = column(JUDGED, "trusted", "Whether the step's numbers can be believed",
        lambda step: not (step.doubts or step.late), default=False, brief=True)
    reasons: tuple[str, ...] = column(JUDGED, "", "Why it is not trusted or missed the objective, one sentence each",
        lambda step: step.reasons)

    util_max_pct: float | None = column(DEVICE, "most, %", "Highest device utilisation",
        lambda step: step.device.util_max_pct, after="util_pct")
    sm_active_pct: float | None = column(DEVICE, "SM, %", "How busy the processors were, averaged over them",
        lambda step: step.device.sm_active_pct, after="util_max_pct")
    tensor_active_pct: float | None = column(DEVICE, "tensor, %", "Share of time in which tensor cores worked",
        lambda step: step.device.tensor_active_pct, after="sm_active_pct")
    dram_active_pct: float | None = column(DEVICE, "DRAM, %", "Share of the memory bandwidth in use",
        lambda step: step.device.dram_active_pct, after="tensor_active_pct")

    settled_s: float | None = column(STEADINESS, "settled, s", "When latency had settled, since the step began",
        lambda step: step.steadiness.settled_s)
    steady: bool | None = column(STEADINESS, "steady", "Whether latency had settled before the window and stayed",
        lambda step: False if step.overloaded else step.steadiness.steady, after="drift_pct")
    drift_pct: float | None = column(STEADINESS, "drift, %", "Change of mean latency over the window, if no chance",
        lambda step: None if step.overloaded else step.steadiness.drift_pct)
    three_windows: bool | None = column(STEADINESS, "3 windows", "Whether perf_analyzer's rule would call it stable",
        lambda step: step.steadiness.three_windows)

    seen_util_pct: float | None = column(SEEN, "use, %", "At each request's time, their mean",
        lambda step: step.tally.saw("util_pct"))
    seen_power_w: float | None = column(SEEN, "power, W", "At each request's time, their mean",
        lambda step: step.tally.saw("power_w"))
    seen_sm_mhz: float | None = column(SEEN, "SM, MHz", "At each request's time, their mean",
        lambda step: step.tally.saw("sm_mhz"))
    seen_throttled_pct: float | None = column(SEEN, "throttled, %", "Share of the requests",
        lambda step: step.tally.saw("throttled_pct"))

    ttft_p50_ms: float | None = column(TOKENS, "TTFT P50", "First token from the intended start; failures are infinite",
        lambda step: step.of_streams(lambda found: found.ttft_ms.get(50.0)), brief=True)
    ttft_p90_ms: float | None = column(TOKENS, "P90", "The same, 90 % of all arrivals",
        lambda step: step.of_streams(lambda found: found.ttft_ms.get(90.0)))
    ttft_p95_ms: float | None = column(TOKENS, "P95", "The same, 95 % of all arrivals",
        lambda step: step.of_streams(lambda found: found.ttft_ms.get(95.0)))
    ttft_p99_ms: float | None = column(TOKENS, "TTFT P99", "The same, 99 % of all arrivals",
        lambda step: step.of_streams(lambda found: found.ttft_ms.get(99.0)), brief=True)
    ttft_p99_low_ms: float | None = column(TOKENS, "from", "Lower end of the interval of TTFT's P99",
        lambda step: step.of_streams(lambda found: step.between(found.ttft)[0]))
    ttft_p99_high_ms: float | None = column(TOKENS, "to", "Upper end of the interval of TTFT's P99",
        lambda step: step.of_streams(lambda found: step.between(found.ttft)[1]))
    ttft_sent_p99_ms: float | None = column(TOKENS, "TTFT P99 sent", "From the actual send, where there was a token",
        lambda step: step.of_streams(lambda found: found.ttft_sent_p99_ms))
    gap_p50_ms: float | None = column(TOKENS, "gap P50", "Between content events of all successes",
        lambda step: step.of_streams(lambda found: found.gap_ms.get(50.0)))
    gap_p99_ms: float | None = column(TOKENS, "gap P99", "Between content events of all successes",
        lambda step: step.of_streams(lambda found: found.gap_ms.get(99.0)))
    tpot_p50_ms: float | None = column(TOKENS, "TPOT P50", "Time per token after the first, by answer",
        lambda step: step.of_streams(lambda found: found.tpot_ms.get(50.0)), brief=True)
    tpot_p99_ms: float | None = column(TOKENS, "TPOT P99", "Time per token after the first, by answer",
        lambda step: step.of_streams(lambda found: found.tpot_ms.get(99.0)), brief=True)
    tpot_p99_low_ms: float | None = column(TOKENS, "from", "Lower end of the interval of TPOT's P99",
        lambda step: step.of_streams(lambda found: step.between(found.tpot)[0]))
    tpot_p99_high_ms: float | None = column(TOKENS, "to", "Upper end of the interval of TPOT's P99",
        lambda step: step.of_streams(lambda found: step.between(found.tpot)[1]))
    stall_p99_ms: float | None = column(TOKENS, "stall P99", "Longest gap of an answer",
        lambda step: step.of_streams(lambda found: found.stall_p99_ms))
    tokens_in_rps: float | None = column(TOKENS, "in, /s", "Prompt tokens whose first answer came in the window",
        lambda step: step.of_streams(lambda found: found.tally.arrived_in / step.seconds))
    tokens_out_rps: float | None = column(TOKENS, "out, /s", "Tokens that came in the window",
        lambda step: step.of_streams(lambda found: found.tally.arrived_out / step.seconds), brief=True)
    joules_per_token: float | None = column(TOKENS, "J/token", "Energy for each token that came",
        lambda step: step.of_streams(lambda found: step.per_token(found)))
# fmt: on


def _declared() -> dict[str, Column]:
    found = {}
    for each in fields(StepSummary):
        kind = str(each.type)
        show, _ = KINDS.get(kind, (text, ""))
        found[each.name] = Column(each.name, kind, **{"show": show, **each.metadata})
    return found


COLUMNS = _declared()
"""By name, in the order of the files."""


def on_the_page() -> list[Column]:
    """The columns that people see, in the order of the page."""
    shown = [each for each in COLUMNS.values() if each.head]
    found = [each for each in shown if not each.after]
    for each in shown:
        if each.after:
            found.insert(found.index(COLUMNS[each.after]) + 1, each)
    return sorted(found, key=lambda each: GROUPS.index(each.group))


def summary_of(step: StepEvidence) -> StepSummary:
    """The row of a step."""
    known = COLUMNS if step.n else ("index", "endpoint", "block", "reasons")
    return StepSummary(**{name: COLUMNS[name].value(step) for name in known})


def frame(rows: Sequence[StepSummary]) -> pd.DataFrame:
    """The rows as a frame: numbers with NaN where unknown, answers as True, False or None."""
    import pandas as pd

    table = pd.DataFrame([{name: getattr(row, name) for name in COLUMNS} for row in rows], columns=list(COLUMNS))
    return table.astype({name: KINDS[each.kind][1] for name, each in COLUMNS.items() if each.kind in KINDS})
