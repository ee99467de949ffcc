"""JUnit XML, for CI."""

from __future__ import annotations

from datetime import UTC, datetime
from xml.etree import ElementTree

from tailrate.analysis.exports.forms._form import ExportedStep, Report, TextForm, one_line, steps_of, written
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.text import words

_FIGURES = (
    "n", "errors", "offered_rps", "achieved_rps", "p50_ms", "p99_ms", "p99_low_ms", "p99_high_ms", "late_p99_ms",
    "joules_per_request",
)  # fmt: skip


def junit(report: Report, manifest: Manifest) -> str:
    """JUnit XML: a case per step and two for the run, with a failure or an error only where the exit code is not 0.

    Key figures are properties of the suite, because the common schemas know none of a case.
    """
    steps, verdict, why = list(steps_of(report, manifest)), report["verdict"], words.sentence_list(report["reasons"])
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
            _element(properties, "property", name=name, value=written(step.row[key]))
    for endpoint, name, seconds, outcome in cases:
        case = _element(suite, "testcase", classname=endpoint, name=name, time=f"{seconds:.3f}")
        if outcome:
            _element(case, outcome[0], type=f"tailrate.{outcome[0]}", message=outcome[1])
    _element(suite, "system-out").text = one_line(report["conclusion"])
    _element(suite, "system-err")
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _element(parent: ElementTree.Element, tag: str, **attributes: object) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, {name: one_line(value) for name, value in attributes.items()})


def _outcome(step: ExportedStep, verdict: str, manifest: Manifest) -> tuple[str, str] | None:
    if step.kept:
        return None
    if not step.row["trusted"]:
        return "skipped", f"cannot be trusted: {step.why}"
    if step.kept is None:
        return ("skipped", step.why) if manifest.slos else None
    if verdict == "pass":
        return "skipped", f"past what the endpoint takes, as rising rates are meant to go: {step.why}"
    return "failure", step.why


FORM = TextForm("junit.xml", junit)
