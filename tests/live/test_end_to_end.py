"""The main job as a user runs it: a model served in two variants, driven, joined, reported; then nothing is left."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from serving import started_with
from waiting import PATIENCE_S, clock_step_ns

from tailrate import analysis

pytestmark = pytest.mark.served

HOW = ["--rates", "2,3,4,5", "--step-seconds", "3", "--settle-seconds", "0.5", "--max-batch", "1", "--timeout", "60"]
MODELS = ["mlp", pytest.param("custom_cnn", marks=pytest.mark.long)]
OTHER = {"mlp": "traced", "custom_cnn": "compiled"}
"""Beside eager; that one takes a minute to compile."""

NAMESAKES = ("tailrate.py", "serve.py", "loadtest.py", "analysis.py", "locust.py", "ray.py")
"""What may lie in the folder that somebody works in."""


def environment(cache):
    return os.environ | {"TAILRATE_CACHE": str(cache), "COLUMNS": "200"}


def ours(cache):
    """Processes that were started with `environment(cache)`, or by those, the dying ones aside."""
    return [" ".join(process["cmdline"] or [process["name"]]) for process in started_with("TAILRATE_CACHE", str(cache))]


def assert_nothing_is_left(cache):
    deadline = time.monotonic() + PATIENCE_S
    while ours(cache) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert ours(cache) == []


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return request.param


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name in NAMESAKES:
        (folder / name).write_text("import os\nopen(f'{__file__}-ran-{os.getpid()}', 'w').close()\n")
    command = [sys.executable, "-P", "-m", "tailrate", "run", model, "--variants", f"eager,{OTHER[model]}", *HOW]
    command += ["--run-dir", str(folder), "--run-id", "it", "--slo", "p50<5s"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=400, check=False, env=environment(folder / "cache"), cwd=folder
    )
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert_nothing_is_left(folder / "cache")
    return analysis.load(folder / "it"), done.stdout


def test_progress_is_shown_while_models_load_and_steps_run(run, model):
    _, said = run
    # it is looked at four times a second: what takes a minute to compile is seen at that, what is small is not always
    seen = "warming" if OTHER[model] == "compiled" else "(loading|warming)"
    assert re.search(rf"{model}/{OTHER[model]}: {seen}", said)
    assert f"ready: {model}/eager, {model}/{OTHER[model]} at http://127.0.0.1:" in said
    assert said.count("offered") >= 8


def test_files_of_the_working_directory_are_not_taken_for_modules(run):
    folder = run[0].folder.parent
    assert {path.name for path in folder.glob("*.py*")} == set(NAMESAKES)


def test_every_arrival_of_both_variants_is_there_with_its_stages_and_device(run, model):
    loaded, _ = run
    assert loaded.manifest.status == "complete"
    assert set(loaded.requests()["endpoint"].unique()) == {f"{model}/eager", f"{model}/{OTHER[model]}"}
    assert loaded.manifest.totals["scheduled"] == loaded.manifest.totals["ok"] == len(loaded.requests())
    stages = loaded.requests()[["queue_ms", "batch_ms", "h2d_ms", "compute_ms", "d2h_ms"]].sum(axis=1)
    assert ((stages - loaded.requests()["server_ms"]).abs() <= 0.05 * loaded.requests()["server_ms"]).all()
    assert (loaded.requests()["server_ms"] <= loaded.requests()["service_ms"] + clock_step_ns() / 1e6).all()
    joined = loaded.joined()
    assert joined["util_pct"].notna().mean() > 0.5  # late samples are left out
    assert (joined["device"] == "cpu").all()


def test_the_clock_of_an_endpoint_on_this_machine_is_this_machine_s(run):
    (entry,) = run[0].manifest.clock
    assert abs(entry["offset_ns"]) <= entry["error_ns"] + 1_000_000 + clock_step_ns()


def test_the_report_compares_the_variants_at_four_rates(run, model):
    loaded, _ = run
    report = json.loads((loaded.folder / "report.json").read_text())
    assert len(report["steps"]) == 8
    assert {(pair["a"], pair["b"]) for pair in report["pairs"]} == {(f"{model}/eager", f"{model}/{OTHER[model]}")}
    assert {row["endpoint"] for row in report["capacity"]} == {f"{model}/eager", f"{model}/{OTHER[model]}"}
    by_variant = {entry["variant"]: entry["parameters"] for entry in loaded.manifest.endpoints}
    assert by_variant["eager"]["weights_digest"] == by_variant[OTHER[model]]["weights_digest"]
    assert {"torch", "ray", "locust"} <= set(loaded.manifest.versions)
    for name in ("report.html", "report.md", "steps.csv"):
        assert (loaded.folder / name).stat().st_size > 500


@pytest.mark.long
def test_a_front_door_that_is_killed_takes_its_server_with_it(tmp_path):
    cache = tmp_path / "cache"
    command = [sys.executable, "-m", "tailrate", "run", "null", "--variants", "eager", "--rates", "5"]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [*command, "--run-dir", str(tmp_path), "--run-id", "it", "--step-seconds", "6", "--settle-seconds", "1"],
            env=environment(cache),
            stdout=said,
            stderr=said,
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (Path(tmp_path) / "it/events.jsonl").exists():
            assert process.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < deadline, (tmp_path / "said").read_text()
            time.sleep(0.2)
        running = ours(cache)
        assert all(any(name in words for words in running) for name in ("ray::", "raylet", "locust", "haproxy"))
    finally:
        process.kill()
        process.wait()
    assert_nothing_is_left(cache)
