"""Gaps that another's prompt was read in are those that any span of reading touches, by brute force."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from folders import Load
from streamed import written

from tailrate import analysis
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.server_metrics.beside_prompts import COLUMNS, beside_prompts, merged, overlaps


@pytest.mark.parametrize("seed", range(20))
def test_spans_are_those_that_any_of_them_touches(seed: int) -> None:
    rng = np.random.default_rng(seed)
    begins = rng.integers(0, 1000, 40)
    ends = begins + rng.integers(1, 60, 40)
    from_ns = rng.integers(0, 1000, 300)
    to_ns = from_ns + rng.integers(1, 30, 300)
    found = overlaps(from_ns, to_ns, *merged(begins, ends))
    assert 0 < found.sum() < 300
    assert found.tolist() == [
        bool(((begins < end) & (ends > begin)).any()) for begin, end in zip(from_ns, to_ns, strict=True)
    ]


def test_gaps_of_a_run_are_told_apart_by_who_else_was_read_there(tmp_path: Path) -> None:
    rows = written(tmp_path / "run", np.random.default_rng(2), [Load("m/a", 30, seconds=10)], lengths=(1, 20))
    path = tmp_path / "run" / "requests.parquet"
    table = pq.read_table(path)
    rng = np.random.default_rng(3)
    for row in rows:
        if row.get("first_ns"):
            row["replica"] = rng.choice(["one", "two"])
            row["queue_ms"] = (row["first_ns"] - row["sent_ns"]) / 1e6 * rng.uniform(0.2, 0.9)
            row["prefill_ms"] = 1.0
    columns = {
        name: pa.array([row.get(name) for row in rows], table.schema.field(name).type) for name in table.schema.names
    }
    pq.write_table(pa.table(columns).replace_schema_metadata(table.schema.metadata), path)
    run = analysis.load(tmp_path / "run")
    (step,) = run.measured
    found = beside_prompts(run.requests(0, COLUMNS), 0, "m/a", step.start_ns, step.end_ns)
    assert found
    assert report_of(run)["answers"]["beside_prompts"] == [asdict(found)]
    good = [row for row in rows if row["status"] == "200" and row.get("first_ns")]
    read = [(row["replica"], row["sent_ns"] + row["queue_ms"] * 1e6, row["first_ns"]) for row in good]
    with_one, without = [], []
    for row in good:
        at = row["first_ns"]
        for gap in row["gaps_us"] if step.start_ns <= row["intended_ns"] <= step.end_ns else ():
            end = at + 1000 * gap
            some = any(who == row["replica"] and begin < end and first > at for who, begin, first in read)
            (with_one if some else without).append(1000 * gap)
            at = end
    assert (found.gaps, found.beside) == (len(without), len(with_one))
    assert min(found.gaps, found.beside) > 500
    for name, ns in (("p50_ms", without), ("beside_p50_ms", with_one)):
        assert getattr(found, name) == sorted(ns)[(len(ns) - 1) // 2] / 1e6
    for name, ns in (("p99_ms", without), ("beside_p99_ms", with_one)):
        assert getattr(found, name) == sorted(ns)[int(np.ceil(0.99 * len(ns))) - 1] / 1e6


def test_a_server_that_does_not_say_has_no_such_row(tmp_path: Path) -> None:
    written(tmp_path / "run", np.random.default_rng(2), [Load("m/a", 30, seconds=10)])
    assert report_of(analysis.load(tmp_path / "run"))["answers"]["beside_prompts"] == []
