"""`tailrate plan` on run folders: what it writes and prints, its exit codes, and every sentence that refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from batched import Server, batched_run, linear
from click.testing import CliRunner, Result
from folders import Load, make_run
from plans import roughly as roughly

from tailrate.analysis.planning.plan.plan import check_folder
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.text.table import plain
from tailrate.cli.main import main

pytestmark = pytest.mark.computes

RATES = (100, 250, 400, 500, 540)
ASKED = ("--rate", 2000, "--slo", "p99<60ms")


def tailrate(*words: object, code: int = 0) -> Result:
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code == code, done.output
    return done


def sentence(*words: object) -> str:
    """The one line of a refusal."""
    (line,) = [
        line for line in tailrate("plan", *words, code=2).stderr.strip().splitlines() if not line.startswith("…")
    ]
    assert line.startswith("tailrate: ")
    return line


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A slow variant and one that is twice as fast: at most 601/s and 1,151/s a replica."""
    made = tmp_path_factory.mktemp("runs")
    said = {"load_s": 5.0, "warmup_s": 15.0}
    batched_run(
        made / "eager", Server(linear(0.008, 0.001, 0.05), max_batch=16, said=said, gap_s=0.0005), RATES, seconds=20,
        endpoint="bert/eager", slo=["p99<60ms"],
    )  # fmt: skip
    batched_run(
        made / "compiled", Server(linear(0.004, 0.0005, 0.05), max_batch=16, said=said, gap_s=0.0005),
        [2 * rate for rate in RATES], seconds=20, endpoint="bert/compiled", slo=["p99<60ms"],
    )  # fmt: skip
    make_run(made / "foreign", [Load("bert/other", 50)], foreign=True)
    make_run(made / "mlp", [Load("mlp/eager", 50)], foreign=True)
    return made


