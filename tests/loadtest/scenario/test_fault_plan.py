"""The plan of faults, and each of the load side's own as it happens to a stand-in endpoint."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import gevent
import psutil
import pytest
from endpoint import endpoint
from gevent.pywsgi import WSGIServer
from schedules import schedule_of
from test_run import (  # noqa: F401
    assert_ledger_closes,
    finish,
    nothing_left_running,
    read,
    said,
    start,
)
from waiting import PATIENCE_S, clock_step_ns

from tailrate.analysis.records.folder import read_events
from tailrate.cli import drive
from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.loadtest.engine.faults import LoadSide, RefusedError, disk_full, kinds, slow_client
from tailrate.loadtest.engine.injection import FaultInjection
from tailrate.loadtest.engine.scenario.fault_plan import Fault, check, named, parse
from tailrate.loadtest.engine.scenario.fault_plan import read as read_plan
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve.deploy.haproxy import free_port

# ---- the plan


def test_a_plan_is_read_with_comments_empty_cells_and_any_order_of_columns():
    text = "# mine\nfault, at_s, seconds, target\n\nreplica_killed, 60, , bert/eager\n# later\ncpu_taken,90,5\n"
    assert parse(text) == (Fault("replica_killed", "bert/eager", 0, 60), Fault("cpu_taken", "", 5, 90))
    (other,) = parse("at_s,fault,endpoint\n1,replica_killed,b\n")
    assert (other.endpoint, other.as_json()["endpoint"]) == ("b", "b")
    (share,) = parse("at_share,fault\n0.25,telemetry_cut\n")
    assert (share.at_share, share.seconds, share.due_s(400)) == (0.25, kinds()["telemetry_cut"].seconds, 100)
    assert parse("at_s,at_share,fault\n,0.5,slow_client\n")[0].as_json() == {
        "fault": "slow_client", "target": "", "seconds": 30, "at_share": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no fault"),
        ("at_s,fault\n", "holds no fault"),
        ("at_s,what\n1,x\n", "line 1: unknown column 'what'; known are at_s, at_share, fault, target, seconds, end"),
        ("at_s\n1\n", "line 1: the first line names the columns"),
        ("at_s,fault,fault\n", "line 1: the first line names the columns, each once"),
        ("# a\nat_s,fault\n# b\n1,meteor\n", "line 4: unknown fault 'meteor'; known are replica_killed"),
        ("at_s,fault\n1\n", "line 2: unknown fault ''"),
        ("at_s,fault\n,cpu_taken\n", "line 2: when is cpu_taken due? give one of at_s and at_share"),
        ("at_s,at_share,fault\n1,0.5,cpu_taken\n", "line 2: when is cpu_taken due?"),
        ("at_share,fault\n1.5,cpu_taken\n", "line 2: at_share is a share of the run, between 0 and 1, not 1.5"),
        ("at_s,fault\nsoon,cpu_taken\n", "line 2: at_s must be a number of at least 0, not 'soon'"),
        ("at_s,fault\n-1,cpu_taken\n", "line 2: at_s must be a number of at least 0, not '-1'"),
        ("at_s,fault,seconds\n1,cpu_taken,nan\n", "line 2: seconds must be a number of at least 0, not 'nan'"),
        ("at_s,fault,seconds\n1,cpu_taken,99999\n", "line 2: seconds must be at most 3600, not 99999"),
        ("at_s,fault,seconds\n1,replica_killed,5\n", "line 2: replica_killed happens at once, so it takes no seconds"),
        ("at_s,fault,target\n1,cpu_taken,some\n", "line 2: the target of cpu_taken is how many cores; empty: all, not"),
        ("at_s,fault,target\n1,telemetry_cut,x\n", "line 2: the target of telemetry_cut is nothing, not 'x'"),
        ("at_s,fault\n1,disk_full\n", "line 2: the target of disk_full must be named"),
        ("at_s,fault\n1,cpu_taken,2,3\n", "line 2: 4 values for 2 columns"),
    ],
)
def test_every_mistake_is_one_sentence_with_its_line(text, sentence):
    with pytest.raises(ScenarioError) as caught:
        parse(text, "p.csv")
    assert str(caught.value).startswith("--faults p.csv")
    assert sentence in str(caught.value)


def test_named_faults_are_spread_over_the_run():
    assert named(["replica", " telemetry_cut"]) == (
        Fault("replica_killed", "", 0, at_share=1 / 3),
        Fault("telemetry_cut", "", 15, at_share=2 / 3),
    )
    words = [kind.word for name, kind in kinds().items() if name != "disk_full"]
    assert {fault.fault for fault in named(words)} == {*kinds()} - {"disk_full"}
    for word in ("meteor", "disk", "disk_full"):
        with pytest.raises(ScenarioError, match=r"unknown '.*'; give a CSV file, or names of replica, ingress"):
            named([word])


def test_a_plan_is_a_file_or_names(tmp_path):
    assert read_plan("") == ()
    assert read_plan("collector")[0].fault == "collector_killed"
    path = tmp_path / "plan.csv"
    path.write_text("\ufeffat_s,fault\n3,slow_client\n", encoding="utf-8")
    assert read_plan(str(path))[0].at_s == 3
    with pytest.raises(ScenarioError, match="cannot be read: No such file"):
        read_plan(str(tmp_path / "other.csv"))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="cannot be read: it is no text"):
        read_plan(str(path))


# ---- injection, without a run


class Told(list):
    def __call__(self, kind, **what):
        assert kind == "fault"
        self.append(what)


def here(url="http://127.0.0.1:9", folder=Path(), **more):
    crew = SimpleNamespace(members=lambda: ["only"], kill=lambda member: False)
    collector = SimpleNamespace(host="")
    return LoadSide(**({"client": Client(url, 2), "crew": crew, "collector": collector, "folder": folder} | more))


def inject(plan, side, wait_s=5.0, others=None):
    told = Told()
    faults = FaultInjection(plan, side, told, time.time_ns, 1.0, None, others)
    faults.start()
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline and len({event["id"] for event in told if event["end_ns"]}) < len(plan):
        gevent.sleep(0.02)
    faults.stop()
    return told


def test_what_cannot_be_done_is_an_event_and_nothing_else(tmp_path):
    plan = (
        Fault("replica_killed", at_s=0), Fault("telemetry_cut", seconds=1, at_s=0), Fault("load_killed", at_s=0),
        Fault("disk_full", "/", 1, at_s=0), Fault("slow_client", "1", 1, at_share=0.1),
    )  # fmt: skip
    told = inject(plan, here("https://127.0.0.1:9", folder=tmp_path))
    assert {(event["id"], event["phase"]) for event in told} == {(n, "refused") for n in range(5)}
    by_fault = {event["fault"]: event["sentence"] for event in told}
    assert by_fault["replica_killed"].startswith("the server did not do it (connect)")
    assert "sends no device samples" in by_fault["telemetry_cut"]
    assert by_fault["load_killed"] == "there is no load process 0 to spare: 1 in all"
    assert by_fault["slow_client"] == "slow clients speak plain HTTP only"
    assert all(event["end_ns"] == event["start_ns"] for event in told)


def test_a_fault_is_asked_of_the_server_of_the_endpoint_that_it_names():
    """Of two servers, each of which refuses in words of its own."""
    asked = {}
    plan = (Fault("replica_killed", "", 0, at_s=0, endpoint="b"), Fault("replica_killed", "", 0, at_s=0))
    with refusing("a", asked) as first, refusing("b", asked) as second:
        told = inject(plan, here(first), others={"a": Client(first, 2), "b": Client(second, 2)})
    assert asked == {"a": 1, "b": 1}
    assert {(event.get("endpoint"), event["sentence"].split()[-1]) for event in told} == {("b", "b"), (None, "a")}


@contextmanager
def refusing(name, asked):
    def answer(environ, start_response):
        asked[name] = asked.get(name, 0) + 1
        start_response("403 Forbidden", [("content-type", "application/json")])
        return [json.dumps({"error": f"not by {name}"}).encode()]

    server = WSGIServer(("127.0.0.1", free_port()), answer, log=None)
    server.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.stop()


def test_an_endpoint_that_is_not_driven_is_no_place_for_a_fault():
    plan = parse("at_s,fault,endpoint\n1,replica_killed,c\n")
    check(plan, ["a", "c"])
    with pytest.raises(ScenarioError, match="there is no endpoint 'c'; driven are a, b"):
        check(plan, ["a", "b"])


def test_a_disk_that_others_need_is_never_filled(tmp_path):
    for target in ("/", str(tmp_path), "/dev/shm", "/no/such/place"):
        with pytest.raises((RefusedError, OSError)), disk_full.lasting(here(folder=tmp_path), target, 1):
            raise AssertionError("it was filled")
    assert not list(tmp_path.iterdir())


def test_a_small_volume_of_its_own_is_filled_and_freed(tmp_path):
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", tmp_path], capture_output=True)
    if done.returncode:
        pytest.skip("no volume can be mounted here")
    try:
        folder = tmp_path / "run"
        folder.mkdir()
        with disk_full.lasting(here(folder=folder), str(tmp_path), 1) as sentence:
            assert sentence == f"{tmp_path} is full: 4 MiB were taken"
            with pytest.raises(OSError, match="No space left"):
                (folder / "more").write_bytes(b"x" * 4096)
        (folder / "more").write_bytes(b"x" * 4096)
        assert not (folder / "filler").exists()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.fixture
def begun():
    """The children that this process has and did not have before: a test that failed may have left one."""
    before = psutil.Process().children()
    return lambda: [child for child in psutil.Process().children() if child not in before]


@pytest.mark.live
def test_cores_are_taken_for_as_long_as_was_said_and_no_longer(begun):
    told = inject((Fault("cpu_taken_here", "2", 1.0, at_s=0),), here())
    begin, end = told
    assert (begin["phase"], end["phase"], begin["end_ns"]) == ("begin", "end", None)
    assert end["end_ns"] - begin["start_ns"] >= 1e9 - clock_step_ns()
    assert begin["sentence"].startswith("2 busy processes on the load generator's")
    assert not begun()


def test_stopping_ends_what_is_under_way_and_says_so(begun):
    told = Told()
    side = here()
    faults = FaultInjection((Fault("cpu_taken_here", "1", 60, at_s=0), Fault("cpu_taken_here", "1", 60, at_s=60)),
                    side, told, time.time_ns)  # fmt: skip
    faults.start()
    while not told:
        gevent.sleep(0.02)
    assert len(begun()) == 1
    faults.stop()
    assert [event["phase"] for event in told] == ["begin", "end"]
    assert not begun()


def connected(port):
    found = psutil.Process().net_connections("tcp")
    return [c for c in found if c.raddr and c.raddr.port == port and c.status == psutil.CONN_ESTABLISHED]


@pytest.mark.live
def test_slow_clients_hold_connections_open_and_send_or_read_little():
    with endpoint() as url:
        port = int(url.rpartition(":")[2])
        with slow_client.lasting(here(url), "6", 1) as sentence:
            assert sentence.startswith("6 slow connections")
            deadline = time.monotonic() + PATIENCE_S
            while len(connected(port)) < 6:
                assert time.monotonic() < deadline
                gevent.sleep(0.05)
        assert not connected(port)


# ---- in runs


def faults_of(folder):
    return [event for event in read_events(folder) if event["event"] == "fault"]


@pytest.mark.live
def test_faults_of_the_load_side_happen_in_a_run_and_every_arrival_is_accounted_for(tmp_path):
    plan = tmp_path / "plan.csv"
    plan.write_text(
        "at_s,fault,target,seconds\n1,slow_client,4,1\n1.5,telemetry_cut,,1.5\n3.5,collector_killed,,1\n"
        "1,cpu_taken,1,1\n60,cpu_taken_here,,1\n"
    )
    with endpoint(delay_ms=3) as url:
        words = ["--headless", "--host", url, "--rates", "60", "--variants", "eager", "--step-seconds=6"]
        manifest, rows = finish(tmp_path, *words, "--faults", str(plan))
    assert_ledger_closes(manifest, rows)
    assert [fault["fault"] for fault in manifest.scenario["faults"]] == [
        "slow_client", "telemetry_cut", "collector_killed", "cpu_taken", "cpu_taken_here",
    ]  # fmt: skip
    events = faults_of(tmp_path / "it")
    phases = {}
    for event in events:
        phases.setdefault(event["fault"], []).append(event["phase"])
    assert phases == {
        "slow_client": ["begin", "end"],
        "telemetry_cut": ["begin", "end"],
        "collector_killed": ["begin", "end"],
        "cpu_taken": ["refused"],  # this endpoint knows of no faults
    }
    refused = next(event for event in events if event["phase"] == "refused")
    assert "(404)" in refused["sentence"]
    starts = {event["fault"]: event["start_ns"] - manifest.started_ns for event in events}
    assert sorted(starts, key=starts.__getitem__)[-2:] == ["telemetry_cut", "collector_killed"]
    assert starts["telemetry_cut"] >= 1.5e9 - clock_step_ns()
    cut = next(event for event in events if event["fault"] == "telemetry_cut" and event["phase"] == "end")
    asked = [event["time_ns"] for event in read_events(tmp_path / "it") if event.get("table") == "devices"]
    assert asked
    # asked every second: an answer may be under way, and no second one
    assert sum(cut["start_ns"] + 0.2e9 < at < cut["end_ns"] for at in asked) <= 1


@pytest.mark.live
def test_a_full_disk_is_outlived_and_no_row_is_lost(tmp_path):
    volume = tmp_path / "volume"
    volume.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", volume], capture_output=True).returncode:
        pytest.skip("no volume can be mounted here")
    try:
        (tmp_path / "plan.csv").write_text(f"at_s,fault,target,seconds\n1,disk_full,{volume},1.5\n")
        with endpoint(delay_ms=3) as url:
            words = ["--headless", "--host", url, "--rates", "80", "--variants", "eager", "--step-seconds=5"]
            words += ["--faults", str(tmp_path / "plan.csv"), "--run-dir", str(volume)]
            process = start(tmp_path, *words)
            assert process.wait(timeout=PATIENCE_S) == 0, said(tmp_path)
        manifest, rows = read(volume / "it")
        assert [event["phase"] for event in faults_of(volume / "it")] == ["begin", "end"]
    finally:
        subprocess.run(["umount", volume], check=True)
    assert (manifest.status, manifest.totals["ok"]) == ("complete", len(rows))
    assert_ledger_closes(manifest, rows)


@pytest.mark.live
def test_a_load_process_is_killed_and_its_share_is_counted_as_lost(tmp_path):
    plan = tmp_path / "plan.csv"
    plan.write_text("at_s,fault,target\n3,load_killed,1\n")
    port = str(free_port())
    with endpoint() as url:
        workers = [start(tmp_path, "--worker", "--master-port", port, "--faults", str(plan)) for _ in range(2)]
        master = ["--master", "--expect-workers", "2", "--master-bind-port", port, "--master-bind-host", "127.0.0.1"]
        words = ["--headless", "--host", url, "--rates", "50,60", "--variants", "eager", "--step-seconds=5", *master]
        # Locust shares its users out anew; a request under way just then is lost, and Locust ends with 1
        manifest, rows = finish(tmp_path, *words, "--faults", str(plan), codes=(0, 1))
        assert sorted(worker.wait(timeout=PATIENCE_S) for worker in workers) == [-9, 0], said(tmp_path)
    assert manifest.status == "complete"
    begin, end = faults_of(tmp_path / "it")
    assert (begin["phase"], end["phase"]) == ("begin", "end")
    assert begin["sentence"] == "load process 1 of 2 was killed"
    assert_ledger_closes(manifest, rows)
    (gone,) = (event for event in read_events(tmp_path / "it") if event["event"] == "worker_lost")
    assert gone["steps"] == [0]
    schedule = schedule_of(manifest)
    assert manifest.totals["scheduled"] == len(schedule)
    assert manifest.totals["lost"] == len(schedule) - len(rows) > 0
    # the next step is shared among those who live
    assert {key for key in schedule if key[0] == 1} == {(row["step"], row["seq"]) for row in rows if row["step"] == 1}


def test_a_server_of_our_own_may_be_broken_only_where_there_is_a_plan(tmp_path, monkeypatch):
    seen = []

    @contextmanager
    def serving(model, variants, how):
        seen.append(how)
        yield "http://127.0.0.1:9"

    monkeypatch.setattr(drive, "serving", serving)
    monkeypatch.setattr(drive, "_locust", lambda *_: 0)
    monkeypatch.setattr(drive, "terminate_is_ctrl_c", lambda: None)
    for more in ({"faults": "replica"}, {}):
        assert drive.drive("null", None, 1, (), {"run_dir": str(tmp_path)} | more) == 0
    assert [how.get("allow_faults") for how in seen] == [True, None]


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [
        ("meteor", "hold", "--faults: unknown 'meteor'"),
        ("no.csv", "hold", "--faults no.csv cannot be read"),
        ("replica", "knee", "at_share"),
    ],
)
def test_what_is_no_plan_is_one_sentence(text, mode, sentence):
    with pytest.raises(ScenarioError, match=sentence):
        read_plan(text, mode)


@pytest.mark.live
def test_a_plan_that_cannot_be_is_said_before_any_load(tmp_path):
    with endpoint() as url:
        process = start(tmp_path, "--headless", "--host", url, "--faults", "replica", "--mode=knee", "--slo=p99<50ms")
        assert process.wait(timeout=PATIENCE_S) == 2
    assert "at_share" in said(tmp_path)
    assert not (tmp_path / "it").exists()
