"""What ran, on what and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailrate.analysis.pages.html.markup import Html
from tailrate.analysis.pages.report.sections.section import Section, bullets, named
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.records.manifest import endpoint_name
from tailrate.analysis.text import words


def _html(view: View) -> Html:
    return named(_environment(view))


def _lines(view: View) -> list[str]:
    return bullets(f"{name}: {value}" for name, value in _environment(view))


def _environment(view: View) -> list[tuple[str, str]]:
    """What the run ran on and how, as names and values."""
    manifest, scenario = view.run.manifest, view.run.manifest.scenario
    described = (
        endpoint_name(entry) + (f" on {entry['device']}" if entry.get("device") else "") for entry in manifest.endpoints
    )
    seconds, steps = view.seconds(), scenario["steps"]
    facts = [
        ("endpoints", ", ".join(described)),
        ("hosts", words.sentence_list(words.fact("", host)[1] for host in manifest.hosts)),
        ("versions", ", ".join(f"{name} {value}" for name, value in words.flat(manifest.versions).items() if value)),
        ("mode", scenario.get("mode")),
        ("arrivals", "closed loop: no schedule" if scenario.get("closed") else _arrivals(scenario)),
        ("input", _data(scenario.get("data"))),
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


def _data(said: Any) -> str:
    """`500 rows of rows.csv, drawn, each at most once; slices by kind`; nothing where inputs were drawn."""
    if not isinstance(said, Mapping):
        return ""
    rows = f"{words.count(said['rows'])} rows" if said.get("rows") else "rows"
    often = "each at most once" if said.get("reuse") == "unique" else "which come again"
    slices = f"; slices by {said['label']}" if said.get("label") else ""
    return f"{rows} of {said.get('path')}, {str(said.get('order')).replace('-', ' ')}, {often}{slices}"


def _way(ingress: Any) -> str:
    said = (ingress.get("after") or ingress.get("before")) if isinstance(ingress, Mapping) else None
    return str(said.get("way") or "") if isinstance(said, Mapping) else ""


def _step_lengths(steps: Sequence[dict[str, Any]]) -> str:
    lengths = dict.fromkeys(words.significant(step["seconds"]) for step in steps)
    settles = dict.fromkeys(words.significant(step["settle_s"]) for step in steps if step.get("settle_s"))
    return (
        f"{', '.join(lengths)} s" + (f", the first {', '.join(settles)} s left out" if settles else "") if steps else ""
    )


RAN = Section("ran", "What ran", _html, _lines)
