"""Whole runs of every mode against endpoints of known timing."""

import json
import os
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import test_run
from endpoint import endpoint
from exact import exact
from test_run import LOCUST, assert_ledger_closes, assert_whole, finish, read, said, start
from waiting import PATIENCE_S, clock_step_ns

from tailrate import analysis
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.records.folder import read_events
from tailrate.analysis.steps.variant_pairs import pairs, usable
from tailrate.loadtest.engine.workers.dispatch import LEAD_S
from tailrate.serve.deploy.haproxy import free_port

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]


def events(folder, kind):
    return [event for event in read_events(folder) if event["event"] == kind]


def test_a_b_runs_in_rounds_on_equal_arrivals_and_shows_its_noise(tmp_path):
    words = ["--mode", "ab", "--rounds", "2", "--rates", "60", "--settle-seconds=0"]
    with endpoint(delay_ms=3) as url:
        manifest, rows = finish(tmp_path, "--headless", "--host", url, *words)
    assert_whole(manifest, rows)
    steps = manifest.scenario["steps"]
    assert Counter(step["endpoint"] for step in steps if not step["twin"]) == {"null/eager": 2, "null/compiled": 2}
    assert sum(step["twin"] for step in steps) == 1
    run = analysis.load(tmp_path / "it")
    rounds = {}
    for step in run.measured:
        if not step.twin:  # those of a round have the same arrivals
            rounds.setdefault(steps[step.summary.index]["seed"], []).append(step)
    assert [len({step.summary.endpoint for step in both}) for both in rounds.values()] == [2, 2]
    # a busy machine may have made a round that is not to be trusted
    left = len(usable(list(rounds.values())))
    compared, noise = pairs(run)
    assert (compared.a, compared.b, compared.rounds) == ("null/eager", "null/compiled", left or 2)
    assert (compared.p50_ratio is not None) is bool(left)
    assert (noise.a, noise.b, noise.rounds) == ("null/eager", "null/eager", 1)


def test_a_spike_comes_without_a_pause(tmp_path):
    words = ["--mode", "spike", "--rates", "40", "--spike", "4", "--variants", "eager", "--arrivals", "constant"]
    with endpoint(delay_ms=3) as url:
        finish(tmp_path, "--headless", "--host", url, *words)
    run = analysis.load(tmp_path / "it")
    assert [len(run.requests()[run.requests()["step"] == number]) for number in range(3)] == [80, 320, 80]
    at = np.sort(run.requests()["intended_ns"].to_numpy())
    assert np.diff(at).max() <= 1e9 / 40 + 1
    assert [round(step.summary.offered_rps) for step in run.measured] == [40, 160, 40]


def test_a_trace_is_replayed(tmp_path):
    trace = tmp_path / "trace.csv"
    offsets = np.sort(np.random.default_rng(1).uniform(0, 4, 120))
    trace.write_text("timestamp\n" + "\n".join(f"{1e6 + at:.6f}" for at in offsets))
    words = ["--mode", "replay", "--trace", str(trace), "--speed", "2", "--variants", "eager"]
    with endpoint() as url:
        manifest, rows = finish(tmp_path, "--headless", "--host", url, *words)
    start_ns = manifest.scenario["steps"][0]["start_ns"]
    found = np.sort([row["intended_ns"] - start_ns for row in rows]) / 1e9
    assert np.abs(found - (offsets - offsets[0]) / 2).max() < 1e-5
    assert_ledger_closes(manifest, rows)
    assert manifest.scenario["trace"] == str(trace)


def test_a_closed_loop_keeps_so_many_under_way(tmp_path):
    with exact(kind="fixed", ms=20) as url:
        words = ["--mode", "closed", "--concurrency", "1,4", "--variants", "exact"]
        manifest, rows = finish(tmp_path, "--headless", "--host", url, *words)
    assert_ledger_closes(manifest, rows)
    assert [(step["rate"], step["concurrency"]) for step in manifest.scenario["steps"]] == [(0, 1), (0, 4)]
    for step, most in ((0, 1), (1, 4)):
        mine = [row for row in rows if row["step"] == step]
        assert sorted(row["seq"] for row in mine) == list(range(len(mine)))
        edges = sorted(edge for row in mine for edge in ((row["sent_ns"], 1), (row["done_ns"], -1)))
        level, levels = 0, []
        for _, change in edges:
            level += change
            levels.append(level)
        assert max(levels) == most
    run = analysis.load(tmp_path / "it")
    one, four = run.measured
    assert (one.asked, four.asked) == ("1 under way", "4 under way")
    assert one.rate < four.rate <= 4 / 0.020
    assert any("closed loop" in reason for reason in one.summary.reasons)
    assert run.manifest.scenario["closed"] is True


