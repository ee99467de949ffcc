"""NVML by way of pynvml itself: a stand-in library whose every figure is known (tests/support/nvml.c)."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bare import standin
from waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
GPU = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in (0, 1)]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return standin(tmp_path_factory.mktemp("nvml"))


def watts(t):
    return 300 + 100 * math.sin(2 * math.pi * t / 10)


def joules(t):
    return 300 * t + 1000 / (2 * math.pi) * (1 - math.cos(2 * math.pi * t / 10))


def run(library, code, **environment):
    """The code in a process that finds the stand-in; what it prints as JSON."""
    env = os.environ | library | {key: str(value) for key, value in environment.items()}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


READ = """
import json, os, time
from tailrate.serve.telemetry.nvml import NvmlSource
os.environ.setdefault("STANDIN_T0", str(time.time()))  # how long a start takes is nobody's matter
source = NvmlSource({own})
reads = []
for _ in range({count}):
    before = time.time()
    reads.append([before, source.read(), time.time()])
    time.sleep({every})
print(json.dumps({{"reads": reads, "remarks": source.remarks}}))
"""


def read(library, count=3, every=0.1, own="lambda pid: pid == 4242", **environment):
    return run(library, READ.format(count=count, every=every, own=own), **environment)


def test_every_field_is_what_the_gpu_says(library):
    t0 = time.time() - 1000
    found = read(library, STANDIN_T0=t0, STANDIN_PID=4242)
    for before, samples, after in found["reads"]:
        assert [sample["device"] for sample in samples] == GPU
        first, second = samples
        assert joules(before - t0) - 0.01 <= first["energy_j"] <= joules(after - t0) + 0.01
        # at the instant, not the second's average that the board shows
        assert first["power_w"] == pytest.approx(watts((before + after) / 2 - t0), abs=1)
        assert (first["mem_util_pct"], first["mem_bytes"], first["temp_c"]) == (20, 10 << 30, 60)
        assert (first["sm_mhz"], first["mem_mhz"], first["throttle_bits"]) == (1800, 2600, 0)
        assert first["own_mem_bytes"] == 1 << 30  # the other process on it is not ours
        assert (second["index"], second["mem_mhz"], second["util_pct"]) == (1, None, 50)
        assert second["own_mem_bytes"] is None
    # the mean of the driver's samples of 60 and 100, of which a poll would see the last
    assert all(60 < samples[0]["util_pct"] < 100 for _, samples, _ in found["reads"][1:])
    assert "sm_active_pct" not in found["reads"][0][1][0]
    activity = found["reads"][1][1][0]
    assert (activity["sm_active_pct"], activity["tensor_active_pct"], activity["dram_active_pct"]) == (40, 30, 20)
    assert "sm_active_pct" not in found["reads"][1][1][1]
    assert found["remarks"] == ["GPU 1 has no mem_mhz", "GPU 1 has no activity counters"]


def test_clocks_that_are_held_down_say_why(library):
    t0 = time.time() - 1010.5  # in the middle of it
    samples = read(library, count=1, STANDIN_T0=t0)["reads"][0][1]
    assert [(sample["sm_mhz"], sample["throttle_bits"]) for sample in samples] == [(1800, 0), (1200, 4)]


def test_a_gpu_that_falls_off_the_bus_is_an_event_and_looked_for_again(library):
    found = read(library, count=24, every=0.2, STANDIN_LOST_FROM=1.2, STANDIN_LOST_TO=2.2)
    there = [[sample["index"] for sample in samples] for _, samples, _ in found["reads"]]
    assert all(0 in indices for indices in there)  # the other one goes on
    assert there[0] == there[-1] == [0, 1]
    gone = [at for at, indices in enumerate(there) if 1 not in indices]
    assert gone == list(range(gone[0], gone[-1] + 1))
    remarks = [remark for remark in found["remarks"] if "has no" not in remark]
    assert remarks == [f"GPU 1 ({GPU[1]}) is lost: GPU is lost", f"GPU 1 ({GPU[1]}) is back"]


def test_only_what_is_below_the_server_is_its_own(library):
    code = "import json, os; from tailrate.serve.telemetry.own_processes import is_kin as own\n"
    code += "print(json.dumps([own(os.getpid()), own(1), own(2**22 + 1)]))"
    assert run(library, code) == [True, False, False]


def test_without_a_driver_there_are_no_gpus_and_no_complaint(tmp_path):
    code = "import json; from tailrate.serve.telemetry.sampler import sources\n"
    code += "print(json.dumps([source.name for source in sources()]))"
    assert run({"LD_LIBRARY_PATH": str(tmp_path)}, code)[0] == "host"


def test_the_sampler_says_what_is_lacking_once(library):
    code = """
