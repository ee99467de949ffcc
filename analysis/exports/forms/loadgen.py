"""A summary in the manner of LoadGen's."""

from __future__ import annotations

import math

from tailrate.analysis.exports.forms._form import Report, TextForm, one_line, steps_of
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.records.objective import overall

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
    limits = ", ".join(
        f"{slo.latency_ms * 1e6:.0f} (P{slo.percentile:g})" for slo in overall(manifest.slos) if slo.latency_ms
    )
    for step in steps_of(report, manifest):
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
            out += ["", rule, title, rule, *(f"{name} : {one_line(value)}" for name, value in lines.items())]
    return "\n".join([*out, ""])


def _yes(answer: bool | None) -> str:
    return "cannot be said" if answer is None else "Yes" if answer else "NO"


def _written(value: float | None, form: str) -> str:
    return "unknown" if value is None else "infinite" if math.isinf(value) else f"{value:{form}}"


FORM = TextForm("summary.txt", loadgen)
