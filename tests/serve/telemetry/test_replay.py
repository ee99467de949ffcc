import time
from pathlib import Path

import pytest

from tailrate.serve.spec import ServeError
from tailrate.serve.telemetry.replay import ReplaySource
from tailrate.serve.telemetry.sampler import Sampler
from tailrate.serve.wire import SAMPLE_FIELDS

TRACE = """time_ns,host,device,index,util_pct,mem_util_pct,mem_bytes,power_w,throttle_bits
1000000000,gpu-host,GPU-a,0,50.0,,1073741824,200.5,4
1050000000,gpu-host,GPU-a,0,60.0,,1073741824,210.5,0
1050000000,gpu-host,GPU-b,1,10.0,,,90.0,
"""


def test_samples_come_when_they_are_due_and_over_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    source = ReplaySource(path)
    began = time.time_ns()
    seen = []
    while time.time_ns() < began + 230_000_000:
        seen += source.read()
        time.sleep(0.005)
    assert [row["device"] for row in seen[:6]] == ["GPU-a", "GPU-a", "GPU-b", "GPU-a", "GPU-a", "GPU-b"]
    spacing = [row["time_ns"] - seen[0]["time_ns"] for row in seen[:6]]
    assert spacing == [0, 50_000_000, 50_000_000, 100_000_000, 150_000_000, 150_000_000]
    assert abs(seen[0]["time_ns"] - began) < 50_000_000
    assert seen[0]["mem_bytes"] == 1 << 30
    assert seen[0]["throttle_bits"] == 4
    assert "mem_util_pct" not in seen[0]
    assert "throttle_bits" not in seen[2]


def test_a_sampler_keeps_the_trace_s_instants(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    sampler = Sampler([ReplaySource(path)], host="here")
    time.sleep(0.06)
    sampler.sample()
    rows = [dict(zip(SAMPLE_FIELDS, row, strict=True)) for row in sampler.read()["rows"]]
    assert [row["power_w"] for row in rows] == [200.5, 210.5, 90.0]
    assert {row["host"] for row in rows} == {"here"}
    assert rows[1]["time_ns"] - rows[0]["time_ns"] == 50_000_000


@pytest.mark.parametrize("text", ["", "time_ns,device\n", "time_ns,device\n,GPU-a\n", "time_ns,device\nsoon,GPU-a\n"])
def test_what_is_no_trace_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ServeError, match="the device trace"):
        ReplaySource(path)
    with pytest.raises(ServeError, match="No such file"):
        ReplaySource(tmp_path / "none.csv")