import json
from tailrate.serve.telemetry.sampler import Sampler, sources
sampler = Sampler(sources(), 60_000, host="h")  # no machine is held up for so long that a reading is left out
for _ in range(3):
    sampler.sample()
found = sampler.read()
print(json.dumps([[row[2] for row in found["rows"]], [event["event"] for event in found["events"]]]))
"""
    devices, events = run(library, code)
    assert devices == ["cpu", *GPU] * 3
    assert events == ["GPU 1 has no mem_mhz", "GPU 1 has no activity counters"]


def test_an_error_that_nobody_knows_empties_one_field_while_it_lasts(library):
    found = read(library, count=12, STANDIN_ODD_UNTIL=0.5)
    celsius = [samples[0]["temp_c"] for _, samples, _ in found["reads"]]
    assert [len(samples) for _, samples, _ in found["reads"]] == [2] * 12  # nobody is lost
    assert celsius == sorted(celsius, key=lambda value: value is not None)
    assert (celsius[0], celsius[-1]) == (None, 60)
    assert all(samples[0]["mem_bytes"] == 10 << 30 for _, samples, _ in found["reads"])
    assert found["remarks"].count("GPU 0 did not say its temp_c: Unknown Error") == 1
    assert not any("lost" in remark for remark in found["remarks"])


def test_a_share_that_is_no_number_is_none(library):
    """As an H200's memory gives; JSON has no word for it, so a strict reader would lose the whole page of samples."""
    found = read(library, count=12, STANDIN_ODD_UNTIL=0.5)
    said = [samples[0] for _, samples, _ in found["reads"][1:]]
    assert [sample["sm_active_pct"] for sample in said] == [40] * 11
    busy = [sample.get("dram_active_pct") for sample in said]
    assert (busy[0], busy[-1]) == (None, 20)
    assert set(busy) == {None, 20}


@pytest.mark.parametrize(
    ("symbol", "lacks"),
    [
        ("nvmlDeviceGetCurrentClocksThrottleReasons", {"throttle_bits"}),
        ("nvmlGpmQueryDeviceSupport", {"sm_active_pct", "tensor_active_pct", "dram_active_pct"}),
        ("nvmlDeviceGetSamples", set()),  # there is another way to it
        ("NVML_FI_DEV_POWER_INSTANT", set()),
    ],
)
def test_what_pynvml_lacks_is_one_field_at_most(library, symbol, lacks):
    code = READ.format(count=2, every=0.1, own="lambda pid: pid == 4242")
    found = run(library, f"import pynvml; del pynvml.{symbol}\n{code}", STANDIN_PID=4242)
    whole = read(library, count=2, STANDIN_PID=4242)
    sample, usual = found["reads"][-1][1][0], whole["reads"][-1][1][0]
    assert {name for name, value in usual.items() if sample.get(name) is None and value is not None} == lacks
    assert len(found["reads"][-1][1]) == 2


def test_a_divided_gpu_has_its_parts_beside_it(library):
    found = read(library, count=2, STANDIN_MIG=1, STANDIN_PID=4242)
    whole, part, other = found["reads"][-1][1]
    assert (whole["device"], other["device"]) == tuple(GPU)
    assert (part["device"], part["index"], part["mem_bytes"]) == (
        "MIG-00000000-0000-0000-0000-000000000010",
        0,
        9 << 30,
    )
    assert (part["util_pct"], part["mem_util_pct"]) == (None, None)
    assert whole["util_pct"] is not None
