"""OpenTelemetry's form, read by OpenTelemetry's own messages, and sent to a receiver that has nothing else."""

import atexit
import json
import math
import shutil
import tempfile
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from folders import Load, Waveform, constant, make_run, queue
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from test_forms import RUNS

from tailrate import analysis
from tailrate.analysis.exports.forms import openmetrics, otlp
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.records.folder import RunError
from tailrate.analysis.verdicts.run import Run

LOADS = [Load("m/eager", 100, constant(10)), Load("m/eager", 200, queue(8)), Load("m/compiled", 100, constant(5))]
UNITS = {"s": "seconds", "By": "bytes", "J": "joules", "W": "watts", "Cel": "celsius", "Hz": "hertz", "1": "ratio"}

Point = tuple[str, frozenset[tuple[str, str]]]


@cache
def made(kind: str) -> tuple[Path, dict[str, Any]]:
    """A run and its report, which no test changes."""
    loads, more = RUNS[kind]
    folder = make_run(Path(tempfile.mkdtemp(prefix="tailrate-")) / "run", loads, **more).folder
    atexit.register(shutil.rmtree, folder.parent)
    return folder, json.loads(json.dumps(report_of(analysis.load(folder))))


def run_of(folder: Path, kind: str = "ramp") -> tuple[Run, dict[str, Any]]:
    """In a folder of its own."""
    whole, report = made(kind)
    shutil.copytree(whole, folder / "run")
    return analysis.load(folder / "run"), report


def points(text: str) -> dict[Point, Any]:
    (of_resource,) = Parse(text, ExportMetricsServiceRequest()).resource_metrics
    (scope,) = of_resource.scope_metrics
    found = {}
    for metric in scope.metrics:
        assert metric.WhichOneof("data") == "gauge"
        assert metric.description
        for point in metric.gauge.data_points:
            key = metric.name, frozenset((one.key, one.value.string_value) for one in point.attributes)
            assert key not in found
            found[key] = point
    return found


@pytest.mark.parametrize("kind", RUNS)
def test_it_has_what_openmetrics_has(tmp_path: Path, kind: str) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    run, report = run_of(tmp_path, kind)
    wanted = {}
    for family in parser.text_string_to_metric_families(openmetrics.openmetrics(report, run.manifest)):
        for sample in family.samples:
            labels = {key.removeprefix("tailrate_"): value for key, value in sample.labels.items()}
            wanted[sample.name, frozenset(labels.items())] = sample.value
    wanted.pop(next(key for key in wanted if key[0] == "tailrate_run_info"))
    text = otlp.otlp(report, run.manifest)
    units = {
        metric.name: metric.unit
        for metric in Parse(text, ExportMetricsServiceRequest()).resource_metrics[0].scope_metrics[0].metrics
    }
    found = {
        ("_".join(filter(None, (name.replace(".", "_"), UNITS.get(units[name])))), labels): point.as_double
        for (name, labels), point in points(text).items()
    }
    assert found == pytest.approx(wanted, rel=1e-14)


def test_a_figure_has_the_time_of_its_step(tmp_path: Path) -> None:
    run, report = run_of(tmp_path)
    found = points(otlp.otlp(report, run.manifest))
    for plan in run.manifest.scenario["steps"]:
        these = [point for (_, labels), point in found.items() if ("step", str(plan["index"])) in labels]
        assert len(these) > 20
        assert {(one.start_time_unix_nano, one.time_unix_nano) for one in these} == {(plan["start_ns"], plan["end_ns"])}
    (of_run,) = [point for (name, labels), point in found.items() if ("verdict", report["verdict"]) in labels]
    whole = (run.manifest.started_ns, run.manifest.finished_ns)
    assert (of_run.start_time_unix_nano, of_run.time_unix_nano, of_run.as_double) == (*whole, 1)


def test_a_step_that_was_cut_short_ends_with_the_run(tmp_path: Path) -> None:
    run, report = run_of(tmp_path, "aborted")
    found = points(otlp.otlp(report, run.manifest))
    assert max(point.time_unix_nano for point in found.values()) <= max(
        run.manifest.finished_ns, *(plan["start_ns"] for plan in run.manifest.scenario["steps"])
    )
    assert all(point.start_time_unix_nano <= point.time_unix_nano for point in found.values())


def test_failures_are_infinite_there_too(tmp_path: Path) -> None:
    run, report = run_of(tmp_path, "failures")
    found = points(otlp.otlp(report, run.manifest))
    of_p99 = {dict(labels)["step"]: point.as_double for (name, labels), point in found.items()
              if name == "tailrate.step.latency" and ("quantile", "0.99") in labels}  # fmt: skip
    assert of_p99 == {"0": math.inf, "1": math.inf}


