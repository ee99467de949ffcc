"""Whether the queue grows is asked once as many answers stream as the rate makes; before that they only become more."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from folders import START_NS, Load, make_run
from slots import Slots

from tailrate.analysis import load
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.records.rows import REQUEST_COLUMNS, arrow_type
from tailrate.analysis.verdicts.stream_risks import stream_risks

SERVER = Slots("long answers", 400, 0.001, 0.012, 0.00001, 250, 350, 0.0, 0.0)
"""From first to last token about four seconds."""


def served(folder: Path, load_share: float, seconds: float, settle_s: float) -> None:
    made = make_run(folder, [Load("m/a", load_share * SERVER.most_rps, seconds=seconds, settle_s=settle_s)])
    path = made.folder / "requests.parquet"
    table = pq.read_table(path).sort_by("intended_ns")
    intended = np.array(table["intended_ns"])
    first_s, last_s, tokens = SERVER.answers((intended - START_NS) / 1e9, np.random.default_rng(1))
    first, last = (START_NS + (at * 1e9).astype(np.int64) for at in (first_s, last_s))
    found = {"first_ns": first, "last_ns": last, "done_ns": last, "events": tokens, "tokens_out": tokens}
    for name, values in found.items():
        column = pa.array(values).cast(arrow_type(pa, REQUEST_COLUMNS[name]))
        place = table.column_names.index(name) if name in table.column_names else None
        table = table.append_column(name, column) if place is None else table.set_column(place, name, column)
    pq.write_table(table, path)
    manifest = json.loads((made.folder / "run.json").read_text())
    for entry in manifest["endpoints"]:
        entry["streams"] = True
    (made.folder / "run.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(("share", "overloaded"), [(0.6, False), (1.4, True)])
@pytest.mark.parametrize("settle_s", [0.0, 10.0])
def test_a_queue_that_grows_is_told_from_one_that_fills(
    tmp_path: Path, share: float, overloaded: bool, settle_s: float
) -> None:
    served(tmp_path / "run", share, 40.0, settle_s)
    (step,) = load(tmp_path / "run").measured
    assert step.overloaded == overloaded


@pytest.mark.parametrize(("share", "seconds", "overloaded"), [(0.6, 12.0, False), (1.4, 40.0, True)])
def test_it_is_so_of_what_a_planned_fault_leaves(
    tmp_path: Path, share: float, seconds: float, overloaded: bool
) -> None:
    served(tmp_path / "run", share, seconds, 0.0)
    start_ns, end_ns = (START_NS + s * 10**9 for s in (10, 11))
    known = {"fault": "telemetry_cut", "target": "", "id": 0, "start_ns": start_ns, "sentence": "done"}
    append_event(tmp_path / "run", "fault", time_ns=start_ns, **known, end_ns=None, phase="begin")
    append_event(tmp_path / "run", "fault", time_ns=end_ns, **known, end_ns=end_ns, phase="end")
    (step,) = load(tmp_path / "run").calm
    assert step.overloaded == overloaded
    assert step.summary.n < step.tally.n


def test_a_step_that_is_measured_before_it_has_filled_has_a_risk(tmp_path: Path) -> None:
    served(tmp_path / "early", 0.6, 20.0, 1.0)
    served(tmp_path / "late", 0.6, 40.0, 12.0)
    early, late = (
        {kind: said for kind, _, said, _ in stream_risks(load(tmp_path / name))} for name in ("early", "late")
    )
    assert "--settle-seconds" in early["not_filled"]
    assert "not_filled" not in late
