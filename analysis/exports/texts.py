"""The report for other programs: JUnit for CI, GitHub's step summary, OpenMetrics, a summary like LoadGen's.

Pure functions from the content of `report.json` and the manifest to text; `EXPORTS` names the file of each in the run
folder. Judges nothing: verdict, trust and reasons are the report's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, takewhile
from typing import Any
from xml.etree import ElementTree

from tailrate.analysis.records import Manifest
from tailrate.analysis.run.infinities import restored
from tailrate.analysis.text import words

Report = Mapping[str, Any]

_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped."""


@dataclass(frozen=True, slots=True)
class _Step:
    row: dict[str, Any]
    """Of the report, infinities restored."""
    rate: float
    concurrency: int
    seconds: float

    @property
    def asked(self) -> str:
        return words.load(self.rate, self.concurrency)

    @property
    def name(self) -> str:
        return f"step {self.row['index']} at {self.asked}"

    @property
    def why(self) -> str:
        return words.sentence_list(self.row["reasons"]) or "no reason was recorded"


def _steps(report: Report, manifest: Manifest) -> Iterator[_Step]:
    plans = {plan["index"]: plan for plan in manifest.scenario["steps"]}
    stopped_ns = manifest.finished_ns if manifest.status != "complete" else 0
    for row in report["steps"]:
        plan = plans.get(row["index"], {})
        begin, end = plan.get("start_ns", 0), plan.get("end_ns", 0)
        seconds = max(0, min(end, stopped_ns or end) - begin) / 1e9
        rate = float(plan.get("rate") or row["offered_rps"] or 0.0)
        yield _Step(restored(row), rate, int(plan.get("concurrency") or 0), seconds)


def _line(text: object) -> str:
    """One line that every form can hold."""
    return " ".join(_NO_XML.sub("\ufffd", str(text)).split())


# ---- JUnit

_FIGURES = (
    "n", "errors", "offered_rps", "achieved_rps", "p50_ms", "p99_ms", "p99_low_ms", "p99_high_ms", "late_p99_ms",
    "joules_per_request",
)  # fmt: skip


def junit(report: Report, manifest: Manifest) -> str:
    """JUnit XML: a case per step and two for the run, with a failure or an error only where the exit code is not 0.

    Key figures are properties of the suite, because the common schemas know none of a case.
    """
    steps, verdict, why = list(_steps(report, manifest)), report["verdict"], words.sentence_list(report["reasons"])
    unmet = {"fail": ("failure", why), "inconclusive": ("skipped", "the run cannot say")}.get(verdict)
    cases = [(step.row["endpoint"], step.name, step.seconds, _outcome(step, verdict, manifest)) for step in steps]
    cases += [
        ("run", "the run can be trusted", 0.0, ("error", why) if verdict == "inconclusive" else None),
        ("run", "the objective is met", 0.0, unmet if manifest.slos or unmet else ("skipped", "no objective was set")),
    ]
    counts = {kind: sum(1 for *_, out in cases if out and out[0] == kind) for kind in ("failure", "error", "skipped")}
    root = ElementTree.Element("testsuites")
    suite = _element(
        root,
        "testsuite",
        name=report["run"],
        package="tailrate",
        id=0,
        timestamp=datetime.fromtimestamp(manifest.started_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        hostname=next(
            (host["host"] for host in manifest.hosts if host.get("role") == "load" and host.get("host")), "localhost"
        ),
        tests=len(cases),
        failures=counts["failure"],
        errors=counts["error"],
        skipped=counts["skipped"],
        time=f"{sum(seconds for _, _, seconds, _ in cases):.3f}",
    )
    properties = _element(suite, "properties")
    objective, mode = words.sentence_list(manifest.slos) or "none", manifest.scenario.get("mode") or "unknown"
    for name, value in {"verdict": verdict, "objective": objective, "mode": mode}.items():
        _element(properties, "property", name=name, value=value)
    for step in steps:
        for key in (key for key in _FIGURES if step.row[key] is not None):
            name = f"step {step.row['index']} {step.row['endpoint']} {key}"
            _element(properties, "property", name=name, value=step.row[key])
    for endpoint, name, seconds, outcome in cases:
        case = _element(suite, "testcase", classname=endpoint, name=name, time=f"{seconds:.3f}")
        if outcome:
            _element(case, outcome[0], type=f"tailrate.{outcome[0]}", message=outcome[1])
    _element(suite, "system-out").text = _line(report["conclusion"])
    _element(suite, "system-err")
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _element(parent: ElementTree.Element, tag: str, **attributes: object) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, {name: _line(value) for name, value in attributes.items()})