# ---- sent


class Receiver(HTTPServer):
    """Takes what its protocol's messages can hold, and answers as it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taken)
        self.taken: list[tuple[str, dict[str, str], str]] = []
        self.answers: tuple[int, bytes] = 200, b"{}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Taken(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.server.taken.append((self.path, headers, body))
        status, said = self.server.answers
        self.send_response(status)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    for kind in ("", "METRICS_"):
        for name in ("ENDPOINT", "HEADERS", "TIMEOUT"):
            monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{kind}{name}", raising=False)
    with Receiver() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield found
        finally:
            found.shutdown()
            thread.join()


def test_nothing_is_sent_where_nobody_says_where_to(tmp_path: Path, receiver: Receiver) -> None:
    run, report = run_of(tmp_path)
    path = otlp.FORM(run, report)
    assert path == run.folder / "metrics.otlp.json"
    assert path.read_text().count("\n") == 1
    assert not receiver.taken


@pytest.mark.parametrize("whole", [False, True])
def test_it_goes_where_the_usual_variables_say(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    run, report = run_of(tmp_path)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9" if whole else f"{receiver.url}/")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20one, x-team = a%2Cb")
    if whole:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{receiver.url}/taken/here")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "authorization=two")
    assert receiver.url in str(otlp.FORM(run, report))
    ((path, headers, body),) = receiver.taken
    assert path == ("/taken/here" if whole else "/v1/metrics")
    assert headers["content-type"] == "application/json"
    assert headers["authorization"] == ("two" if whole else "Bearer one")
    assert headers.get("x-team") == (None if whole else "a,b")
    assert body == (run.folder / "metrics.otlp.json").read_text()


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ((401, b"no token"), "refused the metrics with 401: no token"),
        ((503, b""), "refused the metrics with 503: Service Unavailable"),
        (
            (200, b'{"partialSuccess": {"rejectedDataPoints": "3", "errorMessage": "too old"}}'),
            "did not take 3 of the points: too old",
        ),
    ],
)
def test_a_refusal_is_said_in_the_receivers_words(
    tmp_path: Path,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    answers: tuple[int, bytes],
    sentence: str,
) -> None:
    run, report = run_of(tmp_path)
    receiver.answers = answers
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    with pytest.raises(RunError, match=f"^{receiver.url}/v1/metrics {sentence}$"):
        otlp.FORM(run, report)


@pytest.mark.parametrize("answer", [b"", b"ok", b"[]", b'{"partialSuccess": null}', b'{"partialSuccess": {}}'])
def test_an_answer_of_another_form_is_no_refusal(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    run, report = run_of(tmp_path)
    receiver.answers = 200, answer
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    otlp.FORM(run, report)


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"ENDPOINT": "http://127.0.0.1:9"}, r"could not be sent to http://127.0.0.1:9/v1/metrics: .*refused"),
        ({"ENDPOINT": "collector:4318"}, "could not be sent to collector:4318/v1/metrics: unknown url type: collector"),
        ({"ENDPOINT": "http://127.0.0.1:9", "TIMEOUT": "soon"}, "could not be sent to .*'soon'"),
    ],
)
def test_who_cannot_be_reached_is_said(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], sentence: str
) -> None:
    run, report = run_of(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
    with pytest.raises(RunError, match=sentence):
        otlp.FORM(run, report)


def test_devices_and_streams_are_among_the_figures(tmp_path: Path) -> None:
    run = analysis.load(make_run(tmp_path / "run", LOADS, devices=[Waveform()]).folder)
    report = report_of(run)
    report["steps"][0] |= {"ttft_p99_ms": 120.0, "tpot_p50_ms": 20.0, "tokens_out_rps": 640.0, "joules_per_token": 0.5}
    found = {
        (name, dict(labels).get("quantile") or dict(labels).get("kind")): point.as_double
        for (name, labels), point in points(otlp.otlp(report, run.manifest)).items()
        if ("step", "0") in labels
    }
    assert found["tailrate.step.ttft", "0.99"] == 0.12
    assert found["tailrate.step.tpot", "0.5"] == 0.02
    assert found["tailrate.step.tokens_per_second", "out"] == 640
    assert found["tailrate.step.token_energy", None] == 0.5
    assert found["tailrate.step.device_use", "mean"] == 0.9
