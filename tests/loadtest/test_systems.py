"""On macOS the load side and the analysis run, and say what is less there; on Windows nothing does."""

import asyncio
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import psutil
import pytest
from elsewhere import WINDOWS, macos
from endpoint import endpoint
from waiting import PATIENCE_S

from tailrate import analysis
from tailrate.cli import drive, processes
from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.loadtest.engine.endpoint.payloads import Payloads
from tailrate.loadtest.engine.faults import cpu_taken_here
from tailrate.loadtest.engine.record import provenance
from tailrate.loadtest.engine.scenario import in_flight
from tailrate.loadtest.engine.soak import process_usage
from tailrate.loadtest.engine.workers import selfcheck
from tailrate.loadtest.engine.workers.on_time import cpu_priority, timer
from tailrate.serve import machine
from tailrate.serve.faults import cpu_taken

ROOT = Path(__file__).parents[2]
NO_TIMER = "no timerfd"
NO_PRECEDENCE = "no precedence for load processes"


def program(code: str, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip


def test_what_is_played_is_gone(tmp_path: Path) -> None:
    code = "import ctypes, os, select; from pathlib import Path\n"
    code += "print(hasattr(os, 'sched_getaffinity'), hasattr(select, 'epoll'), Path('/proc/meminfo').exists())\n"
    code += "print(hasattr(ctypes.CDLL(None), 'timerfd_create'), len(list(Path('/dev').iterdir())) > 0)\n"
    code += "open('/proc/self/statm')"
    done = program(code, macos(tmp_path))
    assert done.stdout.split() == ["False", "False", "False", "False", "True"]
    assert "FileNotFoundError" in done.stderr


@pytest.mark.live
def test_a_run_and_its_report_on_macos_say_what_is_less(tmp_path: Path) -> None:
    words = ["--run-dir", str(tmp_path), "--run-id", "it", "--rates", "80", "--processes", "2", "--self-check", "off"]
    words += ["--step-seconds", "2", "--settle-seconds", "0.5", "--idle-seconds", "0.2", "--max-in-flight", "auto"]
    words += ["--timeout", "60"]
    with endpoint() as url:
        code = "from tailrate.cli.main import main; main()"
        done = program(code, macos(tmp_path), "run", "null", "--host", url, *words)
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    for one in (NO_TIMER, NO_PRECEDENCE):
        assert f"this machine has {one}" in done.stderr
        assert done.stderr.count(one) == 1
    run = analysis.load(tmp_path / "it")
    (load,) = (host for host in run.manifest.hosts if host["role"] == "load")
    assert [one.partition(",")[0] for one in load["lacks"]] == [NO_TIMER, NO_PRECEDENCE]
    assert load["priority"] == "as started"
    rows = run.requests(columns=["intended_ns", "sent_ns", "status"])
    assert set(rows["status"]) == {"200"}
    assert len(rows) > 200  # of 320 on average, 18 being their standard deviation
    assert ((rows["sent_ns"] - rows["intended_ns"]) >= 0).all(), "nothing is sent early"
    report = json.loads((tmp_path / "it" / "report.json").read_text())
    (risk,) = (risk for risk in report["risks"] if risk["kind"] == "system")
    assert risk["severity"] == "doubt"
    assert NO_TIMER in risk["sentence"]
    assert NO_PRECEDENCE in risk["sentence"]
    assert NO_TIMER in (tmp_path / "it" / "report.md").read_text()


@pytest.mark.live
def test_the_null_server_of_a_self_check_answers_without_epoll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in macos(tmp_path).items():
        monkeypatch.setenv(key, value)
    answer = b'HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{"outputs":[]}'
    with selfcheck.null_server(answer) as url:
        client = Client(url, PATIENCE_S)
        assert [client.send("POST", "/", b"x").body for _ in range(2)] == [b'{"outputs":[]}'] * 2
        client.close()


def test_here_nothing_is_less() -> None:
    if sys.platform == "linux":
        assert cpu_priority.lacks() == []
        assert cpu_priority.promptness("real-time") == {"priority": "real-time"}


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> timer.Alarm:
    monkeypatch.setattr(timer, "exact", lambda: False)
    return timer.Alarm()


def test_without_a_timerfd_an_alarm_can_be_rung(coarse: timer.Alarm) -> None:
    """Else a run that is stopped would wait for its next arrival."""
    hour_ns = 3600 * 10**9
    sleeper = gevent.spawn(coarse.sleep_until, timer.time.monotonic_ns() + hour_ns)
    gevent.sleep(0)
    coarse.ring()
    sleeper.join(PATIENCE_S)
    assert sleeper.dead


def test_without_a_timerfd_an_alarm_is_never_early(coarse: timer.Alarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for a ring that nobody slept for, nor for a thread that is."""
    monkeypatch.setattr(timer, "_sleep", lambda seconds: None)
    coarse.ring()
    due_ns = timer.time.monotonic_ns() + 20_000_000
    coarse.sleep_until(due_ns)
    assert timer.time.monotonic_ns() >= due_ns


def test_without_schedulers_nothing_is_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sched_setscheduler", "sched_getscheduler", "sched_getparam"):
        monkeypatch.delattr(os, name, raising=False)
    with cpu_priority.precedence() as granted:
        assert granted == "as started"
    assert [one.partition(",")[0] for one in cpu_priority.lacks()] == [NO_PRECEDENCE]


def test_without_proc_memory_is_that_of_now_and_not_the_most_that_ever_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A soak would call the latter a leak."""
    once = b"x" * 300_000_000
    del once
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    monkeypatch.setattr(process_usage, "STATM", tmp_path / "none")
    found = process_usage.rss_bytes()
    assert found == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)
    assert found < most - 200_000_000


def test_without_proc_there_is_room_for_less_and_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "PORTS", tmp_path / "none")
    monkeypatch.setattr(in_flight, "MEMORY", tmp_path / "none")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    physical = psutil.virtual_memory().total
    assert in_flight.room() == {"local ports": 13_107, in_flight.HALF: pytest.approx(physical / 2 / 100_000, abs=1)}
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PHYS_PAGES": 1 << 18, "SC_PAGE_SIZE": 4096}[name])
    assert in_flight.parse("auto", None, 10.0) == ((1 << 29) // 100_000, in_flight.HALF)


def test_cores_that_no_process_can_be_bound_to_are_all_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    if hasattr(os, "sched_getaffinity"):
        assert machine.cores() == len(os.sched_getaffinity(0))
        monkeypatch.delattr(os, "sched_getaffinity")
    assert machine.cores() == 12


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no process is bound to cores here")
def test_who_may_use_one_core_of_many_takes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    assert processes.threads_beside(1) == 1
    assert provenance.hosts({}, {})[-1]["cpus"] == 1
    assert " 1 cores, " in selfcheck.key("oip", Payloads((b"x",), ({},), (1,)), b"", 1, "constant")
    side: Any = SimpleNamespace(start=lambda *command: None)
    with cpu_taken_here.lasting(side, "", 0.0) as said:
        assert said == "1 busy processes on the load generator's 1 cores"
    assert "which has 1 cores" in asyncio.run(cpu_taken.strike(side, "", 0.0))
    start: list[Any] = []
    monkeypatch.setattr(drive, "drive_as_started", lambda folder, how, *_: start.append(how))
    monkeypatch.setattr(drive, "terminate_is_ctrl_c", lambda: None)
    drive.drive("null", None, 1, (), {"run_dir": str(tmp_path)})
    assert start[0]["how"]["threads"] == 1


@pytest.mark.parametrize(
    "words",
    [
        ["tailrate", "report", "runs/x"],
        ["tailrate", "--help"],
        ["locust", "-f", "loadtest/bert.py", "--headless", "--host", "http://127.0.0.1:9"],
    ],
    ids=" ".join,
)
def test_windows_is_refused_in_one_sentence(words: list[str]) -> None:
    first = "from tailrate.cli.main import main; main()" if words[0] == "tailrate" else "locust.main.main()"
    done = program(WINDOWS + first, dict(os.environ), *words[1:])
    assert done.returncode == 2, done.stderr
    assert done.stderr == "tailrate: Windows is not supported; use Linux or macOS, or WSL on this machine\n"
    assert done.stdout == ""
