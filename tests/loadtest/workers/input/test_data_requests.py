"""Requests made before they are due: what is held, what was made once, and what the planned run is told."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from tailrate.analysis.records.objective import Slo
from tailrate.loadtest.engine.modes.closed import Closed
from tailrate.loadtest.engine.modes.hold import Hold
from tailrate.loadtest.engine.modes.knee import KneeSearch
from tailrate.loadtest.engine.modes.soak import Soak
from tailrate.loadtest.engine.scenario.arrivals import Pattern
from tailrate.loadtest.engine.scenario.scenario import DataPlan, Scenario, ScenarioError
from tailrate.loadtest.engine.scenario.steps import LoadStep
from tailrate.loadtest.engine.workers.input import foretold, requests
from tailrate.loadtest.engine.workers.input.deal import Deal
from tailrate.loadtest.engine.workers.input.inputs import open_data
from tailrate.loadtest.engine.workers.input.requests import DataRequests


class Encoded:
    """Bodies of 1000 bytes that begin with the row's number, and how many were made."""

    def __init__(self):
        self.made = []

    def __call__(self, inputs):
        self.made.append(int(inputs["x"][0, 0]))
        return (b"%08d" % self.made[-1]).ljust(1000), {"row": str(self.made[-1])}


def made(tmp_path, rows=100, *, drawn=False, unique=False, sizes=(1,), from_row=None):
    path = tmp_path / "rows.csv"
    path.write_text("x,kind\n" + "".join(f"{row},{'long' if row % 5 == 0 else 'short'}\n" for row in range(rows)))
    data = open_data(DataPlan(path, label="kind"), {"x": "int64"}, from_row)
    return DataRequests(data, Deal(rows, drawn, unique, 1, sizes), Encoded())


def test_a_request_says_what_it_carries(tmp_path):
    one = made(tmp_path, drawn=True)
    one.prepare({7: (30, range(1, 20, 2))})
    for seq in range(20):  # its own share, and what nobody had foreseen
        (row,) = one.deal.of(30 + seq)
        found = one.of(7, seq)
        assert (int(found.body[:8]), found.headers["row"], found.data_row) == (row, str(row), row)
        assert found.label == ("long" if row % 5 == 0 else "short")


def test_what_was_made_is_not_made_again_while_all_is_small(tmp_path):
    one = made(tmp_path)
    for block in range(5):
        one.prepare({block: (0, range(100))})
    assert sorted(one._encode.made) == list(range(100))
    one.of(4, 50)
    assert len(one._encode.made) == 100


def test_of_more_only_what_the_block_needs_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "KEPT_BYTES", 20_000)
    one = made(tmp_path)
    one.prepare({0: (0, range(50))})
    one.prepare({1: (40, range(30))})
    assert {row for (row,) in one._made} == set(range(40, 70))
    assert one._bytes == 30_000
    assert len(one._encode.made) == 70


def test_beyond_what_may_be_held_a_request_is_made_as_it_is_sent(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "AHEAD_BYTES", 10_000)
    one = made(tmp_path)
    one.prepare({0: (0, range(100))})
    assert one._bytes <= 11_000
    assert len(one._encode.made) == 11
    assert [one.of(0, seq).data_row for seq in range(100)] == list(range(100))
    assert sorted(one._encode.made) == list(range(100))
    assert one._bytes <= 11_000


def test_a_step_of_hours_takes_no_more_memory_than_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "MOST_AT_HAND", 150)
    one, asked = made(tmp_path), range(0, 10**9, 2)
    one.prepare({0: (3, asked[:400]), 1: (0, range(10**9))})
    assert len(one._ready) == 150
    assert len(one._made) == 100
    for step, first, seq in ((0, 3, 700), (0, 3, 20), (1, 0, 123_456_789)):
        assert one.of(step, seq).data_row == (first + seq) % 100
    assert len(one._encode.made) == 100


HOLD = Scenario("it", "m", (), Hold(), rates=(10.0,), step_seconds=10.0, pattern=Pattern("constant"))


def test_too_few_rows_are_said_before_the_load_with_both_numbers(tmp_path):
    enough = made(tmp_path, 200, unique=True)
    assert foretold.sentences(HOLD, ["m/a", "m/b"], enough) == []
    (said,) = foretold.sentences(HOLD, ["m/a", "m/b"], made(tmp_path, 80))
    assert said.endswith("rows.csv has 80 rows, and the run has 200 arrivals: each row is sent about 2.5 times")
    with pytest.raises(ScenarioError, match=r"rows.csv has 199 rows, and the run needs 200 for its 200 arrivals"):
        foretold.sentences(HOLD, ["m/a", "m/b"], made(tmp_path, 199, unique=True))
    with pytest.raises(ScenarioError, match=r"has 300 rows, and the run needs 400 for its 200 arrivals"):
        foretold.sentences(HOLD, ["m/a", "m/b"], made(tmp_path, 300, unique=True, sizes=(2,)))


def test_of_modes_that_nobody_knows_the_length_of(tmp_path):
    for mode in (KneeSearch(), Closed((2,))):
        assert foretold.sentences(replace(HOLD, mode=mode), ["m/a"], made(tmp_path)) == []
        (said,) = foretold.sentences(replace(HOLD, mode=mode), ["m/a"], made(tmp_path, unique=True))
        assert "the run ends when the rows are used up" in said
    soak = replace(HOLD, mode=Soak(total_seconds=3600.0))
    with pytest.raises(ScenarioError, match="the run needs 36,000"):
        foretold.sentences(soak, ["m/a"], made(tmp_path, unique=True))


def test_more_than_is_made_ready_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(foretold, "AHEAD_BYTES", 50_000)
    one = made(tmp_path, 1000)
    one.request(0)
    (said,) = foretold.sentences(HOLD, ["m/a"], one)
    assert said.startswith("the requests of 10 s at 10/s are 97.7 KiB, of which each load process makes 48.8 KiB ready")


def test_every_row_is_tried_before_the_load_where_the_scenario_makes_it(tmp_path):
    def from_row(row):
        if row["x"] == 77:
            raise ValueError("it is unlucky")
        return {"x": np.array([[row["x"]]])}

    with pytest.raises(ScenarioError, match="row 77 cannot be made into inputs: ValueError: it is unlucky"):
        foretold.check(HOLD, made(tmp_path, from_row=from_row))


def test_an_objective_of_a_slice_that_no_row_is_in(tmp_path):
    for name, hint in (("lnog", r"did you mean \[long\]"), ("zzz", "there are long, short")):
        scenario = replace(HOLD, slos=(Slo.parse(f"[{name}] p99<50ms"),))
        with pytest.raises(ScenarioError, match=f"no row of .*rows.csv is labelled '{name}'; {hint}"):
            foretold.check(scenario, made(tmp_path))
    foretold.check(replace(HOLD, slos=(Slo.parse("[long] p99<50ms"),)), made(tmp_path))


def test_a_soak_that_goes_on_carries_rows_that_it_cannot_have_sent():
    soak = replace(HOLD, mode=Soak(chapter_seconds=10.0), pattern=Pattern())
    whole = LoadStep(3, "m/a", 20.0, 10.0, 0.0, 1, 7, data_from=500)
    steps = [asdict(replace(whole, data_from=300)), asdict(replace(whole, seconds=4.2)) | {"start_ns": 1, "cut": True}]
    assert foretold.carried(soak, steps) == 500 + whole.arrivals(soak.pattern)
    assert foretold.carried(soak, []) == 0
