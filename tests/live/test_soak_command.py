"""`tailrate soak` from its first word to its last, killed and gone on with, against a stand-in endpoint."""

import contextlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from endpoint import endpoint
from test_run import await_rows
from test_secrets import HOOK, assert_nothing_leaked
from waiting import PATIENCE_S

from tailrate import analysis
from tailrate.analysis.records.folder import parts, read_events, segments
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.verdicts.verdict import flaws
from tailrate.loadtest.engine.modes.soak import LEAST_CHAPTER_S
from tailrate.loadtest.engine.workers.dispatch import LEAD_S

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
SHORT = ["--chapter-seconds", "3", "--settle-seconds", "0.5", "--idle-seconds", "0.1", "--self-check", "off"]
STARTED = []


@pytest.fixture(autouse=True)
def nothing_left_running():
    yield
    while STARTED:
        process = STARTED.pop()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def soak(*words, **more):
    command = [sys.executable, "-m", "tailrate", "soak", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False, **more)


def begin(tmp_path, url, *words):
    """A soak that goes on while the test does."""
    where = ["--run-dir", tmp_path, "--run-id", "it", "--host", url, "--rates", "100", "--total-seconds", "12"]
    command = [sys.executable, "-m", "tailrate", "soak", "null", *map(str, where), *SHORT, *words]
    with (tmp_path / "said").open("wb") as out:
        STARTED.append(subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True))
    return STARTED[-1]


def events(folder, kind):
    return [event for event in read_events(folder) if event["event"] == kind]


def load_process(folder):
    return int(json.loads((folder / "run.json").read_text())["pid"])


def kill_for_good(pid):
    """Returns when its locks are nobody's any more, which on a busy machine is later than the signal."""
    load = psutil.Process(pid)
    load.kill()
    load.wait(PATIENCE_S)


def assert_the_ledger_closes(folder):
    """To the row: every arrival that was due in either life has one, and the totals say what became of them."""
    run = analysis.load(folder)
    totals = dict(run.manifest.totals)
    rows = run.requests(columns=["step", "seq", "status"])
    kinds = Counter({"200": "ok", "lost": "lost"}.get(str(status), "failed") for status in rows["status"])
    assert totals.pop("scheduled") == sum(totals.values()) == len(rows)
    assert {kind: count for kind, count in totals.items() if count} == dict(kinds)
    assert not rows.duplicated(["step", "seq"]).any()
    for _, mine in rows.groupby("step"):  # none was left out
        assert sorted(mine["seq"]) == list(range(len(mine)))
    assert run.missing == {"requests": 0, "devices": 0, "metrics": 0}
    return run, kinds


