"""From NVML to the report: known waveforms through sampler, HTTP, collector, join and steps, on clocks that differ."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from bare import bare, standin
from waiting import PATIENCE_S, clock_step_ns, until

from tailrate import analysis
from tailrate.analysis.records.folder import read_events
from tailrate.analysis.run.device_tracks import STATE
from tailrate.analysis.run.recorded_run import seal

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
GPU = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in (0, 1)]
AHEAD_S, DRIFT_PPM = 1.7, 50.0


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return standin(tmp_path_factory.mktemp("nvml"))


def drive(url, folder, *words):
    command = [sys.executable, "-m", "locust", "-f", "loadtest/null.py", "--headless", "--only-summary", "--host", url]
    command += ["--run-dir", str(folder.parent), "--run-id", folder.name, "--rates", "40", "--settle-seconds", "1"]
    subprocess.run(
        [*command, "--idle-seconds", "1.5", *words], check=True, cwd=ROOT, capture_output=True, timeout=PATIENCE_S
    )
    return analysis.load(folder)


def watts(t):
    return 300 + 100 * np.sin(2 * np.pi * t / 10)


def joules(t):
    return 300 * t + 1000 / (2 * np.pi) * (1 - np.cos(2 * np.pi * t / 10))


@pytest.fixture(scope="module")
def skewed(library, tmp_path_factory):
    """A run on GPU 0, whose host's clock is ahead and drifts; the stand-in's waveform keeps real time."""
    t0 = time.time()
    with bare(library | {"STANDIN_T0": str(t0)}, device=GPU[0], ahead_s=AHEAD_S, drift_ppm=DRIFT_PPM) as (url, said):
        run = drive(url, tmp_path_factory.mktemp("run") / "it", "--step-seconds", "14")
    return run, t0, said["began_ns"]


def real_ns(device_ns, began_ns):
    """What the device host's clock would have shown without what was done to it."""
    return began_ns + (np.asarray(device_ns, dtype=np.float64) - began_ns - AHEAD_S * 1e9) / (1 + DRIFT_PPM * 1e-6)


def test_the_energy_of_a_step_is_the_integral_of_its_power(skewed):
    run, t0, _ = skewed
    (step,) = run.measured
    start, end = (ns / 1e9 - t0 for ns in (step.start_ns, step.end_ns))
    truth = joules(end) - joules(start)
    assert step.summary.joules == pytest.approx(truth, rel=0.01)
    assert step.summary.joules_per_request == pytest.approx(truth / step.summary.ok, rel=0.01)
    assert step.summary.power_w == pytest.approx(truth / (end - start), rel=0.01)
    assert (step.summary.sm_active_pct, step.summary.tensor_active_pct) == (40, 30)
    assert step.summary.mem_peak_bytes == 10 << 30
    assert step.summary.util_max_pct <= 100


def test_every_request_has_the_sample_that_was_true_at_its_time(skewed):
    run, t0, began_ns = skewed
    joined = run.joined()
    row = run.devices[run.devices["device"] == GPU[0]]
    # on a busy machine samples can be late: only who has none within a period may be without
    alone = joined[joined["sample_ns"].isna()]
    middle = (alone["sent_ns"] + alone["done_ns"]).to_numpy() / 2
    times = real_ns(row["time_ns"].to_numpy(), began_ns)
    assert all(np.abs(times - at).min() > 95e6 for at in middle)
    joined = joined[joined["sample_ns"].notna()]
    assert len(joined) > 0.5 * len(run.requests())
    # the sample's own instant by real time, from the row that it came from
    by_energy = row.drop_duplicates("energy_j").set_index("energy_j")["time_ns"]
    true_ns = real_ns(by_energy.loc[joined["energy_j"]].to_numpy(), began_ns)
    # 1.5 W pass in 24 ms at the steepest; a busy machine may halt the sampler between two fields of one sample
    assert np.quantile(np.abs(joined["power_w"].to_numpy() - watts(true_ns / 1e9 - t0)), 0.9) < 1.5
    middle = (joined["sent_ns"].to_numpy() + joined["done_ns"].to_numpy()) / 2
    assert np.abs(true_ns - middle).max() < 120e6  # within a period of 100 ms


