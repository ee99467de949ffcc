"""OpenMetrics, for dashboards."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tailrate.analysis.exports.forms._figures import about, figures
from tailrate.analysis.exports.forms._form import Report, TextForm
from tailrate.analysis.records.manifest import Manifest


def openmetrics(report: Report, manifest: Manifest) -> str:
    """OpenMetrics text."""
    out = ["# TYPE tailrate_run info", "# HELP tailrate_run What the figures are of."]
    out.append(f"tailrate_run_info{_labels(about(report, manifest).items())} 1")
    for figure in figures(report, manifest):
        name = f"tailrate_{figure.name}"
        states = figure.name == "verdict"  # whose label has the name of the family, in this format
        out += [f"# TYPE {name} {'stateset' if states else 'gauge'}", f"# HELP {name} {figure.meaning}"]
        out += [f"# UNIT {name} {figure.unit}"] if figure.unit else []
        for sample in figure.samples:
            labels = [(name, value) for _, value in sample.labels] if states else sample.labels
            out.append(f"{name}{_labels(labels)} {_sample(sample.value)}")
    return "\n".join([*out, "# EOF"]) + "\n"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    escaped = ((key, value.replace("\\", "\\\\").replace('"', '\\"')) for key, value in labels)
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped) + "}"


def _sample(value: float) -> str:
    return "+Inf" if math.isinf(value) else f"{value:.15g}"


FORM = TextForm("metrics.txt", openmetrics)