def test_a_soak_runs_in_chapters_and_is_reported(tmp_path):
    told = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    hook = http.server.HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=hook.serve_forever, daemon=True).start()
    words = ["--daily", "sine:0.5:6", "--rows", "1,4"]
    environment = os.environ | {"TAILRATE_WEBHOOK": f"http://127.0.0.1:{hook.server_port}/{HOOK}"}
    try:
        with endpoint(recompile_every=50) as url:
            done = soak(
                "null", "--host", url, "--rates", "100", "--total-seconds", "8", "--run-dir", tmp_path,
                "--run-id", "it", "--export", "junit", *SHORT, *words, env=environment,
            )  # fmt: skip
    finally:
        hook.shutdown()
        hook.server_close()
    folder = tmp_path / "it"
    assert done.returncode in (0, 3), done.stderr
    run, _ = assert_the_ledger_closes(folder)
    scenario = run.manifest.scenario
    assert (scenario["mode"], scenario["chapter_seconds"], scenario["total_seconds"]) == ("soak", 3, 8)
    steps = scenario["steps"]
    blocks = steps[-1]["block"] + 1
    assert blocks in (2, 3)  # pauses of a busy machine leave too little for a third
    assert [(step["endpoint"], step["block"]) for step in steps] == [
        (name, block) for block in range(blocks) for name in ("null/eager", "null/compiled")
    ]
    assert [step["settle_s"] for step in steps] == [0.5, 0.5, *[0] * (2 * blocks - 2)]
    if blocks == 3:
        assert steps[-1]["end_ns"] - steps[0]["start_ns"] == pytest.approx(8e9, abs=1e7)
    # chapters follow each other within a moment, on arrivals of their own
    pauses = [b["start_ns"] - a["end_ns"] for a, b in zip(steps[::2], steps[2::2], strict=False)]
    assert all(0 < pause < 3e9 for pause in pauses)
    assert len({step["seed"] for step in steps}) == len(steps)
    # the curve goes on over the chapters: its first half is high
    at_s = (run.requests(columns=["intended_ns"])["intended_ns"] - steps[0]["start_ns"]) / 1e9
    assert (at_s < 3).sum() > 1.4 * ((at_s >= 3.3) & (at_s < 6)).sum()
    assert set(run.requests()["rows"]) == {1, 4}
    assert scenario["rows"] == [1, 4]
    minutes = events(folder, "minute")
    assert sum(minute["n"] for minute in minutes) == run.manifest.totals["scheduled"]
    assert {minute["endpoint"] for minute in minutes} == {"null/eager", "null/compiled"}
    assert {"recompiles"} <= set(events(folder, "server")[0])
    assert not flaws(run)
    assert (folder / "report.html").exists()
    assert (folder / "junit.xml").exists()
    assert not list(folder.glob("*-0*"))
    assert not (folder / "reserve").exists()
    assert_nothing_leaked(tmp_path, done.stdout, done.stderr)  # that webhook is a secret
    (hooked,) = told
    assert (hooked["run"], hooked["exit_code"]) == ("it", done.returncode)
    assert hooked["verdict"] in ("pass", "inconclusive")


@pytest.mark.long
def test_killed_and_gone_on_with_it_ends_when_it_would_have_ended(tmp_path):
    folder = tmp_path / "it"
    with endpoint() as url:
        process = begin(tmp_path, url, "--total-seconds", "24")  # time enough to go on, also on a busy machine
        await_rows(folder, 100)
        time.sleep(1.5)
        load = load_process(folder)
        process.kill()  # as a crash of the machine: nobody has time for a word
        kill_for_good(load)
        killed_ns = time.time_ns()
        process.wait()
        with (folder / "events.jsonl").open("ab") as out:
            out.write(b'{"time_ns": 17')
        done = soak("--resume", folder)
    assert done.returncode in (0, 3), done.stderr
    run, kinds = assert_the_ledger_closes(folder)
    assert run.manifest.status == "complete"
    assert not flaws(run)
    (gap,) = events(folder, "gap")
    assert abs(gap["start_ns"] - killed_ns) < 5e9
    steps = run.manifest.scenario["steps"]
    assert gap["end_ns"] in {step["start_ns"] for step in steps}
    assert not [step for step in steps if step["start_ns"] < gap["start_ns"] < step["end_ns"]]
    planned_ns = steps[0]["start_ns"] + 24e9
    for step in steps:  # each as long as a chapter or as what was left, unless the kill cut it
        left_s = (planned_ns - step["start_ns"]) / 1e9
        if step["end_ns"] != gap["start_ns"]:
            assert min(3, left_s) - 1e-3 <= step["seconds"] <= 3
    # it ended when what was left at a chapter's end was too short for another
    assert run.manifest.finished_ns > planned_ns - 1e9 * (LEAST_CHAPTER_S + LEAD_S)
    assert max(step["end_ns"] for step in steps) < planned_ns + 2e7
    gap_s = (gap["end_ns"] - gap["start_ns"]) / 1e9
    assert gap["scheduled"] == {name: pytest.approx(50 * gap_s, abs=1) for name in ("null/eager", "null/compiled")}
    # at a rate of 100, what was under way and a second of rows
    assert kinds["lost"] <= 120
    (life,) = run.manifest.extra["resumed"]
    assert life["start_ns"] > killed_ns
    assert [step["index"] for step in steps] == list(range(len(steps)))


