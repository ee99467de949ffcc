"""Whole runs of `locust -f loadtest/null.py` against a stand-in endpoint: the ledger, ways to run, ways to end."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from endpoint import endpoint
from schedules import schedule_of
from test_web import STOPS
from waiting import PATIENCE_S, clock_step_ns, until

from tailrate.analysis.records.folder import read_events, segments
from tailrate.analysis.records.manifest import Manifest
from tailrate.serve.deploy.haproxy import free_port

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
LOCUST = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest/null.py")]
QUICK = ["--step-seconds=2", "--settle-seconds=0.5", "--idle-seconds=0.2", "--only-summary"]


STARTED = []


@pytest.fixture(autouse=True)
def nothing_left_running():
    """Whatever a failed test leaves behind ends with it, its load processes included."""
    yield
    while STARTED:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(STARTED.pop().pid, signal.SIGKILL)


def start(tmp_path, *words, env=None):
    command = [*LOCUST, *QUICK, "--run-dir", str(tmp_path), "--run-id", "it", *words]
    log = (tmp_path / f"log-{len(list(tmp_path.iterdir()))}").open("wb")
    with log:
        environment = os.environ | (env or {})
        STARTED.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True))
    return STARTED[-1]


def finish(tmp_path, *words, codes=(0,), **more):
    process = start(tmp_path, *words, **more)
    assert process.wait(timeout=PATIENCE_S) in codes, said(tmp_path)
    return read(tmp_path / "it")


def said(tmp_path):
    return "\n".join(path.read_text() for path in sorted(tmp_path.glob("log-*")))


def read(folder):
    """(manifest, rows) of an unsealed folder, up to its last whole batch."""
    rows = []
    for path in segments(folder, "requests"):
        try:
            for batch in pa.ipc.open_stream(path.read_bytes()):
                rows += batch.to_pylist()
        except pa.ArrowInvalid:
            pass  # cut by a kill
    return Manifest.read(folder), rows


def await_rows(folder, count, timeout_s=PATIENCE_S):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if (folder / "events.jsonl").exists():
            counts = [event["rows"] for event in read_events(folder) if event["event"] == "rows"]
            if counts and max(counts) >= count:
                return
        time.sleep(0.05)
    raise AssertionError(f"no {count} rows within {timeout_s} s: {said(folder.parent)}")


def assert_ledger_closes(manifest, rows):
    totals = dict(manifest.totals)
    scheduled = totals.pop("scheduled")
    assert scheduled == sum(totals.values())
    kinds = Counter(
        {"200": "ok", "timeout": "timed_out", "dropped": "dropped", "lost": "lost"}.get(r["status"], "failed")
        for r in rows
    )
    for kind in ("ok", "failed", "timed_out", "dropped"):
        assert totals[kind] == kinds[kind]
    assert totals["lost"] >= kinds["lost"]


def assert_whole(manifest, rows):
    """Every arrival of the schedule exactly once, at the instant that the schedule says."""
    assert manifest.status == "complete"
    intended = {(row["step"], row["seq"]): row["intended_ns"] for row in rows}
    assert len(intended) == len(rows)
    assert intended == schedule_of(manifest)
    assert_ledger_closes(manifest, rows)
    assert manifest.totals["scheduled"] == len(rows)


def test_one_process_keeps_the_schedule_and_records_it_all(tmp_path):
    with endpoint(delay_ms=3) as url:
        words = ["--headless", "--host", url, "--rates", "40,80", "--slo", "p99<50ms", "--timeout", "60"]
        manifest, rows = finish(tmp_path, *words)
    assert_whole(manifest, rows)
    assert [step["endpoint"] for step in manifest.scenario["steps"]] == ["null/eager", "null/compiled"] * 2
    assert manifest.totals["ok"] == len(rows)
    by_step = {}
    for row in rows:
        by_step.setdefault(row["step"], []).append(
            row["intended_ns"] - manifest.scenario["steps"][row["step"]]["start_ns"]
        )
    assert sorted(by_step[0]) == sorted(by_step[1]) != sorted(by_step[2])  # same arrivals for both variants
    step_ns = clock_step_ns()  # what an instant may seem to lie before the one before it
    for row in rows:
        assert row["intended_ns"] <= row["sent_ns"] <= row["done_ns"]
        assert row["done_ns"] - row["sent_ns"] > 3e6 - step_ns
        assert row["compute_ms"] >= 3
        assert row["server_ms"] == pytest.approx(row["compute_ms"] + row["queue_ms"])
        assert (row["device"], row["replica"], row["batch_rows"], row["rows"]) == ("cpu", "only", 1, 1)
        assert row["bytes_in"] > 1024
    assert manifest.scenario["slo"] == [{"percentile": 99.0, "latency_ms": 50.0}]
    assert manifest.endpoints[0]["path"] == "/v2/models/null/versions/eager/infer"
    assert manifest.clock[0]["host"] == "stand-in-host"
    kinds = Counter(event["event"] for event in read_events(tmp_path / "it"))
    assert kinds["step_start"] == kinds["step_end"] == 4
    assert kinds["idle"] == 2  # before the first step and after the last
    # without a terminal there is a line for each step, and no control character
    assert "\x1b" not in said(tmp_path)
    assert "in flight" not in said(tmp_path)
    for end in (event for event in read_events(tmp_path / "it") if event["event"] == "step_end"):
        line = rf"{end['endpoint']}\s+offered\s+{end['rate']:.4g}/s  answered\s+[\d.]+/s  P50"
        assert re.search(line, said(tmp_path))
    # Locust's own statistics saw every request
    assert re.search(rf"Aggregated\s+{len(rows)}\s", said(tmp_path))


def test_a_server_of_the_former_name_says_as_much(tmp_path):
    with endpoint(delay_ms=3, brand="headroom") as url:
        manifest, rows = finish(tmp_path, "--headless", "--host", url, "--rates", "20", "--step-seconds", "1")
    assert_whole(manifest, rows)
    assert {(row["device"], row["replica"], row["batch_rows"]) for row in rows} == {("cpu", "only", 1)}
    assert all(row["handled_ms"] > 3 - clock_step_ns() / 1e6 for row in rows), "by the clock in its header"


def test_options_as_environment_and_two_steps_at_once(tmp_path):
    env = {"LOCUST_RATES": "60", "LOCUST_MODE": "mixed", "LOCUST_ARRIVALS": "constant"}
    with endpoint() as url:
        manifest, rows = finish(tmp_path, "--headless", "--host", url, env=env)
    assert_whole(manifest, rows)
    first, second = manifest.scenario["steps"]
    assert first["start_ns"] == second["start_ns"]
    assert (first["rate"], second["rate"], first["block"], second["block"]) == (30, 30, 0, 0)


def test_processes_make_one_folder_with_every_arrival_once(tmp_path):
    port = str(free_port())
    distributed = ["--processes", "2", "--master-bind-port", port, "--master-port", port]
    with endpoint() as url:
        manifest, rows = finish(tmp_path, "--headless", "--host", url, "--rates", "50,150", *distributed)
    assert_whole(manifest, rows)
    shares = Counter(row["worker"] for row in rows)
    assert set(shares) == {0, 1}
    assert {row["worker"] for row in rows if row["seq"] % 2} == {1}


def test_failures_timeouts_and_drops_are_rows(tmp_path):
    words = ["--rates", "100", "--variants", "eager", "--max-in-flight", "5", "--timeout", "0.4"]
    with endpoint(delay_ms=60, slots=1, fail_every=7, hang_every=11) as url:
        process = start(tmp_path, "--headless", "--host", url, *words)
        assert process.wait(timeout=PATIENCE_S) == 1  # Locust's own code for a run with failures
    manifest, rows = read(tmp_path / "it")
    assert_whole(manifest, rows)
    assert all(manifest.totals[kind] > 0 for kind in ("ok", "failed", "timed_out", "dropped"))
    by_status = {row["status"]: row for row in rows}
    assert by_status["500"]["error"] == "told to fail"
    assert by_status["dropped"]["sent_ns"] is None
    assert by_status["dropped"]["done_ns"] is None
    assert by_status["timeout"]["done_ns"] - by_status["timeout"]["sent_ns"] > 0.4e9 - clock_step_ns()
    # never more unanswered than allowed
    edges = sorted(edge for row in rows if row["sent_ns"] for edge in ((row["sent_ns"], 1), (row["done_ns"], -1)))
    level = most = 0
    for _, change in edges:
        level += change
        most = max(most, level)
    assert most <= 5


def test_an_endpoint_that_goes_away_is_connect_rows(tmp_path):
    with endpoint() as url:
        process = start(
            tmp_path, "--headless", "--host", url, "--rates", "50", "--variants", "eager", "--step-seconds=4"
        )
        await_rows(tmp_path / "it", 50)
    assert process.wait(timeout=PATIENCE_S) == 1
    manifest, rows = read(tmp_path / "it")
    assert_whole(manifest, rows)
    assert {row["status"] for row in rows} >= {"200", "connect"}
    assert "refused" in next(row["error"] for row in reversed(rows) if row["status"] == "connect")
    assert any(event["event"] == "telemetry_lost" for event in read_events(tmp_path / "it"))


@pytest.mark.parametrize(
    ("stop", "background"),
    [
        (signal.SIGINT, True),
        (signal.SIGTERM, False),
        pytest.param(signal.SIGINT, False, marks=pytest.mark.long),  # so it is in a terminal, below
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.long),
    ],
)
def test_a_run_that_is_stopped_keeps_what_there_is(tmp_path, stop, background):
    with endpoint(delay_ms=50) as url:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN if background else signal.default_int_handler)
        try:  # as a shell starts what it does not wait for
            process = start(tmp_path, "--headless", "--host", url, "--rates", "100", "--step-seconds=20")
        finally:
            signal.signal(signal.SIGINT, before)
        await_rows(tmp_path / "it", 100)
        process.send_signal(stop)
        assert process.wait(timeout=PATIENCE_S) == 0, said(tmp_path)
    manifest, rows = read(tmp_path / "it")
    assert manifest.status == "aborted"
    assert len(rows) >= 100
    assert_ledger_closes(manifest, rows)
    assert manifest.totals["scheduled"] == len(rows)  # nobody died, so every arrival that was due has its row
    schedule = schedule_of(manifest)
    assert all(schedule[row["step"], row["seq"]] == row["intended_ns"] for row in rows)


def test_ctrl_c_in_a_terminal_reaches_all_processes_and_every_arrival_still_has_its_row(tmp_path):
    port = str(free_port())
    distributed = ["--processes", "2", "--master-bind-port", port, "--master-port", port, "--step-seconds=20"]
    with endpoint(delay_ms=50) as url:
        process = start(tmp_path, "--headless", "--host", url, "--rates", "80", *distributed)
        await_rows(tmp_path / "it", 100)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=PATIENCE_S) == 0, said(tmp_path)
    manifest, rows = read(tmp_path / "it")
    assert manifest.status == "aborted"
    assert_ledger_closes(manifest, rows)
    assert manifest.totals["scheduled"] == len(rows) >= 100
    assert "worker_lost" not in {event["event"] for event in read_events(tmp_path / "it")}


def test_a_killed_run_loses_at_most_the_rows_not_yet_flushed(tmp_path):
    with endpoint() as url:
        process = start(tmp_path, "--headless", "--host", url, "--rates", "200", "--step-seconds=20")
        await_rows(tmp_path / "it", 600)
        process.kill()
        killed_ns = time.time_ns()
        process.wait()
    manifest, rows = read(tmp_path / "it")
    assert manifest.status == "running"
    schedule = schedule_of(manifest)
    answered = [key for key, at in schedule.items() if at < killed_ns - 1.2e9]
    found = {(row["step"], row["seq"]) for row in rows}
    assert len(found) == len(rows)
    assert not set(answered) - found  # all but about the last second is there
    assert len(answered) > 300


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--host", "http://127.0.0.1:9"], "nothing answers at http://127.0.0.1:9"),
        (["--variants", "fast"], "hosts no variant fast of 'null'; it hosts eager, compiled"),
        # so it is with an option that is asked for in `test_commands.py`, and with a host in `test_secrets.py`
        pytest.param(["--host", "ftp://x"], "is not a URL", marks=pytest.mark.long),
        pytest.param(["--rates", "9:1:1"], "--rates '9:1:1' is not understood", marks=pytest.mark.long),
        ([], "no endpoint given"),
    ],
)
def test_bad_input_is_one_sentence_before_any_load(tmp_path, words, sentence):
    with endpoint() as url:
        host = [] if not words or "--host" in words else ["--host", url]
        process = start(tmp_path, "--headless", *host, *words)
        assert process.wait(timeout=PATIENCE_S) == 2
    lines = [line for line in said(tmp_path).splitlines() if line.startswith("tailrate:")]
    assert len(lines) == 1
    assert sentence in lines[0]
    assert not (tmp_path / "it").exists()


def test_bad_input_leaves_no_load_process_looking_for_its_master(tmp_path):
    port = str(free_port())
    distributed = ["--processes", "2", "--master-bind-port", port, "--master-port", port]
    with endpoint() as url:
        process = start(tmp_path, "--headless", "--host", url, "--variants", "fast", *distributed)
        assert process.wait(timeout=PATIENCE_S) == 2
    left = [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in (one.info["cmdline"] or ())]
    assert left == []


def listens(port):
    with socket.socket() as end:
        return end.connect_ex(("127.0.0.1", port)) == 0


def test_a_server_that_is_no_v2_endpoint_is_named_so(tmp_path):
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: listens(port))
        process = start(tmp_path, "--headless", "--host", f"http://127.0.0.1:{port}")
        assert process.wait(timeout=PATIENCE_S) == 2
    finally:
        server.kill()
        server.wait()
    assert re.search(
        r"tailrate: http://127.0.0.1:\d+ answers HTTP \(/v2: 404\), but no protocol that is recognised", said(tmp_path)
    )


def test_the_web_ui_shows_our_options_starts_and_stops(tmp_path):
    import urllib.parse
    import urllib.request

    web = free_port()
    base = f"http://127.0.0.1:{web}"

    def post(path, **form):
        body = urllib.parse.urlencode(form).encode() or None
        with urllib.request.urlopen(f"{base}{path}", data=body, timeout=PATIENCE_S) as answer:
            return json.loads(answer.read())

    with endpoint() as url:
        process = start(tmp_path, "--host", url, "--web-host", "127.0.0.1", "--web-port", str(web))
        try:
            for _ in range(100):
                try:
                    page = urllib.request.urlopen(base, timeout=PATIENCE_S).read().decode()
                    break
                except OSError:
                    time.sleep(0.1)
            for option in ("rates", "variants", "step_seconds", "mode", "slo", "body_bytes"):
                assert f'"{option}"' in page or f"&#34;{option}&#34;" in page or f"\\u0022{option}" in page
            assert post("/swarm", host=url, rates="30", step_seconds="2", run_id="first")["success"]
            deadline = time.monotonic() + PATIENCE_S
            while not (tmp_path / "first/run.json").exists() or Manifest.read(tmp_path / "first").status == "running":
                assert time.monotonic() < deadline, said(tmp_path)
                time.sleep(0.2)
            time.sleep(1.5)  # Locust looks once a second whether the plan is over
            assert post("/swarm", host=url, rates="40", step_seconds="60", run_id="second")["success"]
            await_rows(tmp_path / "second", 20)
            assert post("/stop", **STOPS)["success"]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=PATIENCE_S)
    manifest, rows = read(tmp_path / "first")
    assert_whole(manifest, rows)
    assert {step["rate"] for step in manifest.scenario["steps"]} == {30}
    manifest, rows = read(tmp_path / "second")
    assert manifest.status == "aborted"
    assert_ledger_closes(manifest, rows)


BUSY = """
import time
import gevent
from tailrate.loadtest.null import Null

