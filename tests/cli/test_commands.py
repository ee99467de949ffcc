"""The front door as a user meets it: what it says, and with which exit code."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from endpoint import endpoint
from folders import Load, make_run
from waiting import PATIENCE_S, until

from tailrate.analysis.records.folder import LOG, SOAK, STATS, read_events
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.verdicts.verdict import EXIT_CODES
from tailrate.cli.main import main
from tailrate.cli.processes import serving
from tailrate.serve.deploy import doctor
from tailrate.serve.spec import install

ROOT = Path(__file__).parents[2]
SHORT = ["--step-seconds", "2", "--settle-seconds", "0.5", "--idle-seconds", "0.2", "--timeout", "60"]


def tailrate(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "tailrate", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        **more,
    )


def here(*words):
    """The same without a process of its own, which would import everything first."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def sentence(done):
    """The one line of a refusal."""
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("tailrate: ")
    return line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["srve"],
            "unknown command 'srve'; known are agent, cache, campaign, compare, completion, demo, doctor, history, "
            "open, plan, profile, report, rows, run, scenarios, serve, soak, tune; did you mean serve?",
        ),
        (["run", "brt"], "unknown scenario 'brt'; known are bert, chat, completion, custom_cnn"),
        (["run", "nowhere.py"], "there is no scenario file nowhere.py"),
        (["run", "bert", "--rates", "5:1:1"], "--rates '5:1:1' is not understood"),
        (["run", "bert", "--slo", "p99<50"], "wrong sign or unit"),
        (["run", "bert", "--host", "http://x", "--devices", "gpu1:9410"], "--devices 'gpu1:9410' is not understood"),
        (["run", "bert", "--step-seconds", "inf"], "--step-seconds must be below 1,000,000,000, not inf"),
        (["run", "bert", "--timeout", "inf"], "--timeout must be below 1,000,000,000, not inf"),
        (["run", "bert", "--idle-seconds", "nan"], "--idle-seconds must be at least 0, not nan"),
        (["run", "bert", "--seed", "-1"], "--seed must be at least 0, not -1"),
        (["run", "bert", "--host", "http://x", "--run-dir", 300 * "x"], "File name too long"),
        (["run", "bert", "--endpoints", "["], "--endpoints begins as a list in JSON does, and is none"),
        (["soak", "bert", "--rates", "5", "--hours", "0"], "--total-seconds must be at least 1, not 0.0"),
        (["soak", "bert", "--rates", "5", "--hours", "inf"], "--total-seconds must be below 1,000,000,000, not inf"),
        (["soak", "bert", "--rates", "5", "--print-schedule", "x"], "--print-schedule 'x' is not understood; write"),
        (["soak", "bert", "--rates", "5", "--print-schedule", "* * * *"], "'* * * *' is not understood"),
        (["soak", "bert", "--rates", "5", "--print-schedule", "61 * * * *"], "'61 * * * *' is not understood"),
        (["soak", "bert", "--rates", "1:8:1", "--print-schedule", "daily"], "mode soak has one rate"),
        (["soak", "bert", "--rates", "5", "--hours", "0", "--print-schedule", "daily"], "--total-seconds must be at"),
        (["soak", "--resume", ".", "--print-schedule", "daily"], "--print-schedule is of a soak that begins anew"),
        (["agent", "--sample-ms", "1"], "sample_ms must be at least 10"),
        (["agent", "--tls-cert", "x"], "--tls-cert and --tls-key go together"),
        (["serve"], "name at least one model"),
        (["serve", "brt"], "unknown model 'brt'"),
        (["serve", "bert", "--variants", "eagr"], "unknown variant 'eagr'"),
        (["serve", "bert", "--set", "sequence"], "--set 'sequence' is not understood"),
        (["serve", "bert", "--set", "lenght=5"], "unknown setting of bert 'lenght'"),
        (["report", "/nowhere"], "/nowhere is not a folder"),
        (["rows", "/nowhere"], "/nowhere is not a folder"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in sentence(here(*words))
    assert not list(tmp_path.glob("runs/[!.]*"))  # nothing half-made is left behind


@pytest.mark.parametrize("count", [0, -1, 99_999])
@pytest.mark.parametrize("command", ["run", "soak"])
def test_so_many_load_processes_are_none_or_too_many(command, count):
    done = here(command, "bert", "--processes", count)
    assert (done.returncode, "is not in the range 1<=x<=1024" in done.stderr) == (2, True)


def test_a_scenario_s_own_default_and_a_parent_that_are_no_numbers_are_said_to_be(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("class Mine:\n    model = 'mlp'\n    timeout = None\n")
    said = sentence(here("run", tmp_path / "mine.py"))
    assert said == "tailrate: the scenario's own timeout is None, which is no number"
    monkeypatch.setenv("TAILRATE_PARENT", "x")
    assert "the number of a process that tailrate sets itself, not 'x'" in sentence(here("run", "bert"))


def test_a_process_says_it_on_standard_error_and_ends_with_2(tmp_path):
    (tmp_path / "mine.py").write_text("x = 1\n")
    assert "no class with a `model`" in sentence(tailrate("run", tmp_path / "mine.py"))
    nobody = "http://127.0.0.1:9"
    assert f"nothing answers at {nobody}" in sentence(tailrate("run", "bert", "--host", nobody, cwd=tmp_path))
    assert not list(tmp_path.glob("runs/*"))


def test_a_port_that_kubernetes_puts_there_is_said_to_be_by_the_server_and_by_its_probe():
    """Which a Service named tailrate-serve does in every pod of its namespace, unless they have no service links."""
    given = os.environ | {"TAILRATE_SERVE_PORT": "tcp://10.0.0.1:8000"}
    found = sentence(tailrate("serve", "mlp", env=given))
    assert "TAILRATE_SERVE_PORT=tcp://10.0.0.1:8000 is what Kubernetes tells every pod" in found
    assert "enableServiceLinks: false" in found
    probe = [sys.executable, "-m", "tailrate.serve.deploy.probe"]
    assert sentence(subprocess.run(probe, env=given, capture_output=True, text=True)) == found
    other = os.environ | {"TAILRATE_SERVE_PORT": "http"}
    for done in (tailrate("serve", "mlp", env=other), subprocess.run(probe, env=other, capture_output=True, text=True)):
        assert sentence(done) == "tailrate: a port is a number, such as 8000, not 'http'"


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("run.json", "{", "run.json, line 1: not valid JSON"),
        ("run.json", '{\n "schema": 1,\n nope}', "run.json, line 3: not valid JSON"),
        ("run.json", "[]", "run.json holds no JSON object"),
        ("run.json", '{"schema": 99}', "schema 99"),
        ("events.jsonl", '{"time_ns": 1, "event": "idle"}\nnope\n', "events.jsonl, line 2: not valid JSON"),
    ],
)
def test_a_malformed_run_folder_says_which_file_and_line(tmp_path, file, text, said):
    Manifest(id="x", status="complete", scenario={"steps": []}).write(tmp_path)
    (tmp_path / file).write_text(text)
    assert said in sentence(here("report", tmp_path))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of the null scenario through `tailrate run`: (its folder, what was printed)."""
    folder = tmp_path_factory.mktemp("runs")
    with endpoint() as url:
        words = [
            "--rates",
            "50,100",
            "--slo",
            "p50<100ms",
            "--run-dir",
            folder,
            "--run-id",
            "it",
            "--body-bytes",
            "2000",
        ]
        done = tailrate("run", "null", "--host", url, *words, *SHORT)
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    return folder / "it", done.stdout + done.stderr


@pytest.mark.live
def test_run_shows_its_steps_and_where_the_report_lies(finished):
    folder, said = finished
    assert "self-check: against a null server the load processes keep" in said
    assert "\x1b" not in said  # this is no terminal
    assert "in flight" not in said
    ends = [event for event in read_events(folder) if event["event"] == "step_end"]
    for end in ends:
        assert re.search(rf"{end['endpoint']}\s+offered\s+{end['rate']:.4g}/s  answered\s+[\d.]+/s  P50", said)
    assert len(ends) == 4
    assert said.count("offered      50/s") == 2
    assert said.count("offered     100/s") == 2
    assert f"report: {folder / 'report.html'}" in said
    report = json.loads((folder / "report.json").read_text())
    assert report["conclusion"] in said
    assert len(report["steps"]) == 4
    assert Manifest.read(folder).extra["command"].startswith("tailrate run null --host")
    assert {LOG, STATS} <= {path.name for path in folder.iterdir()}  # and nothing that would stay when it begins no run
    assert [path.name for path in folder.iterdir() if path.name.startswith("locust-") and path.name != STATS] == []


@pytest.mark.live
def test_options_of_the_scenario_reach_it(finished):
    folder, _ = finished
    first = next(csv.DictReader(io.StringIO(here("rows", folder).stdout)))
    assert int(first["bytes_in"]) > 2000  # --body-bytes 2000 is an option of loadtest/null.py alone


@pytest.mark.live
def test_rows_prints_every_row(finished):
    folder, _ = finished
    rows = list(csv.DictReader(io.StringIO(here("rows", folder).stdout)))
    assert len(rows) == Manifest.read(folder).totals["scheduled"]
    assert {row["status"] for row in rows} == {"200"}
    samples = list(csv.DictReader(io.StringIO(here("rows", folder, "--table", "devices").stdout)))
    assert samples[0]["host"] == "stand-in-host"


@pytest.mark.live
def test_rows_stops_quietly_when_head_has_seen_enough(finished):
    folder, _ = finished
    done = subprocess.run(
        f"{sys.executable} -m tailrate rows {folder} | head -1", shell=True, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("worker,seq,step")
    assert done.stderr == ""


@pytest.mark.live
def test_report_again_gives_the_same_report(finished):
    folder, _ = finished
    before = (folder / "report.json").read_bytes()
    done = here("report", folder)
    assert done.returncode in (0, 1, 3)
    assert (folder / "report.json").read_bytes() == before


@pytest.fixture
def started():
    """`subprocess.Popen`, ended with the test whatever becomes of it."""
    running = []

    def start(command, **how):
        running.append(subprocess.Popen(command, **how))
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # a front door passes it on
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.mark.live
@pytest.mark.parametrize("stop", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_run_keeps_what_there_is_and_reports_it(tmp_path, started, stop):
    with endpoint() as url:
        command = [sys.executable, "-m", "tailrate", "run", "null", "--host", url, "--rates", "50,60"]
        command += ["--step-seconds", "30", "--run-dir", str(tmp_path), "--run-id", "it", "--idle-seconds", "0"]
        heard = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # which who tests under nohup does not hear
        process = started(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heard)
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "it/events.jsonl").exists() or "rows" not in (tmp_path / "it/events.jsonl").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(2)
        process.send_signal(stop)
        said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (1, 3), said
    assert Manifest.read(tmp_path / "it").status == "aborted"
    assert "aborted" in (tmp_path / "it/report.md").read_text()
    assert "report.html" in said
    assert (tmp_path / "it/requests.parquet").exists()


@pytest.mark.live
@pytest.mark.parametrize("to", ["| head -c 1", "2>&1 | head -c 1", ">/dev/full", ">&-"])
def test_a_run_ends_as_it_would_where_nobody_reads_what_it_prints(tmp_path, to):
    words = ["--rates", "20", "--slo", "p50<9s", "--arrivals", "constant", "--run-dir", tmp_path, "--run-id", "it"]
    with endpoint() as url:
        command = " ".join(map(str, [sys.executable, "-m tailrate run null --host", url, *words, *SHORT]))
        script = f"set -o pipefail; {command.replace('p50<9s', repr('p50<9s'))} {to}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    verdict = json.loads((tmp_path / "it/report.json").read_text())["verdict"]
    assert done.returncode == EXIT_CODES[verdict], done.stderr
    assert Manifest.read(tmp_path / "it").status == "complete"
    assert "Traceback" not in done.stderr


@pytest.mark.live
def test_a_killed_run_is_reported_as_aborted(tmp_path, started):
    with endpoint() as url:
        command = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest/null.py"), "--headless", "--host", url]
        command += ["--rates", "100", "--step-seconds", "30", "--run-dir", str(tmp_path), "--run-id", "it"]
        process = started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        events = tmp_path / "it/events.jsonl"
        deadline = time.monotonic() + PATIENCE_S
        while not events.exists() or events.read_text().count('"requests"') < 6:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "still" in sentence(here("report", tmp_path / "it"))  # a live run is left alone
        process.kill()
        process.wait()
    flushed = max(json.loads(line).get("rows", 0) for line in events.read_text().splitlines() if '"requests"' in line)
    done = here("report", tmp_path / "it")
    assert done.returncode in (1, 3), done.stderr
    manifest = Manifest.read(tmp_path / "it")
    assert manifest.status == "aborted"
    rows = list(csv.DictReader(io.StringIO(here("rows", tmp_path / "it").stdout)))
    assert len(rows) >= flushed
    assert "aborted" in (tmp_path / "it/report.md").read_text()


@pytest.mark.live
def test_a_taken_run_id_is_refused(finished):
    folder, _ = finished
    words = ["--host", "http://127.0.0.1:9", "--run-dir", folder.parent, "--run-id", "it"]
    assert "is a run folder already" in sentence(here("run", "null", *words))


def test_a_folder_of_somebody_else_is_left_as_it_is(tmp_path):
    """Nothing listens there, so that Locust would end before any load."""
    words = ["--host", "http://127.0.0.1:9", "--run-dir", tmp_path, "--run-id", "it", "--self-check", "off"]
    theirs = tmp_path / "it/thesis.txt"
    theirs.parent.mkdir()
    theirs.write_text("years of work")
    (tmp_path / "it/zebra.log").write_text("of another")
    assert "it is there already and holds thesis.txt; choose another --run-id" in sentence(here("run", "null", *words))
    soak = ["soak", "null", *words, "--rates", "5", "--total-seconds", "60"]
    assert "holds thesis.txt" in sentence(here(*soak))
    assert {path.name for path in theirs.parent.iterdir()} == {"thesis.txt", "zebra.log"}
    (tmp_path / "it-2").write_text("a file")
    assert "it-2 is no folder" in sentence(here("run", "null", *words[:-3], "it-2", *words[-2:]))


@pytest.mark.parametrize("how", ["word", "environment", "file"])
def test_a_soak_goes_on_with_its_own_plan_wherever_another_is_given(tmp_path, monkeypatch, how):
    words = ["soak", "--resume", tmp_path]
    if how == "environment":
        monkeypatch.setenv("TAILRATE_SOAK_RATES", "70")
    elif how == "file":
        (tmp_path / "it.yaml").write_text("scenario: bert\nrates: 70\n")
        words.insert(1, tmp_path / "it.yaml")
    said = sentence(here(*words, *(["--rates", "70"] if how == "word" else [])))
    assert said.endswith("beside it there can be --extend, --webhook and --export, not --rates")


def test_a_run_file_in_the_folder_that_it_names_is_left_as_it_is(tmp_path, monkeypatch):
    """A run would put its own file of that name there, and take it back where it does not begin."""
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "bench/run.yaml"
    own.parent.mkdir()
    own.write_text("scenario: mlp\nhost: http://127.0.0.1:1\nrates: 5\n")
    words = ["run", own, "--run-dir", ".", "--run-id", "bench", "--self-check", "off"]
    assert "bench is there already and holds run.yaml; choose another --run-id" in sentence(here(*words))
    assert own.read_text().startswith("scenario: mlp")


@pytest.mark.live
def test_a_run_that_never_began_takes_back_what_it_made_and_nothing_else(tmp_path, started):
    words = ["--host", "http://127.0.0.1:9", "--run-dir", tmp_path, "--run-id", "it", "--self-check", "off"]
    assert "nothing answers" in sentence(tailrate("run", "null", *words))
    assert not (tmp_path / "it").exists()
    soak = ["soak", "null", *words, "--rates", "5", "--total-seconds", "60"]
    begun = started([sys.executable, "-m", "tailrate", *map(str, soak)], stderr=subprocess.PIPE)
    until(lambda: (tmp_path / "it").is_dir(), PATIENCE_S)
    (tmp_path / "it/thesis.txt").write_text("came meanwhile")
    begun.communicate(timeout=PATIENCE_S)
    assert [path.name for path in (tmp_path / "it").iterdir()] == ["thesis.txt"]


def test_doctor_names_what_it_looked_at():
    done = tailrate("doctor", env=os.environ | {"COLUMNS": "200"})
    assert done.returncode == 0, done.stdout
    for name in ("python", "torch", "nvml", "compiler", "ray", "locust", "ports", "files", "disk", "timer", "cores"):
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize(
    ("cuda", "driver", "advice"),
    [
        ("13.0", None, "check the driver below"),
        (None, "570.86.15", "built for the CPU alone"),
        ("13.0", "570.86.15", "NVIDIA's driver 580.65.06 or newer: here is 570.86.15"),
        ("13.0", "580.65.06", "nvidia-smi"),
        ("13.0", "1000.1", "nvidia-smi"),
        ("12.8", "570.86.15", "nvidia-smi"),
        ("14.0", "570.86.15", "nvidia-smi"),
    ],
)
def test_doctor_knows_which_driver_torch_wants(tmp_path, cuda, driver, advice):
    version = tmp_path / "version"
    if driver:
        version.write_text(
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Tue Jan 1 2025\nGCC version: 12.2"
        )
    assert advice in doctor._advice(cuda, version)


@pytest.mark.live
def test_doctor_looks_at_an_endpoint():
    done = tailrate("doctor", "--host", "http://127.0.0.1:9")
    assert done.returncode == 2
    assert "is the endpoint up" in done.stdout
    with endpoint() as url:
        assert doctor._check_endpoint(url) == ("endpoint", "ok", f"stand-in at {url}", "")


def test_doctor_says_the_whole_of_an_advice(monkeypatch):
    monkeypatch.setattr(doctor, "checks", lambda port, host: [("ray", "note", "not installed", doctor.TO_SERVE)])
    assert install("serve") in CliRunner().invoke(main, ["doctor"]).output


def test_serve_list_names_models_and_variants():
    said = tailrate("serve", "--list").stdout
    assert {"bert", "custom_cnn", "null", "resnet50", "compiled", "eager"} <= {
        line.split(" ")[0] for line in said.split("\n")
    }


def test_what_decides_how_to_serve_reaches_the_server_flags_and_zeros_too(monkeypatch):
    asked = []

    def start(command, **how):
        asked.extend(command)
        raise OSError("not started")

    monkeypatch.setattr(subprocess, "Popen", start)
    how = {"profile": True, "parity_share": 0.0, "settings": ("delay_ms=3", "size=1")}
    with pytest.raises(OSError, match="not started"), serving("null", ["eager"], how):
        pass
    assert asked[-4:] == ["--profile", "--parity-share=0.0", "--set=delay_ms=3", "--set=size=1"]


def test_scenarios_are_listed_and_copied_to_be_changed(tmp_path: Path) -> None:
    names = sorted(path.stem for path in (ROOT / "loadtest").glob("[a-z]*.py"))
    assert [line.split()[0] for line in here("scenarios").stdout.splitlines()] == names
    for name in names:
        copy = tmp_path / f"{name}.py"
        assert f"locust -f {copy} " in here("scenarios", "--copy", name, "--to", tmp_path).stdout
        assert copy.read_bytes() == (ROOT / "loadtest" / copy.name).read_bytes()
    assert sentence(here("scenarios", "--copy", "bert", "--to", tmp_path)).endswith("bert.py is there already")
    (tmp_path / "to").mkdir()
    (tmp_path / "to/bert.py").symlink_to(tmp_path / "nowhere.py")
    assert sentence(here("scenarios", "--copy", "bert", "--to", tmp_path / "to")).endswith("bert.py is there already")
    assert not (tmp_path / "nowhere.py").exists()
    assert "unknown scenario 'brt'" in sentence(here("scenarios", "--copy", "brt"))
    assert "is not a folder" in sentence(here("scenarios", "--copy", "bert", "--to", tmp_path / "no"))


def test_a_scenario_that_a_full_disk_takes_a_part_of_leaves_nothing(tmp_path: Path) -> None:
    copying = f"{sys.executable} -m tailrate scenarios --copy bert --to {tmp_path}"
    done = subprocess.run(["bash", "-c", f"ulimit -f 0; trap '' XFSZ; {copying}"], capture_output=True, text=True)
    assert "File too large" in sentence(done)
    assert not list(tmp_path.iterdir())


@pytest.mark.live
@pytest.mark.parametrize("name", ["resnet50", "soak"])
def test_a_copied_scenario_is_a_locustfile(name: str, tmp_path: Path) -> None:
    """Those two import more of ours than the class that all have."""
    here("scenarios", "--copy", name, "--to", tmp_path)
    code = f"from locust.util.load_locustfile import load_locustfile; print(len(load_locustfile('{name}.py')[0]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"scenario": 5, "host": null, "processes": "x", "words": []}'])
def test_a_soak_that_does_not_say_how_it_was_started_stays_as_it_is(tmp_path: Path, text: str) -> None:
    folder = make_run(tmp_path / "run", [Load("m/a", 10)], mode="soak", status="running", sealed=False).folder
    (folder / SOAK).write_text(text)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "soak.json" in sentence(here("soak", "--resume", folder))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
