"""A server of others, whose answers say nothing of devices, with an agent or an exporter beside it: to the report."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil
import pytest
from agents import agent
from bare import bare, standin
from endpoint import endpoint
from pages import WATTS, page
from waiting import PATIENCE_S, clock_step_ns, until

from tailrate import analysis
from tailrate.analysis.records.folder import read_events
from tailrate.serve import wire
from tailrate.serve.deploy.haproxy import free_port

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
GPU = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in (0, 1)]
AHEAD_S, DRIFT_PPM = 1.7, 50.0


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return standin(tmp_path_factory.mktemp("nvml"))


def drive(url, folder, devices, *words, model="null"):
    command = [sys.executable, "-m", "locust", "-f", f"loadtest/{model}.py", "--headless", "--only-summary"]
    command += ["--host", url, "--run-dir", str(folder.parent), "--run-id", folder.name, "--devices", devices]
    command += ["--variants", "eager", "--settle-seconds", "0.5", *words]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, timeout=PATIENCE_S)
    return analysis.load(folder)


def joules(t):
    return 300 * t + 1000 / (2 * np.pi) * (1 - np.cos(2 * np.pi * t / 10))


def watts(t):
    return 300 + 100 * np.sin(2 * np.pi * t / 10)


def listener_of(url):
    """The process that listens there."""
    port = urlsplit(url).port
    found = psutil.Process().children(recursive=True)
    return next(one.pid for one in found for each in one.net_connections("tcp") if each.laddr.port == port)


@pytest.fixture(scope="module")
def shifted(library, tmp_path_factory):
    """A run against a plain server, with an agent whose clock is ahead and drifts; nobody names a GPU.

    The host has two, and the server holds the first of them, which the agent sees by its port.
    """
    t0 = time.time()
    with endpoint(plain=1, telemetry=0) as url:
        environment = library | {"STANDIN_T0": str(t0), "STANDIN_PID": str(listener_of(url))}
        with agent(environment, ahead_s=AHEAD_S, drift_ppm=DRIFT_PPM) as (source, said):
            folder = tmp_path_factory.mktemp("run") / "it"
            run = drive(url, folder, source, "--rates", "40", "--step-seconds", "10", "--idle-seconds", "1")
    return run, t0, said


def real_ns(device_ns, began_ns):
    """What the agent's clock would have shown without what was done to it."""
    return began_ns + (np.asarray(device_ns, dtype=np.float64) - began_ns - AHEAD_S * 1e9) / (1 + DRIFT_PPM * 1e-6)


def test_the_energy_of_a_step_is_that_of_the_gpu_which_the_servers_process_holds(shifted):
    run, t0, _ = shifted
    assert run.requests()["device"].isna().all()  # no answer says it
    assert [entry["devices"] for entry in run.manifest.endpoints] == [[GPU[0]]]
    (step,) = run.measured
    start, end = (ns / 1e9 - t0 for ns in (step.start_ns, step.end_ns))
    assert step.summary.joules == pytest.approx(joules(end) - joules(start), rel=0.01)
    assert (step.summary.sm_active_pct, step.summary.tensor_active_pct) == (40, 30)
    assert step.tally.devices == {GPU[0]}


def test_every_request_has_the_sample_that_was_true_at_its_time(shifted):
    run, t0, said = shifted
    joined = run.joined()
    joined = joined[joined["sample_ns"].notna()]
    assert len(joined) > 0.5 * len(run.requests())  # on a busy machine samples can be late
    row = run.devices[run.devices["device"] == GPU[0]]
    by_energy = row.drop_duplicates("energy_j").set_index("energy_j")["time_ns"]
    true_ns = real_ns(by_energy.loc[joined["energy_j"]].to_numpy(), said["began_ns"])
    middle = (joined["sent_ns"].to_numpy() + joined["done_ns"].to_numpy()) / 2
    assert np.abs(true_ns - middle).max() < 120e6  # within a period of 100 ms
    assert np.quantile(np.abs(joined["power_w"].to_numpy() - watts(true_ns / 1e9 - t0)), 0.9) < 1.5


def test_the_agents_clock_is_found_and_the_truth_lies_inside_the_stated_error(shifted):
    run, _, said = shifted
    (clock,) = run.manifest.clock
    rows = run.requests()
    for at in np.linspace(int(rows["intended_ns"].min()), int(rows["done_ns"].max()), 20):
        truth = AHEAD_S * 1e9 + (at - said["began_ns"]) * DRIFT_PPM * 1e-6
        found = clock["offset_ns"] + (at - clock["at_ns"]) * clock["drift_ppm"] * 1e-6
        assert abs(found - truth) < 2e6 + clock_step_ns()
        assert abs(found - truth) <= clock["error_ns"] + 1000


def test_the_manifest_says_where_the_samples_came_from(shifted):
    run, *_ = shifted
    (source,) = run.manifest.extra["device_sources"]
    assert (source["kind"], source["period_s"]) == ("agent", 0.1)
    assert set(source["devices"]) == {*GPU, "cpu"}
    assert source["samples"] == len(run.devices)
    assert "problem" not in source


def test_a_running_agent_has_neither_torch_nor_ray_nor_locust_and_ends_with_0(shifted):
    *_, said = shifted
    assert said["code"] == 0
    assert not {"torch", "ray", "locust", "gevent", "uvicorn", "pandas", "starlette", "click"} & set(said["modules"])
    assert {"psutil", "pynvml"} <= set(said["modules"])


