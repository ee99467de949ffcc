from itertools import pairwise
from pathlib import Path

import pytest
from recorded_gpu import NVML

from tailrate.serve.spec import ServeError
from tailrate.serve.telemetry.replay import ReplaySource
from tailrate.serve.telemetry.sampler import Sampler
from tailrate.serve.wire import SAMPLE_FIELDS

TRACE = """time_ns,host,device,index,util_pct,mem_util_pct,mem_bytes,power_w,throttle_bits
1000000000,gpu-host,GPU-a,0,50.0,,1073741824,200.5,4
1050000000,gpu-host,GPU-a,0,60.0,,1073741824,210.5,0
1050000000,gpu-host,GPU-b,1,10.0,,,90.0,
"""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found = [1_000_000_000]
    monkeypatch.setattr("tailrate.serve.telemetry.replay.time.time_ns", lambda: found[0])
    return found


def test_samples_come_when_they_are_due_and_over_again(tmp_path: Path, now: list[int]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    source = ReplaySource(path)
    began = now[0]
    seen = []
    while now[0] < began + 230_000_000:
        found = source.read()
        assert all(now[0] - 5_000_000 < row["time_ns"] <= now[0] for row in found)
        seen += found
        now[0] += 5_000_000
    assert [row["device"] for row in seen[:6]] == ["GPU-a", "GPU-a", "GPU-b", "GPU-a", "GPU-a", "GPU-b"]
    spacing = [row["time_ns"] - seen[0]["time_ns"] for row in seen[:6]]
    assert spacing == [0, 50_000_000, 50_000_000, 100_000_000, 150_000_000, 150_000_000]
    assert seen[0]["time_ns"] == began
    assert seen[0]["mem_bytes"] == 1 << 30
    assert seen[0]["throttle_bits"] == 4
    assert "mem_util_pct" not in seen[0]
    assert "throttle_bits" not in seen[2]


def test_a_sampler_keeps_the_trace_s_instants(tmp_path: Path, now: list[int]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    sampler = Sampler([ReplaySource(path)], host="here")
    now[0] += 60_000_000
    sampler.sample()
    rows = [dict(zip(SAMPLE_FIELDS, row, strict=True)) for row in sampler.read()["rows"]]
    assert [row["power_w"] for row in rows] == [200.5, 210.5, 90.0]
    assert {row["host"] for row in rows} == {"here"}
    assert rows[1]["time_ns"] - rows[0]["time_ns"] == 50_000_000


def test_what_a_real_gpu_s_nvml_said_is_played_field_by_field(now: list[int]) -> None:
    """645 rows of an H200, a minute in the blink of an eye; what it called no number is absent."""
    source = ReplaySource(NVML)
    seen = []
    for _ in range(700):
        seen += source.read()
        now[0] += 100_000_000
    lines = NVML.read_text().splitlines()
    head, rows = lines[0].split(","), [line.split(",") for line in lines[1:]]
    assert len(seen) >= len(rows) == 645
    for row, played in zip(rows, seen, strict=False):
        wanted = {name: float(text) for name, text in zip(head[4:], row[4:], strict=True) if text not in ("", "nan")}
        assert {name: value for name, value in played.items() if name in head[4:]} == wanted
    spacing = [later["time_ns"] - earlier["time_ns"] for earlier, later in pairwise(seen[:645])]
    assert spacing == [int(later[0]) - int(earlier[0]) for earlier, later in pairwise(rows)]


@pytest.mark.parametrize("text", ["", "time_ns,device\n", "time_ns,device\n,GPU-a\n", "time_ns,device\nsoon,GPU-a\n"])
def test_what_is_no_trace_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ServeError, match="the device trace"):
        ReplaySource(path)
    with pytest.raises(ServeError, match="No such file"):
        ReplaySource(tmp_path / "none.csv")