def test_the_offset_is_found_and_the_truth_lies_inside_the_stated_error(skewed):
    run, _, began_ns = skewed
    (clock,) = run.manifest.clock
    rows = run.requests()
    for at in np.linspace(int(rows["intended_ns"].min()), int(rows["done_ns"].max()), 20):
        truth = AHEAD_S * 1e9 + (at - began_ns) * DRIFT_PPM * 1e-6
        found = clock["offset_ns"] + (at - clock["at_ns"]) * clock["drift_ppm"] * 1e-6
        assert abs(found - truth) < 2e6 + clock_step_ns()
        assert abs(found - truth) <= clock["error_ns"] + 1000
    assert clock["drift_ppm"] == pytest.approx(DRIFT_PPM, abs=30)


def test_the_join_is_the_same_as_without_the_offset(skewed, tmp_path):
    run, _, began_ns = skewed
    seal(run.folder)
    honest = tmp_path / "honest"
    honest.mkdir()
    for name in ("events.jsonl", "requests.parquet"):
        (honest / name).write_bytes((run.folder / name).read_bytes())
    manifest = json.loads((run.folder / "run.json").read_text())
    manifest["clock"] = [manifest["clock"][0] | {"offset_ns": 0, "drift_ppm": 0.0, "error_ns": 0}]
    (honest / "run.json").write_text(json.dumps(manifest))
    table = pq.read_table(run.folder / "devices.parquet").to_pandas()
    table["time_ns"] = np.rint(real_ns(table["time_ns"], began_ns)).astype("int64")
    pq.write_table(__import__("pyarrow").Table.from_pandas(table, preserve_index=False), honest / "devices.parquet")
    one, other = run.joined().reset_index(drop=True), analysis.load(honest).joined().reset_index(drop=True)
    same = np.ones(len(one), dtype=bool)
    for column in STATE:
        pair = pd.DataFrame({"a": one[column], "b": other[column]}).astype("float64")
        same &= ((pair["a"] == pair["b"]) | (pair["a"].isna() & pair["b"].isna())).to_numpy()
    # but for those so near to a boundary that the error could have mistaken them, which are counted
    assert (~same).sum() <= run.tallies.near_boundary
    assert run.tallies.joined == one["sample_ns"].notna().sum()


def test_throttling_a_lost_gpu_and_a_missing_field_reach_the_report(library, tmp_path):
    t0 = time.time() - 4  # the load has until second 18 to begin
    environment = library | {"STANDIN_T0": str(t0), "STANDIN_LOST_FROM": "18", "STANDIN_LOST_TO": "21"}
    with bare(environment, device=GPU[1]) as (url, _):
        run = drive(url, tmp_path / "it", "--step-seconds", "21")
    (step,) = run.measured
    start, end = (ns / 1e9 - t0 for ns in (step.start_ns, step.end_ns))
    assert start < 18 < 21.5 < end
    assert step.summary.joules == pytest.approx(200 * (end - start), rel=0.01)  # the counter bridges the gap
    held = sum(max(0.0, min(end, at + 5) - max(start, at)) for at in (10, 30))  # 5 s of every 20
    sampled = (end - start) - 3.0
    assert step.summary.throttled_pct == pytest.approx(100 * held / sampled, abs=6)
    assert any("clocks were held down: power cap" in reason for reason in step.summary.reasons)
    said = [event["sentence"] for event in read_events(tmp_path / "it") if event["event"] == "device"]
    assert said == [f"GPU 1 ({GPU[1]}) is lost: GPU is lost", f"GPU 1 ({GPU[1]}) is back"]
    rows = run.devices[run.devices["device"] == GPU[1]]
    assert rows["mem_mhz"].isna().all()
    at = np.sort(rows["time_ns"].to_numpy()) / 1e9 - t0
    assert 2.8 < np.diff(at).max() < 5
    assert set(rows["sm_mhz"]) == {1200.0, 1800.0}
    # no request was given the state of a GPU that was away
    away = run.joined()[(run.joined()["done_ns"] / 1e9 - t0 > 18.3) & (run.joined()["done_ns"] / 1e9 - t0 < 20.8)]
    assert len(away) > 50
    assert away["power_w"].isna().all()


