"""Endpoints that stream against each other, run against run, over many runs, and by the minute."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from folders import Load, make_run
from streamed import written

from tailrate.analysis import load
from tailrate.analysis.exports import report_json
from tailrate.analysis.history.figure_series import lineages
from tailrate.analysis.history.run_summary import Entry
from tailrate.analysis.records.infinities import restored
from tailrate.analysis.soak.series import series
from tailrate.analysis.steps.variant_pairs import pairs
from tailrate.analysis.verdicts.changes import changes
from tailrate.analysis.verdicts.gate import Gate, judge

ROUNDS = [Load(f"m/{name}", 150, seconds=15, block=block) for block, name in product(range(3), ("eager", "compiled"))]
STEADY = [Load("m/a", 150, seconds=15, block=block) for block in range(3)]
LONG = (20, 30)


@pytest.mark.parametrize(("first", "gap"), [(1.5, 1.0), (1.0, 1.5), (1.0, 1.0)])
def test_variants_are_told_apart_by_first_token_and_by_time_per_token(tmp_path: Path, first: float, gap: float) -> None:
    written(tmp_path / "run", np.random.default_rng(1), ROUNDS, {"m/eager": (first, gap)}, LONG)
    (pair,) = pairs(load(tmp_path / "run"))
    assert (pair.a, pair.b, pair.rounds) == ("m/eager", "m/compiled", 3)
    for name, true in (("ttft", first), ("tpot", gap)):
        ratio, low, high = (getattr(pair, f"{name}_{end}") for end in ("ratio", "low", "high"))
        assert low <= true <= high
        assert low < ratio < high < 1.35 * low
    assert bool(pair.differs) == (first != 1 or gap != 1)


def test_endpoints_that_do_not_stream_have_neither(tmp_path: Path) -> None:
    make_run(tmp_path / "run", ROUNDS)
    (pair,) = pairs(load(tmp_path / "run"))
    assert (pair.ttft_ratio, pair.ttft_low, pair.tpot_ratio, pair.tpot_high) == (None,) * 4


def test_a_gate_on_first_tokens(tmp_path: Path) -> None:
    written(tmp_path / "base", np.random.default_rng(1), STEADY, lengths=LONG)
    written(tmp_path / "new", np.random.default_rng(2), STEADY, {"m/a": (1.4, 1.0)}, LONG)
    base, new = load(tmp_path / "base"), load(tmp_path / "new")
    found = {one.metric: one for one in changes(base, new)}
    assert {"ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "tokens"} <= set(found)
    assert found["ttft_p50"].differs
    assert found["ttft_p99"].low <= 1.4 <= found["ttft_p99"].high  # type: ignore[operator]
    assert found["tpot_p50"].differs is False
    assert found["tokens"].ratio == pytest.approx(1, abs=0.1)

    def verdict(gate: str) -> str:
        return judge([Gate.parse(gate)], list(found.values()), [base, new]).verdict

    assert [verdict(gate) for gate in ("ttft_p50>10%", "tpot_p50>10%", "tokens<-20%")] == ["fail", "pass", "pass"]


def test_a_history_follows_tokens_where_there_are_any(tmp_path: Path) -> None:
    for number in range(3):
        written(tmp_path / f"s{number}", np.random.default_rng(number), STEADY, lengths=LONG)
        make_run(tmp_path / f"p{number}", [Load("m/b", 150, seconds=15)])
        for name in (f"s{number}", f"p{number}"):
            report_json.write(load(tmp_path / name))
    keys = {}
    for lineage in lineages(Entry.of(folder) for folder in sorted(tmp_path.iterdir())):
        keys[lineage.endpoint] = {track.key: track.readings for track in lineage.tracks()}
    assert {"ttft", "tpot"} <= set(keys["m/a"])
    assert not {"ttft", "tpot", "joules_per_token"} & set(keys["m/b"])
    middle = load(tmp_path / "s1").steps["ttft_p99_ms"].sort_values().iloc[1]
    assert len(keys["m/a"]["ttft"]) == 3
    assert all(one is not None and 0.5 * middle < one.value < 2 * middle for one in keys["m/a"]["ttft"])


def test_by_the_minute_a_soak_knows_first_tokens_and_times_per_token(tmp_path: Path) -> None:
    rows = written(tmp_path / "run", np.random.default_rng(3), [Load("m/a", 50, seconds=120)], lengths=LONG)
    line, found = series(load(tmp_path / "run"))
    by_name = {one.name: one.values for one in found if one.subject == "m/a"}
    for cell in range(line.slices):
        begin, end = (line.zero_ns + (cell + k) * line.slice_ns for k in (0, 1))
        mine = [row for row in rows if begin <= row["intended_ns"] < end]
        ttft = [(row["first_ns"] - row["intended_ns"]) / 1e6 for row in mine]
        tpot = [
            (row["last_ns"] - row["first_ns"])
            / ((row["tokens_out"] or row["events"]) - (row["first_tokens"] or 1))
            / 1e6
            for row in mine
        ]
        for name, values in (("ttft_p99_ms", ttft), ("tpot_p99_ms", tpot)):
            if len(values) >= 100:
                near = np.quantile(values, [0.985, 0.995])
                assert 0.96 * near[0] <= by_name[name][cell] <= 1.04 * near[1]
    assert np.isfinite(by_name["ttft_p99_ms"]).sum() >= 5


def test_infinities_of_streams_come_back() -> None:
    row = {
        "n": 9, "errors": 3, "p50_ms": 4.0, "p99_ms": None, "p99_low_ms": None, "p99_high_ms": None,
        "tokens_out_rps": 5.0, "ttft_p50_ms": 3.0, "ttft_p99_ms": None, "ttft_p99_low_ms": 2.0,
        "ttft_p99_high_ms": None, "tpot_p99_ms": None, "tpot_p99_low_ms": None, "tpot_p99_high_ms": None,
    }  # fmt: skip
    infinite = {name for name, value in restored(row).items() if value == np.inf}
    assert infinite == {"p99_ms", "ttft_p99_ms", "ttft_p99_high_ms", "tpot_p99_ms"}
    assert {name for name, value in restored(row | {"tokens_out_rps": None}).items() if value == np.inf} == {
        "p99_ms", "ttft_p99_high_ms",
    }  # fmt: skip