def test_single_and_offline(tmp_path):
    with exact(kind="fixed", ms=5) as url:
        words = ["--variants", "exact", "--run-id"]
        finish(tmp_path, "--headless", "--host", url, "--mode", "single", *words, "it")
        shutil.move(tmp_path / "it", tmp_path / "single")
        more = ["--mode", "offline", "--requests", "301", "--max-in-flight", "10"]
        manifest, rows = finish(tmp_path, "--headless", "--host", url, *more, *words, "it")
    assert "1 under way" in said(tmp_path)
    (single,) = analysis.load(tmp_path / "single").measured
    assert single.concurrency == 1
    assert single.summary.p50_ms >= 5 - clock_step_ns() / 1e6
    assert sorted(row["seq"] for row in rows) == list(range(301))
    (step,) = manifest.scenario["steps"]
    assert step["seconds"] < 5  # as long as they took, not as long as they might have
    (offline,) = analysis.load(tmp_path / "it").measured
    assert 301 / 10 * 0.005 < 301 / offline.summary.achieved_rps < 5


def test_two_workers_share_a_closed_loop(tmp_path):
    port = str(free_port())
    distributed = ["--processes", "2", "--master-bind-port", port, "--master-port", port]
    with exact(kind="fixed", ms=5) as url:
        words = ["--mode", "offline", "--requests", "200", "--max-in-flight", "5", "--variants", "exact"]
        manifest, rows = finish(tmp_path, "--headless", "--host", url, *words, *distributed)
    assert sorted(row["seq"] for row in rows) == list(range(200))
    assert {row["worker"] for row in rows} == {0, 1}
    assert_ledger_closes(manifest, rows)


LATE = """
import gevent
from locust.runners import WorkerRunner
from tailrate.loadtest.null import Null

connect_to_master = WorkerRunner.connect_to_master


def late(self):
    connect_to_master(self)
    gevent.sleep(1)


WorkerRunner.connect_to_master = late
"""


def test_a_worker_may_be_told_to_start_before_it_is_set_up(tmp_path, monkeypatch):
    """It listens to the master first, and on a busy machine the master is that much faster."""
    (tmp_path / "late.py").write_text(LATE)
    monkeypatch.setattr(test_run, "LOCUST", [*LOCUST[:-1], f"{tmp_path / 'late.py'}"])
    port = str(free_port())
    distributed = ["--processes", "2", "--master-bind-port", port, "--master-port", port]
    with exact(kind="fixed", ms=5) as url:
        words = ["--mode", "offline", "--requests", "100", "--max-in-flight", "5", "--variants", "exact"]
        manifest, rows = finish(tmp_path, "--headless", "--host", url, *words, *distributed)
    assert {row["worker"] for row in rows} == {0, 1}
    assert_ledger_closes(manifest, rows)


@pytest.mark.long
@pytest.mark.quiet
def test_the_knee_of_a_cliff_is_found_and_probes_beyond_it_are_cut(tmp_path):
    """20 ms each, in order: 50/s and not one more. Constant arrivals, so that nothing is left to chance."""
    words = ["--mode", "knee", "--rates", "20", "--slo", "p90<60ms", "--variants", "exact", "--arrivals", "constant"]
    words += ["--step-seconds", "9", "--settle-seconds", "0.5", "--budget-seconds", "150"]
    with exact(kind="queue", ms=20) as url:
        manifest, rows = finish_within(tmp_path, 240, "--headless", "--host", url, *words)
    assert_ledger_closes(manifest, rows)
    (knee,) = events(tmp_path / "it", "knee")
    assert knee["low_rps"] <= 51.5
    assert knee["high_rps"] >= 49.5
    steps = manifest.scenario["steps"]
    cut = [step for step in steps if step.get("cut")]
    assert cut, "no probe beyond the knee was cut short"
    assert all(step["rate"] > 50 and step["end_ns"] - step["start_ns"] < 9e9 for step in cut)
    report = report_of(analysis.load(tmp_path / "it"))
    (row,) = report["capacity"]
    assert (row["low_rps"], row["high_rps"]) == (knee["low_rps"], knee["high_rps"])


def finish_within(tmp_path, seconds, *words):
    process = start(tmp_path, *words)
    assert process.wait(timeout=seconds) == 0, said(tmp_path)
    return read(tmp_path / "it")


def test_a_knee_that_the_budget_does_not_allow_says_so(tmp_path):
    words = ["--mode", "knee", "--rates", "20", "--slo", "p99<60ms", "--variants", "exact", "--budget-seconds", "5"]
    with exact(kind="queue", ms=1) as url:
        finish(tmp_path, "--headless", "--host", url, *words)
    (knee,) = events(tmp_path / "it", "knee")
    assert knee["reason"].startswith("the budget of 5 s is spent, a probe at 20/s takes 23 s")


