from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrate.loadtest.engine.modes._trace import read
from tailrate.loadtest.engine.scenario.scenario import ScenarioError

WANTED = (0, 500_000_000, 2_000_000_000)


@pytest.mark.parametrize(
    "text",
    [
        "10\n10.5\n12\n",
        "timestamp\n10\n12\n10.5\n",
        "user,time_ms,tokens\na,10000,5\nb,10500,7\nc,12000,9\n",
        "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.5,4808\n2023-11-16 18:15:47.0,3180\n2023-11-16 18:15:48.5,1\n",
        "# a remark\nintended_ns\n1000000000\n1500000000\n3000000000\n",
    ],
)
def test_csv(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    assert read(path, 1.0) == WANTED
    assert read(path, 2.0) == tuple(at // 2 for at in WANTED)


@pytest.mark.parametrize(
    "lines",
    [
        [
            '{"timestamp": 7000, "input_length": 3}',
            '{"timestamp": 9000, "input_length": 1}',
            '{"timestamp": 7500, "input_length": 9}',
        ],
        ['{"time": 7}', '{"time": 7.5}', "", '{"time": 9}'],
    ],
)
def test_lines_of_json(tmp_path, lines):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    assert read(path, 1.0) == WANTED


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_parquet_of_numbers_and_of_dates(tmp_path, unit):
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    path = tmp_path / "trace.parquet"
    exact = [2 * 10**9 * scale, 4 * 10**9 * scale]
    pq.write_table(pa.table({"other": [1, 2], f"time_{unit}": exact}), path)
    assert read(path, 1.0) == (0, 2 * 10**18)
    dates = [datetime(2026, 1, 1, 0, 0, second) for second in (1, 3)]
    pq.write_table(pa.table({"timestamp": pa.array(dates, pa.timestamp(unit))}), path)
    assert read(path, 1.0) == (0, 2_000_000_000)


def test_the_requests_of_a_run_can_be_replayed_to_the_nanosecond(tmp_path):
    path = tmp_path / "requests.parquet"
    first = 1_790_000_000_000_000_001
    pq.write_table(pa.table({"seq": [0, 1], "intended_ns": pa.array([first, first + 7], pa.int64())}), path)
    assert read(path, 1.0) == (0, 7)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds 0 arrivals"),
        ("5\n", "holds 1 arrivals"),
        ("time\n5\nsoon\n", "its arrival 2 is no instant: soon"),
        ("a,b\n1,2\n", "has no column of instants"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=sentence):
        read(path, 1.0)
    (tmp_path / "trace.parquet").write_text(text)
    with pytest.raises(ScenarioError, match="--trace"):
        read(Path(tmp_path / "trace.parquet"), 1.0)