@pytest.fixture(scope="module")
def planned(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    out = tmp_path_factory.mktemp("plans") / "one"
    prices = ("--gpu-hour", 2.5, "--currency", "EUR", "--n-plus", 1, "--growth", "20%/quarter")
    shape = ("--shape", "sine:0.5:600", "--autoscale")
    done = tailrate("plan", runs / "eager", runs / "compiled", runs / "foreign", *ASKED, *prices, *shape, "--out", out)
    return out, done


def test_a_plan_takes_the_place_of_a_plan_alone(planned: tuple[Path, Result], runs: Path, tmp_path: Path) -> None:
    made, _ = planned
    for name in ("plan.json", "plan.md", "plan.html", "serve.yaml", "hpa.yaml", "keda.yaml"):
        check_folder(made, autoscale=True)
        (tmp_path / name).write_text("years of work")
        said = sentence(runs / "eager", *ASKED, "--autoscale", "--out", tmp_path)
        assert said == (
            f"tailrate: {tmp_path / name} was not written by tailrate plan; move it away, or choose another --out"
        )
        (tmp_path / name).unlink()
    (tmp_path / "serve.yaml").write_text("theirs")
    check_folder(tmp_path, autoscale=False)
    assert sentence(runs / "eager", *ASKED, "--out", "") == "tailrate: --out '' names no folder"


def test_a_plan_is_written_and_printed(planned: tuple[Path, Result]) -> None:
    out, done = planned
    names = {"plan.json", "plan.md", "plan.html", "serve.yaml", "hpa.yaml", "keda.yaml"}
    assert {path.name for path in out.iterdir()} == names
    found = json.loads((out / "plan.json").read_text())
    assert found["best"] == "bert/compiled"
    assert found["verdict"] == "pass"
    assert plain(found["conclusion"]) in done.stdout
    assert found["demand"]["peak_rps"] == 3000
    assert found["autoscaling"]["chosen"]["kept"]
    assert found["autoscaling"]["cold_start_s"] == 20
    eager, compiled = (one["answer"] for one in found["variants"])
    assert eager["replicas"] > compiled["replicas"] > 1
    assert compiled["cost_per_hour"] == 2.5 * compiled["gpus"]
    assert compiled["joules_per_request"] is None
    for head in ("What if", "With 20%/quarter growth", "Ray Serve's autoscaler", f"plan: {out / 'plan.html'}"):
        assert head in done.stdout
    assert "The answers of bert/other do not say what their batches took" in done.stdout
    assert (out / "plan.html").read_text().startswith("<!doctype html>")


def test_json_is_all_that_is_printed(runs: Path, tmp_path: Path) -> None:
    done = tailrate("plan", runs / "compiled", *ASKED, "--json", "--out", tmp_path)
    assert json.loads(done.stdout) == json.loads((tmp_path / "plan.json").read_text())


def test_settings_in_place_of_the_measured_ones(runs: Path, tmp_path: Path) -> None:
    words = ("--max-batch", 4, "--max-wait-ms", 2, "--replicas-per-gpu", 3, "--burst", "gamma:0.5")
    tailrate("plan", runs / "compiled", *ASKED, *words, "--out", tmp_path)
    found = json.loads((tmp_path / "plan.json").read_text())
    (one,) = found["variants"]
    assert (one["fleet"]["max_batch"], one["fleet"]["batch_wait_s"]) == (4, 0.002)
    assert one["answer"]["gpus"] == -(-one["answer"]["replicas"] // 3)
    assert found["demand"]["burstiness"] == 0.5


def test_the_folder_is_named_by_time_and_model(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tailrate("plan", runs / "compiled", *ASKED)
    (folder,) = (tmp_path / "plans").iterdir()
    assert folder.name.endswith("Z-bert")


def test_where_no_variant_can_the_exit_code_is_1(runs: Path, tmp_path: Path) -> None:
    done = tailrate("plan", runs / "compiled", "--rate", 100, "--slo", "p99<4ms", "--out", tmp_path, code=1)
    assert "no number of replicas helps: a request that is alone takes" in done.stdout
    assert json.loads((tmp_path / "plan.json").read_text())["best"] is None


def test_a_plan_that_was_never_held_against_anything_is_3(tmp_path: Path) -> None:
    batched_run(tmp_path / "one", Server(linear(0.004, 0.0005)), [300], seconds=10, endpoint="m/a")
    done = tailrate("plan", tmp_path / "one", *ASKED, "--out", tmp_path / "plan", code=3)
    first = done.stdout.splitlines()
    assert any(line.startswith("This plan cannot be trusted: what the model is worth") for line in first)
    assert "This plan cannot be trusted" in (tmp_path / "plan/plan.md").read_text()


def test_several_replicas_and_rows_in_the_runs(tmp_path: Path) -> None:
    """Two replicas on one device, four rows a request: 1,150 rows/s and 288 requests/s each at most."""
    server = Server(linear(0.004, 0.002), max_batch=4, replicas=2)
    rows = batched_run(tmp_path / "two", server, (100, 250, 400, 560, 600), seconds=20, endpoint="m/a")
    assert rows["replica"].nunique() == 2
    tailrate("plan", tmp_path / "two", *ASKED, "--out", tmp_path / "plan")
    found = json.loads((tmp_path / "plan/plan.json").read_text())
    (one,) = found["variants"]
    assert one["calibration"]["replicas"] == 2
    assert one["answer"]["gpus"] == -(-one["answer"]["replicas"] // 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "plan from what? give one or more run folders"),
        (["/nowhere", *ASKED], "/nowhere is not a folder"),
        (["RUN", "--rate", 100], "hold what? give an objective"),
        (["RUN", "--slo", "p99<50ms"], "hold how much? give a rate"),
        (["RUN", "--rate", 0, "--slo", "p99<50ms"], "--rate 0 must be requests per second"),
        (["RUN", "--rate", -3, "--slo", "p99<50ms"], "--rate -3 must be requests per second"),
        (["RUN", "--rate", 100, "--slo", "p99<50"], "--slo: SLO term 'p99<50' has the wrong sign or unit"),
        (["RUN", "--rate", 100, "--slo", "errors<1%"], "has no latency"),
        (["RUN", "--rate", 100, "--slo", "p99<50ms,rate>=5"], "which --rate says here"),
        (["RUN", "--rate", 100, "--slo", "p99.9999<50ms"], "decided by one request in 1,000,000"),
        (["RUN", *ASKED, "--endpoint", "bert/comiled"], "the runs have no such endpoint; known are bert/compiled"),
        (["RUN", *ASKED, "--gpu-hour", -1], "--gpu-hour -1 must be a price of zero or more"),
        (["RUN", *ASKED, "--kwh", -0.1], "--kwh -0.1 must be a price"),
        (["RUN", *ASKED, "--co2", "nan"], "--co2 nan must be a price"),
        (["RUN", *ASKED, "--growth", "a lot"], "--growth 'a lot' is not understood"),
        (["RUN", *ASKED, "--n-plus", -1], "--n-plus -1 must be from 0 to 100 replicas"),
        (["RUN", *ASKED, "--n-plus", 1_000_000], "--n-plus 1000000 must be from 0 to 100 replicas"),
        (["RUN", *ASKED, "--shape", "spike:1e300:0:600"], "--shape spike:1e300:0:600 comes to 2e+303 requests per"),
        (["RUN", "--rate", 5, "--slo", f"p99<{400 * '9'}ms"], "needs a percentile in (0, 100) and a positive latency"),
        (["RUN", *ASKED, "--replicas-per-gpu", 0], "--replicas-per-gpu 0 must be at least 1"),
        (["RUN", *ASKED, "--burst", "often"], "--burst 'often' is not understood"),
        (["RUN", *ASKED, "--shape", "wave"], "--shape: shape 'wave' is not understood"),
        (["RUN", *ASKED, "--autoscale"], "--autoscale needs a rate that changes"),
        (["RUN", *ASKED, "--autoscale", "--shape", "sine:0.5:600", "--cold-start", -1], "--cold-start -1 must be"),
        (["RUN", *ASKED, "--max-batch", 64], "was measured with batches of 1 to 16 requests"),
        (["RUN", *ASKED, "--max-wait-ms", -1], "--max-wait-ms -1 must be zero or more milliseconds"),
        (["FOREIGN", *ASKED], "bert/other do not say what their batches took (server-timing)"),
        (["RUN", "MLP", *ASKED], "choose with --endpoint 'bert/*'"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(runs: Path, tmp_path: Path, words: list[object], said: str) -> None:
    names = {"RUN": runs / "compiled", "FOREIGN": runs / "foreign", "MLP": runs / "mlp"}
    assert said in sentence(*(names.get(str(word), word) for word in words), "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_without_arrivals_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    Manifest(id="empty", status="complete", scenario={"steps": []}).write(folder)
    assert "no step has arrivals" in sentence(folder, *ASKED)


def test_a_folder_that_cannot_be_written_is_said(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be written" in sentence(runs / "compiled", *ASKED, "--out", tmp_path / "file/plan")