def test_an_overloaded_endpoint_has_the_throughput_and_the_energy_that_it_had(library, tmp_path):
    """At 140 % of what it can do: its own count of answers, and the stand-in's power, in the very window."""
    t0 = time.time()
    with bare(library | {"STANDIN_T0": str(t0)}, device=GPU[0], delay_ms=20, log=tmp_path / "log") as (url, _):
        run = drive(url, tmp_path / "it", "--rates", "68", "--step-seconds", "11", "--timeout", "60")
    (step,) = run.measured
    answered_ns = np.array((tmp_path / "log").read_text().split(), dtype=np.int64)
    count = int(((answered_ns >= step.start_ns) & (answered_ns < step.end_ns)).sum())
    seconds = (step.end_ns - step.start_ns) / 1e9
    assert step.overloaded
    assert step.summary.ok > 1.2 * count  # it answered them all in the end
    assert step.summary.achieved_rps == pytest.approx(count / seconds, rel=0.02)
    truth = joules(step.end_ns / 1e9 - t0) - joules(step.start_ns / 1e9 - t0)
    assert step.summary.joules_per_request == pytest.approx(truth / count, rel=0.02)


def test_a_recorded_trace_is_played_back_to_a_run(tmp_path):
    trace = tmp_path / "trace.csv"
    lines = ["time_ns,device,index,power_w,util_pct"]
    lines += [f"{n * 50_000_000},GPU-x,0,{200 + 50 * math.sin(n / 20)},90" for n in range(400)]
    trace.write_text("\n".join(lines) + "\n")
    with bare(device="GPU-x", device_trace=str(trace)) as (url, _):
        run = drive(url, tmp_path / "it", "--step-seconds", "4")
    (step,) = run.measured
    assert 150 < step.summary.power_w < 250
    assert step.summary.util_pct == 90
    assert run.joined()["power_w"].notna().mean() > 0.5  # late samples are left out


def test_a_server_away_for_a_while_is_read_on_from_where_it_was(tmp_path):
    """Stopped in the middle, as a lost connection is: events say so, and no sample is missing afterwards."""

    def is_told(kind):
        return any(event["event"] == kind for event in read_events(tmp_path / "it"))

    with bare(sample_ms=50) as (url, said):
        words = ["--step-seconds", "9", "--timeout", "1", "--rates", "5"]
        command = [sys.executable, "-m", "locust", "-f", "loadtest/null.py", "--headless", "--only-summary"]
        command += ["--host", url, "--run-dir", str(tmp_path), "--run-id", "it", "--idle-seconds", "0", *words]
        command += ["--settle-seconds", "0"]
        driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: (tmp_path / "it" / "events.jsonl").exists())
        until(lambda: is_told("step_start"))
        time.sleep(2)
        os.kill(said["pid"], signal.SIGSTOP)
        until(lambda: is_told("telemetry_lost"))  # a second after the last answer, or when the driver runs again
        time.sleep(2)
        os.kill(said["pid"], signal.SIGCONT)
        driver.wait(PATIENCE_S)
    run = analysis.load(tmp_path / "it")
    kinds = [event["event"] for event in run.events]
    assert kinds.count("telemetry_lost") == kinds.count("telemetry_back") == 1
    assert "samples_overwritten" not in kinds
    at = np.sort(run.devices["time_ns"].to_numpy())
    gaps = np.diff(at) / 1e9
    assert (gaps > 2.5).sum() == 1  # while it could not sample, and no other hole
    assert len(np.unique(at)) == len(at) or clock_step_ns() > 1e6  # a step of a coarse clock may hold two
