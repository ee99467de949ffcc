"""A report's figures in base units, each with its meaning, labels and time: what dashboards take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tailrate.analysis.exports.forms._form import Report, one_line, steps_of
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.text import words

UNITS = ("seconds", "bytes", "joules", "watts", "celsius", "hertz", "ratio")
_PER_UNIT = {"ms": 1e3, "pct": 100.0, "mhz": 1e-6}
_GAUGES = """
step_latency_seconds | quantile p50_ms=0.5 p90_ms=0.9 p95_ms=0.95 p99_ms=0.99 p999_ms=0.999 | From the intended start.
step_latency_p99_bound_seconds | bound p99_low_ms=low p99_high_ms=high | The interval of P99.
step_latency_mean_seconds | - mean_ms | Mean latency of successes.
step_ok_latency_seconds | quantile ok_p99_ms=0.99 | Latency of the successes alone.
step_service_seconds | quantile service_p99_ms=0.99 | Latency from the actual send; failures are infinite.
step_lateness_seconds | quantile late_p99_ms=0.99 | How late the load generator sent.
step_queue_mean_seconds | - queue_mean_ms | Mean wait in the queue of the replica.
step_batch_mean_seconds | - batch_mean_ms | Mean time for forming the batch.
step_h2d_mean_seconds | - h2d_mean_ms | Mean time for copying to the device.
step_compute_mean_seconds | - compute_mean_ms | Mean time of the model.
step_d2h_mean_seconds | - d2h_mean_ms | Mean time for copying back.
step_requests | outcome ok=ok failed=failed dropped=dropped | Arrivals of the window.
step_late_requests | - late | Arrivals that the load generator sent late.
step_requests_per_second | kind offered_rps=offered achieved_rps=achieved goodput_rps=goodput | Rates over the window.
step_batch_rows | - batch_rows_mean | Mean rows in the batch of a request.
step_ttft_seconds | quantile ttft_p50_ms=0.5 ttft_p90_ms=0.9 ttft_p95_ms=0.95 ttft_p99_ms=0.99 | To the first token.
step_ttft_p99_bound_seconds | bound ttft_p99_low_ms=low ttft_p99_high_ms=high | The interval of its P99.
step_tpot_seconds | quantile tpot_p50_ms=0.5 tpot_p99_ms=0.99 | Per token after the first, by answer.
step_tpot_p99_bound_seconds | bound tpot_p99_low_ms=low tpot_p99_high_ms=high | The interval of its P99.
step_tokens_per_second | kind tokens_in_rps=in tokens_out_rps=out | Tokens of prompts and of answers over the window.
step_device_use_ratio | kind util_pct=mean util_max_pct=most | How much of the time the device was busy.
step_device_active_ratio | part sm_active_pct=sm tensor_active_pct=tensor dram_active_pct=dram | Of its parts.
step_device_throttled_ratio | - throttled_pct | Share of samples with a lowered clock.
step_device_memory_bytes | - mem_peak_bytes | Largest device memory in use.
step_device_power_watts | - power_w | Mean power of the device.
step_device_temperature_celsius | - temp_c | Temperature of the device.
step_device_clock_hertz | - sm_mhz | Clock of the processors of the device.
step_energy_joules | - joules | Energy of the device over the window.
step_request_energy_joules | kind joules_per_request=gross net_joules_per_request=net | For a success; net: above idle.
step_token_energy_joules | - joules_per_token | For a token that came.
step_objective_met | - slo | Whether the objective was met.
step_trusted | - trusted | Whether the figures of the step can be trusted.
ledger_requests | outcome ok refused failed timed_out unreachable dropped lost | All arrivals, settle time included.
pair_latency_ratio | quantile p50_ratio=0.5 p99_ratio=0.99 | Latency of a over that of b.
pair_latency_p99_bound_ratio | bound ratio_low=low ratio_high=high | The interval of the ratio of P99.
capacity_requests_per_second | kind low_rps=kept max_rps=achieved high_rps=missed | The limit lies from kept to missed.
capacity_resolved | - resolved | Whether rates on both sides of the limit were tried.
"""
"""Name, label with the keys of a row and their label values (a key without one stands for itself), meaning."""

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Declared:
    """A figure that a report may have."""

    name: str
    label: str
    """What tells its samples of one subject apart; empty where there is but one."""
    keys: Mapping[str, str]
    """Of a row of the report, with the values of the label."""
    meaning: str


def _declared(line: str) -> Declared:
    name, source, meaning = line.split(" | ")
    label, *pairs = source.split()
    keys = {key: value or key for key, _, value in (pair.partition("=") for pair in pairs)}
    return Declared(name, "" if label == "-" else label, keys, meaning)


DECLARED = tuple(map(_declared, _GAUGES.strip().splitlines()))


@dataclass(frozen=True, slots=True)
class Subject:
    """What figures are of: a row of the report, when it was measured, and how it is called."""

    labels: Labels
    row: Report
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Labels
    value: float
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    unit: str
    """One of `UNITS`, which the name ends in, or empty."""
    meaning: str
    samples: list[Sample]


def about(report: Report, manifest: Manifest) -> dict[str, str]:
    """What the figures are of."""
    found = {"run": report["run"], "status": manifest.status, "mode": manifest.scenario.get("mode") or "unknown"}
    return {key: one_line(value) for key, value in found.items()}


def figures(report: Report, manifest: Manifest) -> Iterator[Figure]:
    """Those that are known of something; a sample of what is unknown is left out."""
    subjects = _subjects(report, manifest)
    whole = _whole(manifest)
    verdicts = [Sample((("verdict", word),), float(word == report["verdict"]), *whole) for word in words.VERDICTS]
    yield Figure("verdict", "", "What the run says of the objective.", verdicts)
    for one in DECLARED:
        found = {}
        for subject in subjects[one.name.partition("_")[0]]:
            for key, value in one.keys.items():
                if subject.row.get(key) is not None:
                    labels = subject.labels + (((one.label, value),) if one.label else ())
                    number = float(subject.row[key]) / _PER_UNIT.get(key.rpartition("_")[2], 1.0)
                    found[labels] = Sample(labels, number, subject.begin_ns, subject.end_ns)
        if found:
            unit = one.name.rpartition("_")[2]
            yield Figure(one.name, unit if unit in UNITS else "", one.meaning, list(found.values()))


def _subjects(report: Report, manifest: Manifest) -> dict[str, list[Subject]]:
    """By the first word of a figure's name."""
    steps, times = [], {}
    for step in steps_of(report, manifest):
        times[step.row["index"]] = step.begin_ns, step.end_ns
        row = step.row | {"failed": step.row["errors"] - step.row["dropped"]}
        labels = _labels(endpoint=row["endpoint"], step=row["index"], **_level(step.rate, step.concurrency))
        steps.append(Subject(labels, row, step.begin_ns, step.end_ns))
    whole = _whole(manifest)
    return {
        "step": steps,
        "ledger": [
            Subject(_labels(endpoint=row["endpoint"], step=row["index"]), row, *times.get(row["index"], whole))
            for row in report["ledger"]
        ],
        "pair": [
            Subject(_labels(a=row["a"], b=row["b"], **_level(row["rate"], row["concurrency"])), row, *whole)
            for row in report["pairs"]
        ],
        "capacity": [
            Subject(_labels(endpoint=row["endpoint"], objective=row["slo"]), row, *whole) for row in report["capacity"]
        ],
    }


def _whole(manifest: Manifest) -> tuple[int, int]:
    return manifest.started_ns, max(manifest.started_ns, manifest.finished_ns)


def _level(rate: float, concurrency: int) -> Mapping[str, object]:
    return {"concurrency": concurrency} if concurrency else {"rate": f"{rate:.15g}"}


def _labels(**found: object) -> Labels:
    return tuple((key, one_line(value)) for key, value in found.items())
