"""OpenTelemetry's metrics: a file that its collector reads, also sent to where the usual variables say."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tailrate.analysis.exports.forms._figures import Figure, about, figures
from tailrate.analysis.exports.forms._form import Report, TextForm
from tailrate.analysis.records.folder import RunError
from tailrate.analysis.records.manifest import Manifest

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

_UCUM = {
    "seconds": "s", "bytes": "By", "joules": "J", "watts": "W", "celsius": "Cel", "hertz": "Hz", "ratio": "1",
}  # fmt: skip
_TIMEOUT_MS = 10_000


def otlp(report: Report, manifest: Manifest) -> str:
    """A request of the protocol's JSON form in one line; each figure has the time of what it is of."""
    named = {"service.name": "tailrate"} | {f"tailrate.{key}": value for key, value in about(report, manifest).items()}
    metrics = [_metric(figure) for figure in figures(report, manifest)]
    scoped = [{"scope": {"name": "tailrate"}, "metrics": metrics}]
    whole = {"resourceMetrics": [{"resource": {"attributes": _attributes(named.items())}, "scopeMetrics": scoped}]}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"


def _metric(figure: Figure) -> dict[str, Any]:
    room, _, rest = figure.name.removesuffix(f"_{figure.unit}").partition("_")
    points = [
        {
            "attributes": _attributes(sample.labels),
            "startTimeUnixNano": str(sample.begin_ns),
            "timeUnixNano": str(sample.end_ns),
            "asDouble": "Infinity" if math.isinf(sample.value) else sample.value,
        }
        for sample in figure.samples
    ]
    name = ".".join(filter(None, ("tailrate", room, rest)))
    named = {"name": name, "description": figure.meaning, "unit": _UCUM.get(figure.unit, "")}
    return {**named, "gauge": {"dataPoints": points}}


def _attributes(labels: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in labels]


FILE = TextForm("metrics.otlp.json", otlp)


def _write(run: Run, report: Report) -> Path | str:
    path = FILE(run, report)
    url = _url(os.environ)
    if url is None:
        return path
    _send(url, path.read_bytes())
    return f"{path}, sent to {url}"


def _setting(environ: Mapping[str, str], name: str) -> str | None:
    """Of metrics, or of all signals."""
    return environ.get(f"OTEL_EXPORTER_OTLP_METRICS_{name}") or environ.get(f"OTEL_EXPORTER_OTLP_{name}")


def _url(environ: Mapping[str, str]) -> str | None:
    """Where metrics go: what is for metrics alone is a whole address."""
    if whole := environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        return whole
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return f"{base.rstrip('/')}/v1/metrics" if base else None


def _send(url: str, body: bytes) -> None:
    import urllib.error
    import urllib.request  # not before it is needed: every report looks at the forms

    headers = {"content-type": "application/json"}
    for pair in (_setting(os.environ, "HEADERS") or "").split(","):
        key, said, value = pair.partition("=")
        if said:
            headers[unquote(key.strip())] = unquote(value.strip())
    try:
        timeout_s = float(_setting(os.environ, "TIMEOUT") or _TIMEOUT_MS) / 1e3
        request = urllib.request.Request(url, body, headers)  # noqa: S310  # of whoever exports
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            rejected = _rejected(answer.read())
    except urllib.error.HTTPError as problem:
        words = problem.read(500).decode(errors="replace").strip()
        raise RunError(f"{url} refused the metrics with {problem.code}: {words or problem.reason}") from None
    except (OSError, ValueError) as problem:
        raise RunError(f"the metrics could not be sent to {url}: {getattr(problem, 'reason', problem)}") from None
    if rejected:
        raise RunError(f"{url} did not take {rejected}")


def _rejected(answer: bytes) -> str:
    """What a receiver that answers 200 says that it did not take."""
    try:
        part = json.loads(answer)["partialSuccess"]
        count = int(part.get("rejectedDataPoints", 0))
    except (ValueError, LookupError, TypeError, AttributeError):  # mostly it says nothing
        return ""
    return f"{count} of the points: {part.get('errorMessage') or 'no reason was given'}" if count else ""


FORM = _write