def test_the_self_check_is_in_the_manifest_and_remembered(tmp_path):
    env = {"HOME": str(tmp_path / "home")}
    with endpoint() as url:
        words = ["--headless", "--host", url, "--rates", "30", "--variants", "eager", "--self-check", "on"]
        manifest, rows = finish(tmp_path, *words, env=env)
        check = manifest.extra["self_check"]
        shutil.move(tmp_path / "it", tmp_path / "first")
        again, _ = finish(tmp_path, *words, env=env)
    assert_whole(manifest, rows)
    assert check["wanted_rps"] == 30
    assert check["p50_ms"] >= 0
    assert check["safe_rps"] in {30 / 2**n for n in range(6)} | {0}
    if check["safe_rps"] == 30:
        assert again.extra["self_check"] == check
    trust = report_of(analysis.load(tmp_path / "first"))["trust"]
    assert trust["self_check"] == check


def test_a_step_beyond_what_the_self_check_kept_is_not_trusted(tmp_path):
    with endpoint(delay_ms=1) as url:
        finish(tmp_path, "--headless", "--host", url, "--rates", "30,60", "--variants", "eager")
    path = tmp_path / "it" / "run.json"
    found = json.loads(path.read_text()) | {"self_check": {"safe_rps": 30.0, "closed": False}}
    path.write_text(json.dumps(found))
    one, two = analysis.load(tmp_path / "it").measured
    assert not any("self-check" in reason for reason in one.summary.reasons)
    assert any("the self-check kept its schedule to 30/s only" in reason for reason in two.summary.reasons)
    assert not two.summary.trusted


TIDIED = """
import gc

import pyarrow as pa

from tailrate.loadtest import null
from tailrate.loadtest.engine.workers.on_time.memory import MOST_NEW


class Null(null.Null):
    def check(self, answer):
        by_hand = (gc.get_threshold()[0], pa.default_memory_pool().backend_name) == (MOST_NEW, "system")
        return None if by_hand else "Python or Arrow tidies up of its own accord"
"""


def test_a_load_process_says_what_kept_it_from_its_schedule(tmp_path, monkeypatch):
    (tmp_path / "tidied.py").write_text(TIDIED)
    monkeypatch.setattr(test_run, "LOCUST", [*LOCUST[:-1], f"{tmp_path / 'tidied.py'}"])
    with endpoint() as url:
        finish(tmp_path, "--headless", "--host", url, "--rates", "50", "--variants", "eager")
    (load,) = events(tmp_path / "it", "load_cpu")
    assert load["lag_max_ms"] >= load["lag_p99_ms"] >= 0
    assert load["gc_pauses"] >= 0
    assert 0 < load["lead_ms"] <= LEAD_S * 1000  # its start was known before it came
    (end,) = events(tmp_path / "it", "step_end")
    assert set(end["statuses"]) == {"200"}
    assert end["late_max_ms"] >= end["late_p99_ms"] >= end["late_p50_ms"]


def namespaces():
    try:
        words = ["unshare", "--time", "--monotonic", "1000", "--fork", "true"]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def test_master_and_two_workers_make_one_folder_though_a_clock_be_another(tmp_path):
    """As on another machine: its clock is 1000 s ahead of the master's, where we are root and there are namespaces."""
    port = str(free_port())
    command = [*LOCUST, "--worker", "--master-port", port]
    words = ["--rates", "50", "--variants", "eager", "--arrivals", "constant"]
    with endpoint() as url:
        far = ["unshare", "--time", "--monotonic", "1000", "--fork", *command] if namespaces() else command
        with (tmp_path / "workers").open("wb") as log:
            workers = [
                subprocess.Popen(command_, stdout=log, stderr=log, env=os.environ.copy()) for command_ in (far, command)
            ]
        master = ["--master", "--expect-workers", "2", "--master-bind-port", port, "--master-bind-host", "127.0.0.1"]
        began_ns = time.time_ns()
        manifest, rows = finish(tmp_path, "--headless", "--host", url, *words, *master)
        ended_ns = time.time_ns()
        assert [worker.wait(timeout=PATIENCE_S) for worker in workers] == [0, 0], (tmp_path / "workers").read_text()
    assert_whole(manifest, rows)
    late = {worker: [] for worker in (0, 1)}
    for row in rows:
        assert began_ns < row["intended_ns"] < ended_ns
        assert row["intended_ns"] - 1e6 <= row["sent_ns"] <= row["done_ns"] < ended_ns + clock_step_ns()
        late[row["worker"]].append((row["sent_ns"] - row["intended_ns"]) / 1e6)
    assert all(np.median(values) < 500 for values in late.values())  # by a wrong clock it were 1000 s
