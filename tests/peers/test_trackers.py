"""A run exported to systems that track experiments, each in its own environment, and read back by their clients."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from folders import make_run
from starts import need
from test_forms import RUNS
from waiting import PATIENCE_S, until

from tailrate.serve.deploy.haproxy import free_port

pytestmark = [pytest.mark.peer, pytest.mark.live, pytest.mark.long]

ROOT = Path(__file__).parents[2]
SEEN = Path(__file__).parent / "trackers"


def python_of(name: str) -> Path:
    need("peer")
    found = ROOT / ".peers" / name / "bin" / "python"
    if not found.exists():
        pytest.skip(f"{found} is not there: make .peers/.trackers")
    return found


def exported(name: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python_of(name), "-P", "-m", "tailrate", "report", folder, "--export", name],
        env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    loads, more = RUNS["ramp"]
    return make_run(tmp_path / "run", loads, **more).folder


# ---- MLflow


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What its clients need in their environment."""
    python, folder, port = python_of("mlflow"), tmp_path_factory.mktemp("mlflow"), free_port()
    environment = os.environ | {
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true",
    }  # fmt: skip
    environment["PATH"] = f"{python.parent}:{environment['PATH']}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
             "--backend-store-uri", f"sqlite:///{folder}/runs.db", "--artifacts-destination", str(folder / "files")],
            cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"{environment['MLFLOW_TRACKING_URI']}/health", timeout=PATIENCE_S):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False

    try:
        until(answers)
        yield environment
    finally:
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:  # its job runners outlive it
            one.kill()
        process.wait()


def seen_in_mlflow(environment: dict[str, str], experiment: str) -> list[dict[str, Any]]:
    command = [python_of("mlflow"), SEEN / "seen_in_mlflow.py", experiment]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_mlflow_has_the_run(folder: Path, mlflow_server: dict[str, str]) -> None:
    environment = mlflow_server | {"MLFLOW_EXPERIMENT_NAME": "eager against compiled"}
    done = exported("mlflow", folder, environment)
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "report.json").read_text())
    (run,) = seen_in_mlflow(environment, "eager against compiled")
    assert (run["name"], run["status"]) == ("run", "FINISHED")
    manifest = json.loads((folder / "run.json").read_text())
    assert run["times_ms"] == [manifest["started_ns"] // 1_000_000, manifest["finished_ns"] // 1_000_000]
    assert run["tags"]["tailrate.verdict"] == report["verdict"] == "pass"
    assert run["tags"]["mlflow.note.content"] == report["conclusion"]
    assert run["params"]["setting objective"] == "p99<50ms"
    for row, at in zip(report["steps"], (100, 200, 100), strict=True):
        plan = manifest["scenario"]["steps"][row["index"]]
        for column in ("p50_ms", "p99_ms", "achieved_rps", "joules_per_request"):
            history = run["metrics"][f"{column}/{row['endpoint']}"]
            assert [at, row[column], plan["end_ns"] // 1_000_000] in history
    assert set(run["files"]) == {"report.html", "report.md", "report.json", "steps.csv", "run.json"}
    assert run["files"]["report.json"] == (folder / "report.json").read_text()
    again = exported("mlflow", folder, environment)
    assert again.returncode == 0
    assert again.stdout.count("(already)") == 1
    assert len(seen_in_mlflow(environment, "eager against compiled")) == 1


def test_a_run_of_failures_and_odd_names_is_taken(tmp_path: Path, mlflow_server: dict[str, str]) -> None:
    for number, kind in enumerate(("failures", "hostile", "nothing at all", "foreign")):
        loads, more = RUNS[kind]
        made = make_run(tmp_path / f"run{number}", loads, **more)
        done = exported("mlflow", made.folder, mlflow_server)
        assert done.returncode in (0, 1, 3), done.stderr
    found = {run["name"]: run for run in seen_in_mlflow(mlflow_server, "tailrate")}
    assert set(found) == {"run0", "run1", "run2", "run3"}
    p99 = found["run0"]["metrics"]["p99_ms/m/a"]
    assert [one[1] > 1e300 for one in p99] == [True, True]


def test_a_server_that_is_not_there_is_said(folder: Path) -> None:
    environment = os.environ | {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{free_port()}", "DO_NOT_TRACK": "true"}
    environment |= {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = exported("mlflow", folder, environment)
    assert done.returncode == 2
    assert done.stderr.startswith("tailrate: MLflow at http://127.0.0.1:")
    assert (folder / "report.json").exists()


# ---- Weights & Biases


def test_weights_and_biases_has_the_run(folder: Path) -> None:
    environment = os.environ | {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
    done = exported("wandb", folder, environment)
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    command = [python_of("wandb"), SEEN / "seen_in_wandb.py", file]
    said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert said.returncode == 0, said.stderr
    seen = json.loads(said.stdout)
    report = json.loads((folder / "report.json").read_text())
    assert (seen["project"], seen["name"], seen["tags"]) == ("tailrate", "run", [report["verdict"]])
    assert seen["notes"] == report["conclusion"]
    assert seen["config"]["setting objective"] == "p99<50ms"
    for row, load in zip(report["steps"], (100, 200, 100), strict=True):
        (line,) = [line for line in seen["history"] if line["load"] == load and f"p99_ms/{row['endpoint']}" in line]
        assert line[f"p99_ms/{row['endpoint']}"] == row["p99_ms"]
        assert line[f"achieved_rps/{row['endpoint']}"] == row["achieved_rps"]
    assert seen["summary"]["verdict"] == report["verdict"]
    assert seen["summary"]["capacity_rps/m/eager/p99<50ms"] == 100
    assert set(seen["files"]) == {"report.html", "report.md", "report.json", "steps.csv", "run.json"}