def test_a_load_process_that_dies_is_reported_and_can_go_on_even_then(tmp_path):
    folder = tmp_path / "it"
    with endpoint() as url:
        process = begin(tmp_path, url)
        await_rows(folder, 100)
        kill_for_good(load_process(folder))
        assert process.wait(timeout=PATIENCE_S) == 3, (tmp_path / "said").read_text()
        assert Manifest.read(folder).status == "aborted"
        assert parts(folder, "requests")  # each chapter by itself, as it may go on
        assert not segments(folder, "requests")
        done = soak("--resume", folder, "--extend")
    assert done.returncode in (0, 3), done.stderr
    run, _ = assert_the_ledger_closes(folder)
    assert not flaws(run)
    assert len(events(folder, "gap")) == 1
    steps = [step for step in run.manifest.scenario["steps"] if step["endpoint"] == "null/eager"]
    # the twelve seconds are driven, whatever lay between, but for the pauses between chapters
    driven_s = sum(step["end_ns"] - step["start_ns"] for step in steps) / 1e9
    assert 12 - 1.5 * len(steps) < driven_s < 12.1


def test_while_one_is_under_way_no_other_begins_and_nobody_goes_on_with_it(tmp_path):
    folder = tmp_path / "it"
    with endpoint() as url:
        process = begin(tmp_path, url)
        await_rows(folder, 20)
        again = soak("null", "--host", url, "--rates", "10", "--run-dir", tmp_path)
        on = soak("--resume", folder)
        load = load_process(folder)
        for done in (again, on):
            assert done.returncode == 2
            assert f"a soak is under way in {tmp_path}: process {load} writes {folder}" in done.stderr
        process.kill()  # its load process lives on, and so does the lock
        process.wait()
        assert soak("--resume", folder).returncode == 2
        kill_for_good(load)
    done = soak("--resume", folder)  # the endpoint is gone by now
    assert done.returncode == 2
    assert "nothing answers" in (done.stderr + (folder / "locust.log").read_text())
    assert Manifest.read(folder).status == "aborted"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "soak what?"),
        (["null"], "how much load? say --rates 50, or --share 0.5"),
        (["null", "--rates", "1,2"], "mode soak has one rate"),
        (["null", "--rates", "5", "--mode", "ramp"], "tailrate soak is mode soak"),
        (["null", "--rates", "5", "--daily", "steps:1:2"], "--daily 'steps:1:2' is not understood"),
        (["null", "--rates", "5", "--stop-on", "boredom"], "--stop-on 'boredom' is not understood"),
        (["null", "--share", "0.5", "--capacity-from", "nowhere"], "nowhere has no report.json with a capacity"),
        (["--resume", "nowhere"], "nowhere is not a folder"),
        (["null", "--rates", "5", "--export", "fax"], "--export fax: the forms are"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, words, sentence):
    where = [] if "--resume" in words else ["--run-dir", str(tmp_path)]
    done = soak(*words, *where)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert sentence in line
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_share_of_a_known_capacity(tmp_path):
    known = tmp_path / "known"
    known.mkdir()
    rows = [{"endpoint": "null/eager", "max_rps": 90.0}, {"endpoint": "null/compiled", "max_rps": 60.0}]
    (known / "report.json").write_text(json.dumps({"capacity": rows}))
    done = soak(
        "null", "--share", "0.5", "--capacity-from", known, "--host", "http://127.0.0.1:9", "--run-dir", tmp_path
    )
    assert done.returncode == 2  # nothing answers there
    assert "30 requests/s: 0.5 of the 60/s that known found" in done.stdout


def test_a_schedule_is_printed_with_absolute_paths(tmp_path):
    done = soak("null", "--rates", "5", "--print-schedule", "30 2 * * 1-5", "--export=junit")
    assert done.returncode == 0, done.stderr
    assert "OnCalendar=Mon..Fri *-*-* 02:30:00" in done.stdout
    line = f"{sys.executable} -P -m tailrate soak null --rates 5 --export=junit"
    assert f"ExecStart={line}\n" in done.stdout
    assert f"30 2 * * 1-5 cd {ROOT} && {line}\n" in done.stdout
    if analyze := shutil.which("systemd-analyze"):
        found = subprocess.run([analyze, "calendar", "Mon..Fri *-*-* 02:30:00"], capture_output=True, check=False)
        assert found.returncode == 0
