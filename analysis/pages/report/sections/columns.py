"""The columns of a step as a reader sees them: heading, group, how a value is written, what it means.

The page's table and the Markdown table are both made from this list, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailrate.analysis.text.words import ABSENT, count, significant, size


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    head: str
    group: str
    show: Callable[[Any], str]
    meaning: str
    brief: bool = False
    """Also in the short table of `report.md`."""


def _text(value: Any) -> str:
    return ABSENT if value is None else str(value)


def _met(value: Any) -> str:
    """The core says True, False, None or a word; a reader sees a word."""
    return {"True": "met", "False": "missed", "None": ABSENT}.get(str(value), str(value))


def _yes(value: Any) -> str:
    return {True: "yes", False: "no"}.get(value, ABSENT)


STEP_COLUMNS = (
    Column("endpoint", "endpoint", "step", _text, "Model and variant under load", brief=True),
    Column("index", "step", "step", count, "Number of the step in the scenario"),
    Column("block", "round", "step", count, "Which repetition of the schedule the step belongs to"),
    Column("offered_rps", "offered", "rate, /s", significant, "Arrivals per second in the step's window", brief=True),
    Column("achieved_rps", "achieved", "rate, /s", significant, "Successes per second in the window", brief=True),
    Column("goodput_rps", "goodput", "rate, /s", significant, "Successes within the objective per second"),
    Column("n", "n", "arrivals", count, "Arrivals in the window, sent or not"),
    Column("errors", "failed", "arrivals", count, "Arrivals that were no success, dropped ones included", brief=True),
    Column("late", "late", "arrivals", count, "Arrivals that the load generator sent late"),
    Column("dropped", "dropped", "arrivals", count, "Arrivals never sent: too many were in flight"),
    Column("mean_ms", "mean", "latency, ms", significant, "Mean latency of successes from the intended start"),
    Column(
        "p50_ms",
        "P50",
        "latency, ms",
        significant,
        "Half of all arrivals were faster; failures are infinite",
        brief=True,
    ),
    Column("p90_ms", "P90", "latency, ms", significant, "90 % of all arrivals were faster; failures are infinite"),
    Column("p95_ms", "P95", "latency, ms", significant, "95 % of all arrivals were faster; failures are infinite"),
    Column(
        "p99_ms",
        "P99",
        "latency, ms",
        significant,
        "99 % of all arrivals were faster; failures are infinite",
        brief=True,
    ),
    Column("p99_low_ms", "from", "latency, ms", significant, "Lower end of the interval of P99"),
    Column("p99_high_ms", "to", "latency, ms", significant, "Upper end of the interval of P99"),
    Column("p999_ms", "P99.9", "latency, ms", significant, "999 of 1000 arrivals were faster; failures are infinite"),
    Column("ok_p99_ms", "P99 of ok", "latency, ms", significant, "P99 of the successes alone"),
    Column(
        "service_p99_ms", "P99 service", "latency, ms", significant, "P99 from the actual send instead of the intended"
    ),
    Column("late_p99_ms", "P99 lateness", "latency, ms", significant, "P99 of how late the load generator itself sent"),
    Column("n_eff", "n effective", "sample", count, "Independent samples that the correlated arrivals are worth"),
    Column("early_stop_n", "n needed", "sample", count, "Samples that this percentile needs to be stated at all"),
    Column("queue_mean_ms", "queue", "server stages, mean ms", significant, "Waiting in the replica's queue"),
    Column("batch_mean_ms", "batch", "server stages, mean ms", significant, "Waiting for and building the batch"),
    Column("h2d_mean_ms", "h2d", "server stages, mean ms", significant, "Copying from host to device"),
    Column("compute_mean_ms", "compute", "server stages, mean ms", significant, "Running the model"),
    Column("d2h_mean_ms", "d2h", "server stages, mean ms", significant, "Copying from device to host"),
    Column("batch_rows_mean", "rows", "server stages, mean ms", significant, "Mean rows in a request's batch"),
    Column("util_pct", "use, %", "device", significant, "Mean device utilisation"),
    Column("util_max_pct", "most, %", "device", significant, "Highest device utilisation"),
    Column("sm_active_pct", "SM, %", "device", significant, "How busy the processors were, averaged over them"),
    Column("tensor_active_pct", "tensor, %", "device", significant, "Share of time in which tensor cores worked"),
    Column("dram_active_pct", "DRAM, %", "device", significant, "Share of the memory bandwidth in use"),
    Column("mem_peak_bytes", "memory", "device", size, "Largest device memory in use"),
    Column("power_w", "power, W", "device", significant, "Mean power"),
    Column("joules", "energy, J", "device", significant, "Energy over the window"),
    Column("joules_per_request", "J/request", "device", significant, "Energy for each success"),
    Column("net_joules_per_request", "net J/request", "device", significant, "Energy for each success above idle"),
    Column("temp_c", "°C", "device", significant, "Device temperature"),
    Column("sm_mhz", "SM, MHz", "device", significant, "Clock of the processors"),
    Column("throttled_pct", "throttled, %", "device", significant, "Share of samples with a lowered clock"),
    Column("seen_util_pct", "use, %", "device as requests saw it", significant, "At each request's time, their mean"),
    Column("seen_power_w", "power, W", "device as requests saw it", significant, "At each request's time, their mean"),
    Column("seen_sm_mhz", "SM, MHz", "device as requests saw it", significant, "At each request's time, their mean"),
    Column("seen_throttled_pct", "throttled, %", "device as requests saw it", significant, "Share of the requests"),
    Column("settled_s", "settled, s", "steadiness", significant, "When latency had settled, since the step began"),
    Column("drift_pct", "drift, %", "steadiness", significant, "Change of mean latency over the window, if no chance"),
    Column("steady", "steady", "steadiness", _yes, "Whether latency had settled before the window and stayed"),
    Column("three_windows", "3 windows", "steadiness", _yes, "Whether perf_analyzer's rule would call it stable"),
    Column("slo", "objective", "judged", _met, "Whether the step met the objective", brief=True),
    Column("trusted", "trusted", "judged", _yes, "Whether the step's numbers can be believed"),
)


def present(rows: Sequence[Mapping[str, Any]], *, brief: bool = False) -> list[Column]:
    """The columns that hold anything in these rows; rounds only where there were several."""
    rounds = len({row.get("block") for row in rows}) > 1
    return [
        column
        for column in STEP_COLUMNS
        if (column.brief or not brief)
        and (rounds or column.key != "block")
        and any(row.get(column.key) is not None for row in rows)
    ]
