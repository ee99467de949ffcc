"""A summary in the manner of LoadGen's."""

from __future__ import annotations

from tailrate.analysis.exports.forms._form import Report, TextForm, one_line, steps_of, written
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.records.objective import overall

_SCENARIOS = {"single": "SingleStream", "offline": "Offline"}
_LATENCIES = {"Min": "min_ms", "Max": "max_ms", "Mean (of successes)": "mean_ms"}
_LATENCIES |= {f"{percent}.00 percentile": f"p{percent}_ms" for percent in (50, 90, 95, 97, 99)}
_LATENCIES |= {"99.90 percentile": "p999_ms"}


def loadgen(report: Report, manifest: Manifest) -> str:
    """A summary of each step in the manner of LoadGen's `mlperf_log_summary.txt`, saying that it is tailrate's.

    VALID takes a run that can be trusted, a rate that met the objective (without one, a trusted step), and as many
    arrivals at it as MLPerf asks for; and that the run did not fail for what no step shows, such as a leak or a fault
    that does not heal.
    """
    out = ["A summary by tailrate in the manner of MLPerf LoadGen's: no LoadGen ran, and this is no MLPerf result."]
    out += ["A sample is a request; latency counts from when it was scheduled; a failed one is infinitely late.", ""]
    scenario, sure = manifest.scenario, report["verdict"] != "inconclusive"
    steps = list(steps_of(report, manifest))
    beside = report["verdict"] == "fail" and not any(step.kept is False for step in steps)
    limits = ", ".join(
        f"{slo.latency_ms * 1e6:.0f} (P{slo.percentile:g})" for slo in overall(manifest.slos) if slo.latency_ms
    )
    for step in steps:
        row, needed, rule = step.row, step.row["early_stop_n"], "=" * 48
        met, enough = step.kept if manifest.slos else True, needed is not None and step.arrivals >= needed
        arrived = f"{step.arrivals}, needed {needed or 'unknown'}"
        sound = row["trusted"] or step.kept is True  # sent late, and met all the same
        closed = _SCENARIOS.get(scenario.get("mode", ""), "a closed loop, which LoadGen does not have")
        summary = {
            "SUT name": row["endpoint"],
            "Scenario": closed if step.concurrency else "Server",
            "Target samples per second": step.asked if step.concurrency else f"{step.rate:.2f}",
            "Scheduled samples per second": written(row["offered_rps"], ".2f"),
            "Completed samples per second": written(row["achieved_rps"], ".2f"),
            "Result is": "VALID" if met and enough and sound and sure and not beside else "INVALID",
            "  Performance constraints satisfied": _yes(met) if manifest.slos else "none were set",
            "  Min queries satisfied by early stopping": f"{_yes(enough)} ({arrived})",
            "  Load generator trusted": _yes(sound),
            "  Run can be trusted": _yes(sure),
        }
        why = [*(report["reasons"] if beside else ()), *filter(None, [step.said]), *row["reasons"]]
        summary |= {f" * {number}": reason for number, reason in enumerate(why, 1)}
        latencies = {
            f"{what} latency (ns)": written(row[key] and row[key] * 1e6, ".0f")
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


FORM = TextForm("summary.txt", loadgen)