def spin():
    while True:
        try:
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                pass
        except KeyboardInterrupt:
            pass  # as any code between two greenlets may
        gevent.sleep(0.001)

gevent.spawn(spin)
"""


def test_ctrl_c_reaches_the_run_whatever_is_at_work(tmp_path):
    """Python would raise it in whichever greenlet runs, on the page's server as without one."""
    base = f"http://127.0.0.1:{(web := free_port())}"
    (tmp_path / "busy.py").write_text(BUSY)
    with endpoint() as url:
        words = [
            *LOCUST[:3],
            "-f",
            str(tmp_path / "busy.py"),
            "--host",
            url,
            "--run-dir",
            str(tmp_path),
            "--run-id",
            "it",
        ]
        words += ["--web-host", "127.0.0.1", "--web-port", str(web), "--rates", "40", "--step-seconds", "60"]
        process = subprocess.Popen(
            words, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL
        )
        try:
            until(lambda: answers(base))
            urllib.request.urlopen(f"{base}/swarm", data=f"host={url}".encode(), timeout=PATIENCE_S).close()
            await_rows(tmp_path / "it", 20)
            process.send_signal(signal.SIGINT)
            process.wait(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.wait()
    assert Manifest.read(tmp_path / "it").status == "aborted"


def answers(base):
    with contextlib.suppress(OSError):
        urllib.request.urlopen(base, timeout=PATIENCE_S).close()
        return True
    return False


def test_what_the_server_says_is_asked_before_and_after(tmp_path):
    with endpoint(recompile_every=10, fallback="no HAProxy here") as url:
        manifest, rows = finish(tmp_path, "--headless", "--host", url, "--rates", "20", "--variants", "eager")
    (entry,) = manifest.endpoints
    first = entry["parameters"]["recompiles"]
    assert entry["parameters_after"]["recompiles"] == (len(rows) + 1) // 10  # one request was tried before the run
    assert entry["events"] == {"recompiles": entry["parameters_after"]["recompiles"] - first}
    assert "events_before" not in entry
    ingress = {"way": "plain", "fallback": "no HAProxy here", "slow_requests": None}
    assert manifest.extra["ingress"] == {"before": ingress, "after": ingress}
    assert "ingress" not in manifest.hosts[0]


def test_a_server_that_counts_nothing_is_not_made_to(tmp_path):
    with endpoint() as url:
        manifest, _ = finish(tmp_path, "--headless", "--host", url, "--rates", "20", "--variants", "eager")
    assert manifest.endpoints[0]["parameters_after"] == {}
    assert "events" not in manifest.endpoints[0]
    assert "ingress" not in manifest.extra


def test_ctrl_c_ends_no_greenlet_that_is_at_work():
    code = """
import os, signal
import gevent
from tailrate.loadtest.engine.session import _hear_ctrl_c

def work():
    os.kill(os.getpid(), signal.SIGINT)
    finished.append(sum(range(1_000_000)))

finished = []
_hear_ctrl_c()
gevent.spawn(work)
try:
    gevent.sleep(30)
except KeyboardInterrupt:
    print(len(finished))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