def test_the_command_says_when_it_answers_and_ends_with_0_on_sigterm(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("time_ns,device,power_w\n0,GPU-x,5\n10000000,GPU-x,6\n")
    port = free_port()
    words = [sys.executable, "-m", "tailrate", "agent", "--port", str(port), "--device-trace", str(trace)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TAILRATE_TOKEN": "a-token-of-sixteen"}
    with subprocess.Popen(words, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("ready: samples of ")
        asked = urllib.request.Request(f"http://127.0.0.1:{port}{wire.DEVICES}")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(asked)
        asked.add_header("Authorization", "Bearer a-token-of-sixteen")
        with urllib.request.urlopen(asked) as answer:
            assert json.loads(answer.read())["columns"] == list(wire.SAMPLE_FIELDS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def read(url):
    with urllib.request.urlopen(url + wire.DEVICES) as answer:
        found = json.loads(answer.read())
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    return {device: [row for row in rows if row["device"] == device] for device in (*GPU, "cpu")}


def test_an_agent_samples_what_the_server_itself_does(library):
    """Both on the stand-in, whose every figure is known: each says the same of the same instant."""
    t0 = time.time() - 4
    environment = library | {"STANDIN_T0": str(t0)}
    with bare(environment, device=GPU[0]) as (server, _), agent(environment) as (url, _):
        until(lambda: all(len(rows) > 15 for each in (server, url) for rows in read(each).values()))
        theirs, ours = read(server), read(url)
    exact = (
        "index",
        "mem_bytes",
        "mem_util_pct",
        "temp_c",
        "mem_mhz",
        "sm_active_pct",
        "tensor_active_pct",
        "dram_active_pct",
    )
    for device in GPU:
        for field in exact:
            assert {row[field] for row in ours[device][2:]} == {row[field] for row in theirs[device][2:]}, field
        for rows in (ours[device], theirs[device]):
            at = np.array([row["time_ns"] for row in rows]) / 1e9 - t0
            used = joules(at) if device == GPU[0] else 200 * at
            assert np.quantile(np.abs(np.array([row["energy_j"] for row in rows]) - used), 0.9) < 10  # W x 25 ms
            assert np.diff(at).min() < 0.5  # a busy machine takes some late, and none too many
            assert at.size <= (at[-1] - at[0]) / 0.1 + 2
    assert all(row["own_mem_bytes"] is None for rows in ours.values() for row in rows)  # of the agent nobody asks
    (mine_ns, mine), (its_ns, its) = (
        np.array([(row["time_ns"], row["mem_bytes"]) for row in each["cpu"]]).T for each in (ours, theirs)
    )
    both = (mine_ns >= its_ns[0]) & (mine_ns <= its_ns[-1])  # the machine's memory is what other tests make of it
    assert np.count_nonzero(both) > 10
    assert np.median(np.abs(mine[both] / np.interp(mine_ns[both], its_ns, its) - 1)) < 0.1


LIES = ("hang", "half", "endless", "html", "nan", "negative", "broken", "slow", "error", "bytes")
DCGM = """DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",device="nvidia0",modelName="X",Hostname="h"} 42
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",device="nvidia0",modelName="X",Hostname="h"} 200.0
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a",device="nvidia0",modelName="X",Hostname="h"} {millijoules}
"""


def test_pages_that_hang_or_lie_delay_no_arrival_and_cost_no_row(tmp_path):
    """Ten pages, each wrong in a way of its own, beside one that is right; and the same load without them."""
    (tmp_path / "page").write_text(DCGM)
    words = ["--rates", "100", "--step-seconds", "4", "--idle-seconds", "0.2"]
    with ExitStack() as stack:
        url = stack.enter_context(endpoint(plain=1, telemetry=0))
        good = stack.enter_context(page(file=tmp_path / "page"))
        lies = {how: stack.enter_context(page(how=how)) for how in LIES}
        named = ",".join([f"null/eager=dcgm+{good}/metrics", *(f"dcgm+{each}/metrics" for each in lies.values())])
        calm = drive(url, tmp_path / "calm", f"null/eager=dcgm+{good}/metrics", *words)
        run = drive(url, tmp_path / "it", named, *words)
    (step,), (without,) = run.measured, calm.measured
    scheduled = run.manifest.totals["scheduled"]
    assert run.manifest.totals == {
        "scheduled": scheduled,
        "ok": scheduled,
        "failed": 0,
        "timed_out": 0,
        "dropped": 0,
        "lost": 0,
    }
    assert len(run.requests()) == scheduled
    assert run.requests()["intended_ns"].size == calm.requests()["intended_ns"].size  # the same arrivals
    late, before = (np.median(one.requests()["late_ms"]) for one in (run, calm))
    assert late < before + 1500  # a reader that waits holds up what is due for longer; bench/metrics_beside has ms
    # what the right page shows is there, and only that
    assert step.summary.util_pct == without.summary.util_pct == 42
    assert step.summary.joules == pytest.approx(WATTS * (step.end_ns - step.start_ns) / 1e9, rel=0.1)
    assert set(run.devices["device"]) == {"GPU-a"}
    sources = {urlsplit(one["url"]).port: one for one in run.manifest.extra["device_sources"]}
    for how, each in lies.items():
        said = sources[urlsplit(each).port]
        assert said["samples"] == 0, how
        assert said["problem"], how
    kinds = [event["event"] for event in read_events(tmp_path / "it")]
    assert kinds.count("telemetry_lost") == len(LIES)