def _outcome(step: _Step, verdict: str, manifest: Manifest) -> tuple[str, str] | None:
    if not step.row["trusted"]:
        return "skipped", f"cannot be trusted: {step.why}"
    if step.row["slo"] is None and manifest.slos:
        return "skipped", step.why
    if step.row["slo"] is False and verdict == "pass":
        return "skipped", f"past what the endpoint takes, as rising rates are meant to go: {step.why}"
    return ("failure", step.why) if step.row["slo"] is False else None


# ---- GitHub's step summary

MOST_BYTES = 1_000_000
"""GitHub drops a summary of more than 1 MiB."""

_SYMBOLS = {"pass": "✅", "fail": "❌", "inconclusive": "⚠️", "measured": "📏"}
_HEADS = "step|endpoint|rate|achieved, /s|P50, ms|P99, ms|errors|objective|trusted"


def github(report: Report, manifest: Manifest) -> str:
    """Markdown for `$GITHUB_STEP_SUMMARY`; what does not fit is left out and counted."""
    verdict, steps = report["verdict"], list(_steps(report, manifest))
    remarks = [*report["reasons"], *(f"{s.row['endpoint']}, {s.name}: {s.why}" for s in steps if s.row["reasons"])]
    pairs = ((p["a"], p["b"], words.load(p["rate"], p["concurrency"]), words.pair_sentence(p)) for p in report["pairs"])
    parts = [
        _table("Steps", _HEADS, map(_shown, steps)),
        _table("One variant against another", "a|b|at|in words", pairs),
        _table("Capacity", "endpoint|objective|kept up to|missed from|limited by", map(_limit, report["capacity"])),
        (["### Remarks", ""], [f"- {_literal(remark)}" for remark in remarks]),
    ]
    name = _literal(str(manifest.scenario.get("name") or report["run"])[:200])
    said = f"{_SYMBOLS.get(verdict, '')} {words.VERDICTS.get(verdict, verdict)}".strip()
    out, left = [f"## {said}: load test of {name}", "", _literal(report["conclusion"][:5000]), ""], 0
    for above, rows in parts:
        sizes = accumulate(len(row.encode()) + 1 for row in rows)
        fit = sum(1 for _ in takewhile(lambda size: size <= MOST_BYTES // len(parts), sizes))
        out += [*above, *rows[:fit], ""] if rows else []
        left += len(rows) - fit
    if left:
        out.append(f"{words.count(left)} rows were left out, because GitHub shows no more than 1 MiB.")
    return "\n".join(out).rstrip() + "\n"


def _literal(text: object) -> str:
    """Text in which neither Markdown nor HTML takes effect."""
    line = _line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*\[\]|~#]|\b_|_\b)", r"\\\1", line)


def _table(title: str, heads: str, rows: Iterable[Iterable[object]]) -> tuple[list[str], list[str]]:
    """What stands above the rows, and the rows."""
    lines = [f"| {' | '.join(map(_literal, row))} |" for row in (heads.split("|"), *rows)]
    return [f"### {title}", "", lines[0], "|" + " --- |" * len(heads.split("|"))], lines[1:]


def _shown(step: _Step) -> tuple[object, ...]:
    row, number = step.row, words.significant
    between = "" if row["p99_low_ms"] is None else f" ({words.interval(row['p99_low_ms'], row['p99_high_ms'])})"
    figures = (number(row["achieved_rps"]), number(row["p50_ms"]), number(row["p99_ms"]) + between)
    met = {True: "met", False: "missed"}.get(row["slo"], words.ABSENT)
    judged = (words.count(row["errors"]), met, "yes" if row["trusted"] else "no")
    return row["index"], row["endpoint"], step.asked, *figures, *judged


def _limit(row: Report) -> tuple[object, ...]:
    low, high = words.rate(row["low_rps"]), words.rate(row["high_rps"])
    return row["endpoint"], row["slo"], low, high, row["limited_by"] or words.ABSENT


# ---- OpenMetrics

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
    for step in _steps(report, manifest):
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
    values = (_line(value).replace("\\", "\\\\").replace('"', '\\"') for value in labels.values())
    return "{" + ",".join(f'{key}="{value}"' for key, value in zip(labels, values, strict=True)) + "}"


def _sample(value: float) -> str:
    return "+Inf" if math.isinf(value) else f"{value:.15g}"


# ---- in the manner of LoadGen

_SCENARIOS = {"single": "SingleStream", "offline": "Offline"}
_LATENCIES = {"Min": "min_ms", "Max": "max_ms", "Mean (of successes)": "mean_ms"}
_LATENCIES |= {f"{percent}.00 percentile": f"p{percent}_ms" for percent in (50, 90, 95, 97, 99)}
_LATENCIES |= {"99.90 percentile": "p999_ms"}


def loadgen(report: Report, manifest: Manifest) -> str:
    """A summary of each step in the manner of LoadGen's `mlperf_log_summary.txt`, saying that it is tailrate's.

    VALID takes a trusted step of a run that can be trusted, its objective met, and as many arrivals as MLPerf asks for;
    and that the run did not fail for what no step shows, such as a leak or a fault that does not heal.
    """
    out = ["A summary by tailrate in the manner of MLPerf LoadGen's: no LoadGen ran, and this is no MLPerf result."]
    out += ["A sample is a request; latency counts from when it was scheduled; a failed one is infinitely late.", ""]
    scenario, sure = manifest.scenario, report["verdict"] != "inconclusive"
    beside = report["verdict"] == "fail" and not any(row["slo"] is False for row in report["steps"])
    limits = ", ".join(f"{slo.latency_ms * 1e6:.0f} (P{slo.percentile:g})" for slo in manifest.slos if slo.latency_ms)
    for step in _steps(report, manifest):
        row, needed, rule = step.row, step.row["early_stop_n"], "=" * 48
        met, enough = row["slo"] if manifest.slos else True, needed is not None and row["n"] >= needed
        closed = _SCENARIOS.get(scenario.get("mode", ""), "a closed loop, which LoadGen does not have")
        summary = {
            "SUT name": row["endpoint"],
            "Scenario": closed if step.concurrency else "Server",
            "Target samples per second": step.asked if step.concurrency else f"{step.rate:.2f}",
            "Scheduled samples per second": _written(row["offered_rps"], ".2f"),
            "Completed samples per second": _written(row["achieved_rps"], ".2f"),
            "Result is": "VALID" if met and enough and row["trusted"] and sure and not beside else "INVALID",
            "  Performance constraints satisfied": _yes(met) if manifest.slos else "none were set",
            "  Min queries satisfied by early stopping": f"{_yes(enough)} ({row['n']}, needed {needed or 'unknown'})",
            "  Load generator trusted": _yes(row["trusted"]),
            "  Run can be trusted": _yes(sure),
        }
        why = [*(report["reasons"] if beside else ()), *row["reasons"]]
        summary |= {f" * {number}": reason for number, reason in enumerate(why, 1)}
        latencies = {
            f"{what} latency (ns)": _written(row[key] and row[key] * 1e6, ".0f")
            for what, key in _LATENCIES.items()
            if key in row
        }
        asked = {
            "target_latency (ns)": limits or "none",
            "seed": scenario.get("seed", "unknown"),
            "seconds": f"{step.seconds:g}",
        }
        for title, lines in (
            (f"tailrate summary of {step.name}", summary),
            ("Additional Stats", latencies),
            ("Test Parameters Used", asked),
        ):
            out += ["", rule, title, rule, *(f"{name} : {_line(value)}" for name, value in lines.items())]
    return "\n".join([*out, ""])


def _yes(answer: bool | None) -> str:
    return "cannot be said" if answer is None else "Yes" if answer else "NO"


def _written(value: float | None, form: str) -> str:
    return "unknown" if value is None else "infinite" if math.isinf(value) else f"{value:{form}}"


EXPORTS: dict[str, tuple[str, Callable[[Report, Manifest], str]]] = {
    "junit": ("junit.xml", junit),
    "github": ("summary.md", github),
    "openmetrics": ("metrics.txt", openmetrics),
    "loadgen": ("summary.txt", loadgen),
}
"""Name → the file in the run folder and what writes its text."""
