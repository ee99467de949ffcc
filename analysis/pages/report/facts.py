"""What is said in words around the figures, the same for the page and for the Markdown.

Where and how the run was made, what the server said, whether it can be trusted, how to repeat it: plain
text, taken from the manifest and the report; the page and `report.md` only lay it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailrate.analysis.pages.report.faults import fault_event
from tailrate.analysis.pages.report.view import View
from tailrate.analysis.text import words


def environment(view: View) -> list[tuple[str, str]]:
    """What the run ran on and how, as names and values."""
    manifest, scenario = view.run.manifest, view.run.manifest.scenario
    described = (
        f"{e.get('model')}/{e.get('variant')}" + (f" on {e['device']}" if e.get("device") else "")
        for e in manifest.endpoints
    )
    seconds, steps = view.seconds(), scenario["steps"]
    facts = [
        ("endpoints", ", ".join(described)),
        ("hosts", words.sentence_list(words.fact("", host)[1] for host in manifest.hosts)),
        ("versions", ", ".join(f"{name} {value}" for name, value in words.flat(manifest.versions).items() if value)),
        ("mode", scenario.get("mode")),
        ("arrivals", "closed loop: no schedule" if scenario.get("closed") else _arrivals(scenario)),
        ("asked for", ", ".join(dict.fromkeys(words.load(s["rate"], s.get("concurrency") or 0) for s in steps))),
        ("step length", _step_lengths(steps)),
        ("objective", words.sentence_list(manifest.slos)),
        ("seed", scenario.get("seed")),
        ("time-out", words.fact("timeout_s", scenario.get("timeout_s"))[1] if scenario.get("timeout_s") else ""),
        ("most in flight", _in_flight(scenario)),
        ("way to the replicas", _way(manifest.extra.get("ingress"))),
        ("started", words.clock_time(manifest.started_ns) if manifest.started_ns else ""),
        ("duration", words.duration(seconds) if seconds else ""),
    ]
    return [(name, str(value)) for name, value in facts if value not in (None, "")]


def _in_flight(scenario: Mapping[str, Any]) -> str:
    by = scenario.get("in_flight_by")
    return f"{scenario.get('max_in_flight') or ''}{f' by {by}' if by else ''}"


def _arrivals(scenario: Mapping[str, Any]) -> str:
    """`gamma, burstiness 0.25, sine:0.5:60`, or the trace."""
    if scenario.get("trace"):
        return f"those of {scenario['trace']}, at {words.significant(scenario.get('speed'))} times its speed"
    said = [str(scenario.get("arrivals") or "")]
    if said[0] == "gamma":
        said.append(f"burstiness {words.significant(scenario.get('burstiness'))}")
    if scenario.get("shape") not in (None, "flat"):
        said.append(str(scenario["shape"]))
    return ", ".join(said)


def _way(ingress: Any) -> str:
    said = (ingress.get("after") or ingress.get("before")) if isinstance(ingress, Mapping) else None
    return str(said.get("way") or "") if isinstance(said, Mapping) else ""


def _step_lengths(steps: Sequence[dict[str, Any]]) -> str:
    lengths = dict.fromkeys(words.significant(step["seconds"]) for step in steps)
    settles = dict.fromkeys(words.significant(step["settle_s"]) for step in steps if step.get("settle_s"))
    return (
        f"{', '.join(lengths)} s" + (f", the first {', '.join(settles)} s left out" if settles else "") if steps else ""
    )


CAPACITY_HEADS = ("endpoint", "objective", "highest rate that kept it", "lowest that missed it", "limited by")


def capacity_rows(view: View) -> list[list[str]]:
    """How much each endpoint can take, under `CAPACITY_HEADS`; the limit lies between the two rates."""
    return [
        [
            row["endpoint"],
            row["slo"],
            "none that was tried" if row["low_rps"] is None else words.rate(row["low_rps"]),
            "none that was tried" if row["high_rps"] is None else words.rate(row["high_rps"]),
            row["limited_by"] or words.ABSENT,
        ]
        for row in view.report["capacity"]
    ]


def endpoint_facts(view: View) -> tuple[list[str], list[list[str]]]:
    """What the server said of each endpoint: the names of the endpoints, then one row per parameter."""
    said = [
        (
            f"{e.get('model')}/{e.get('variant')}",
            words.flat({k: v for k, v in e.items() if k in ("max_batch", "parameters")}),
            words.flat({"parameters": e.get("parameters_after") or {}}),
        )
        for e in view.run.manifest.endpoints
    ]
    keys = dict.fromkeys(key for _, before, after in said for key in (*before, *after))
    rows = []
    for key in keys:
        name = words.fact(key.removeprefix("parameters "), None)[0]
        rows.append([name, *(_then(key, before.get(key), after.get(key)) for _, before, after in said)])
    return [name for name, *_ in said], rows


def _then(key: str, before: Any, after: Any) -> str:
    """`0, after the run 3`, or the one value that it had all along."""
    first, then = (words.ABSENT if value == "" else words.fact(key, value)[1] for value in (before, after))
    return first if after in (None, before) else f"{first}, after the run {then}"


def event_text(event: Mapping[str, Any]) -> str:
    """`replica lost: replica r1`, or the sentence that the event carries."""
    if event["event"] == "fault" and event.get("fault"):
        return fault_event(event)
    shown = (key for key in event if key not in ("event", "sentence") and not key.endswith("_ns"))
    rest = {key: event[key] for key in shown if event[key] not in (None, "")}
    said = "; ".join(
        part for part in (str(event.get("sentence") or ""), words.fact("", rest)[1] if rest else "") if part
    )
    return f"{str(event['event']).replace('_', ' ')}{': ' if said else ''}{said}"


LEDGER_HEADS = (
    "step", "asked", "scheduled", "sent", "ok", "refused", "failed", "timed out", "unreachable", "dropped", "lost",
    "late P50, ms", "late P99, ms", "latest, ms",
)  # fmt: skip


def ledger_rows(view: View) -> list[list[str]]:
    """What became of every arrival, under `LEDGER_HEADS`, settle time included."""
    asked = {row["index"]: row["asked"] for row in view.steps}
    counts = ("scheduled", "sent", "ok", "refused", "failed", "timed_out", "unreachable", "dropped", "lost")
    return [
        [
            row["endpoint"],
            asked.get(row["index"], words.ABSENT),
            *(words.count(row[key]) for key in counts),
            *(words.significant(row[key]) for key in ("late_p50_ms", "late_p99_ms", "late_max_ms")),
        ]
        for row in view.report["ledger"]
    ]


def _self_check(found: Mapping[str, Any]) -> str:
    did = "reached" if found.get("closed") else "kept"
    return (
        f"at a null server the load side {did} {words.rate(found.get('safe_rps'))} "
        f"(P50 {words.ms(found.get('p50_ms'))}, P99 {words.ms(found.get('p99_ms'))}, late P99 "
        f"{words.ms(found.get('late_p99_ms'))}, CPU {words.significant(found.get('cpu_pct'))} %)"
    )


@dataclass(frozen=True, slots=True)
class Severity:
    mark: str
    word: str
    meaning: str


SEVERITIES = {
    "wrong": Severity("✕", "Wrong", "Figures that do not say what they seem to"),
    "doubt": Severity("?", "In doubt", "What may be otherwise than it looks"),
    "limit": Severity("!", "Limit", "What holds for this run and not beyond it"),
}
"""How much a risk weighs, the heaviest first."""


def risks(view: View) -> list[tuple[str, str]]:
    """Severity and sentence of each, the heaviest first."""
    known = [(str(risk["severity"]), str(risk["sentence"])) for risk in view.report.get("risks") or ()]
    return sorted(known, key=lambda risk: list(SEVERITIES).index(risk[0]))


_TRUST = {
    "lateness": "lateness of the load generator",
    "ledger": "arrivals",
    "load_cpu_pct": "busiest load process",
    "self_check": "self-check",
    "clock": "clocks against the load generator's",
    "devices": "device samples",
    "join": "requests matched to device samples",
    "settle_s": "left out at the start of a step",
    "untrusted_steps": "steps not to be trusted",
    "overloaded_steps": "steps overloaded",
    "small_steps": "steps too small for their percentile",
}


def trust_facts(view: View) -> list[tuple[str, str]]:
    """What the figures rest on; what nobody measured is left out."""
    known = {key: value for key, value in view.report["trust"].items() if value is not None and key != "status"}
    if isinstance(known.get("self_check"), Mapping):
        known["self_check"] = _self_check(known["self_check"])
    return [(_TRUST.get(key) or words.fact(key, value)[0], words.fact(key, value)[1]) for key, value in known.items()]


def pitfalls(view: View) -> list[str]:
    """What a reader could misread in this run, said plainly."""
    found = [
        "Latency counts from the instant at which a request was meant to be sent, so a late load generator makes it "
        "worse and never better.",
        "A failed, timed-out or dropped request is infinitely late; the P99 of successes alone stands beside it.",
    ]
    if view.has_gpu():
        found.append(
            "GPU utilisation is the share of time in which any kernel ran at all: 100 % does not mean that the GPU "
            "could do no more."
        )
    if any(row.get("joules") is not None for row in view.steps):
        found.append("Energy is that of the whole device, whoever else used it.")
    if any((words.finite(r.get("early_stop_n")) or 0) > (words.finite(r.get("n")) or 0) for r in view.steps):
        found.append("Some steps have fewer samples than their P99 needs: see n and n needed in the table of steps.")
    return found


def exceptions(view: View) -> list[str]:
    """One line per step that is not to be taken as it is."""
    return [
        f"{row['endpoint']} at {row['asked']}: {words.sentence_list(row['reasons'])}"
        for row in view.steps
        if row.get("reasons")
    ]


def command(view: View) -> str | None:
    said = view.run.manifest.extra.get("command")
    return " ".join(str(part) for part in said) if isinstance(said, list) else str(said) if said else None
