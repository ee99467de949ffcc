"""OpenMetrics, for dashboards."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tailrate.analysis.exports.forms._form import Report, TextForm, one_line, steps_of
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.text import words

_UNITS = ("seconds", "bytes", "joules", "watts", "celsius", "hertz", "ratio")
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
step_device_use_ratio | kind util_pct=mean util_max_pct=most | How much of the time the device was busy.
step_device_active_ratio | part sm_active_pct=sm tensor_active_pct=tensor dram_active_pct=dram | Of its parts.
step_device_throttled_ratio | - throttled_pct | Share of samples with a lowered clock.
step_device_memory_bytes | - mem_peak_bytes | Largest device memory in use.
step_device_power_watts | - power_w | Mean power of the device.
step_device_temperature_celsius | - temp_c | Temperature of the device.
step_device_clock_hertz | - sm_mhz | Clock of the processors of the device.
step_energy_joules | - joules | Energy of the device over the window.
step_request_energy_joules | kind joules_per_request=gross net_joules_per_request=net | For a success; net: above idle.
step_objective_met | - slo | Whether the objective was met.
step_trusted | - trusted | Whether the figures of the step can be trusted.
ledger_requests | outcome ok refused failed timed_out unreachable dropped lost | All arrivals, settle time included.
pair_latency_ratio | quantile p50_ratio=0.5 p99_ratio=0.99 | Latency of a over that of b.
pair_latency_p99_bound_ratio | bound ratio_low=low ratio_high=high | The interval of the ratio of P99.
capacity_requests_per_second | kind low_rps=kept max_rps=achieved high_rps=missed | The limit lies from kept to missed.
capacity_resolved | - resolved | Whether rates on both sides of the limit were tried.
"""
"""Name, label with the keys of a row and their label values (a key without one stands for itself), meaning."""


def openmetrics(report: Report, manifest: Manifest) -> str:
    """OpenMetrics text in base units; a sample of what is unknown is left out."""
    rows: dict[str, list[tuple[dict[str, object], Report]]] = {"step": []}
    for step in steps_of(report, manifest):
        labels = {"endpoint": step.row["endpoint"], "step": step.row["index"], **_level(step.rate, step.concurrency)}
        rows["step"].append((labels, step.row | {"failed": step.row["errors"] - step.row["dropped"]}))
    rows["ledger"] = [({"endpoint": row["endpoint"], "step": row["index"]}, row) for row in report["ledger"]]
    rows["pair"] = [({"a": p["a"], "b": p["b"], **_level(p["rate"], p["concurrency"])}, p) for p in report["pairs"]]
    rows["capacity"] = [({"endpoint": row["endpoint"], "objective": row["slo"]}, row) for row in report["capacity"]]
    about = {"run": report["run"], "status": manifest.status, "mode": manifest.scenario.get("mode") or "unknown"}
    out = ["# TYPE tailrate_run info", "# HELP tailrate_run What the figures are of."]
    out += [f"tailrate_run_info{_labels(about)} 1"]
    out += ["# TYPE tailrate_verdict stateset", "# HELP tailrate_verdict What the run says of the objective."]
    out += [f"tailrate_verdict{_labels({'tailrate_verdict': v})} {v == report['verdict']:d}" for v in words.VERDICTS]
    for line in _GAUGES.strip().splitlines():
        name, source, meaning = line.split(" | ")
        label, *keys = source.split()
        samples = {}
        for labels, row in rows[name.partition("_")[0]]:
            for key, _, value in (pair.partition("=") for pair in keys):
                if row.get(key) is not None:
                    figure = float(row[key]) / _PER_UNIT.get(key.rpartition("_")[2], 1.0)
                    samples[_labels(labels | ({} if label == "-" else {label: value or key}))] = figure
        if samples:
            unit = name.rpartition("_")[2]
            out += [f"# TYPE tailrate_{name} gauge", f"# HELP tailrate_{name} {meaning}"]
            out += [f"# UNIT tailrate_{name} {unit}"] if unit in _UNITS else []
            out += [f"tailrate_{name}{written} {_sample(figure)}" for written, figure in samples.items()]
    return "\n".join([*out, "# EOF"]) + "\n"


def _level(rate: float, concurrency: int) -> dict[str, object]:
    return {"concurrency": concurrency} if concurrency else {"rate": _sample(rate)}


def _labels(labels: Mapping[str, object]) -> str:
    values = (one_line(value).replace("\\", "\\\\").replace('"', '\\"') for value in labels.values())
    return "{" + ",".join(f'{key}="{value}"' for key, value in zip(labels, values, strict=True)) + "}"


def _sample(value: float) -> str:
    return "+Inf" if math.isinf(value) else f"{value:.15g}"


FORM = TextForm("metrics.txt", openmetrics)
