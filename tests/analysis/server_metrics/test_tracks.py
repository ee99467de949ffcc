"""The servers' metrics against a made-up server that counts exactly what the rows say."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from counting_server import Server, tell
from folders import START_NS, Load, Written, answered, constant, make_run, queue
from hypothesis import assume, given
from hypothesis import strategies as st

from tailrate import analysis
from tailrate.analysis.exports import report_json
from tailrate.analysis.records.folder import sealed_path
from tailrate.analysis.run.recorded_run import seal
from tailrate.analysis.server_metrics.tracks import increases
from tailrate.analysis.verdicts.run import Run

SUCCESS = "nv_inference_request_success"
TWO = [Load("m/eager", 40, seconds=12, settle_s=2), Load("m/compiled", 80, seconds=12, settle_s=2)]


def run_of(folder: Path, loads: list[Load], *servers: Server, **more: Any) -> tuple[Run, Written]:
    written = make_run(folder, loads, poisson=True, **more)
    tell(written, *servers)
    return analysis.load(folder), written


def rows_of(run: Run, metric: str) -> pd.DataFrame:
    found = run.step_metrics
    return found[found["metric"] == metric]


# ---- counters


def test_a_counters_delta_is_the_number_of_rows_answered_in_the_window(tmp_path: Path) -> None:
    run, written = run_of(tmp_path / "run", [*TWO, Load("m/eager", 30, seconds=12, failed=0.3)])
    found = rows_of(run, SUCCESS)
    assert len(found) == 3
    for row, step in zip(found.itertuples(index=False), run.measured, strict=True):
        assert (row.index, row.endpoint) == (step.summary.index, step.summary.endpoint)
        mine = written.requests[written.requests["endpoint"] == row.endpoint]
        start_s, end_s = ((ns - START_NS) / 1e9 for ns in (step.start_ns, step.end_ns))
        assert row.delta == answered(mine, start_s, end_s)
        assert row.rate == row.delta / (end_s - start_s)
    failed = rows_of(run, "nv_inference_request_failure")["delta"].tolist()
    rows = written.of(2)
    done_s = (rows["done_ns"].astype("int64") - START_NS) / 1e9
    assert failed[:2] == [0, 0]
    assert failed[2] == ((rows["status"] != "200") & (done_s >= 24) & (done_s < 36)).sum()


def test_a_server_that_starts_again_in_the_middle_loses_nothing_but_what_nobody_saw(tmp_path: Path) -> None:
    run, written = run_of(tmp_path / "run", TWO, Server(starts_s=(7.0001,)))
    (first, second) = rows_of(run, SUCCESS)["delta"]
    mine = [written.requests[written.requests["endpoint"] == name] for name in ("m/eager", "m/compiled")]
    assert first == answered(mine[0], 2, 12)  # a look came a moment before
    assert second == answered(mine[1], 14, 24)
    between, _ = run_of(tmp_path / "between", TWO, Server(starts_s=(6.5,)))
    lost = answered(written.requests, 6, 6.5)
    assert rows_of(between, SUCCESS)["delta"].tolist()[0] == first - lost
    assert {track.resets for track in between.metric_tracks if track.name == SUCCESS} == {1}


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_an_increase_is_what_was_counted_between_looks(steps: list[tuple[int, bool, bool]]) -> None:
    """Each look: (counted since the one before, started again since then, seen): the oracle never subtracts."""
    value, known, truth = Fraction(0), Fraction(0), Fraction(0)
    at, values, expected, anew = [], [], [], 0
    unseen = Fraction(0)
    for look, (more, again, seen) in enumerate(steps):
        if again and look:
            value = unseen = Fraction(0)
        value, unseen = value + more, unseen + more
        if seen or look in (0, len(steps) - 1):
            if at and value < known:
                anew += 1
                truth += value
            elif at:
                # who starts again and counts beyond what was seen last cannot be told from one who went on
                assume(value - known == unseen)
                truth += unseen
            at.append(look)
            values.append(float(value))
            known, unseen = value, Fraction(0)
        expected.append(float(truth))
    found, resets = increases(len(steps), np.array(at), np.array(values))
    assert found.tolist() == expected
    assert resets == anew


def test_a_series_that_comes_later_counts_from_zero() -> None:
    found, resets = increases(4, np.array([2, 3]), np.array([5.0, 7.0]))
    assert found.tolist() == [0, 0, 5, 7]
    assert resets == 0


def test_a_window_whose_ends_nobody_saw_has_no_increase(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path / "run", TWO, Server(first_s=8.0))
    assert math.isnan(rows_of(run, SUCCESS)["delta"].iloc[0])
    assert not math.isnan(rows_of(run, SUCCESS)["delta"].iloc[1])


def test_looks_that_failed_leave_the_count_whole(tmp_path: Path) -> None:
    whole, _ = run_of(tmp_path / "whole", TWO)
    holed, _ = run_of(tmp_path / "holed", TWO, Server(away_s=(5.0, 8.0)))
    assert rows_of(whole, SUCCESS)["delta"].tolist() == rows_of(holed, SUCCESS)["delta"].tolist()
    assert rows_of(whole, SUCCESS)["looks"].tolist() == [10, 10]
    assert rows_of(holed, SUCCESS)["looks"].tolist() == [7, 10]


# ---- whose a series is


def test_labels_say_whose_a_series_is_and_without_them_it_is_the_servers(tmp_path: Path) -> None:
    both = [Load("m/eager", 40, at_s=0, seconds=10), Load("m/compiled", 80, at_s=0, seconds=10)]
    run, written = run_of(tmp_path / "run", both, mode="mixed")
    deltas = rows_of(run, SUCCESS).set_index("endpoint")["delta"]
    for name in ("m/eager", "m/compiled"):
        assert deltas[name] == answered(written.requests[written.requests["endpoint"] == name], 0, 10)
    whole, _ = run_of(tmp_path / "whole", both, Server(labelled=False), mode="mixed")
    assert rows_of(whole, SUCCESS)["delta"].tolist() == 2 * [answered(written.requests, 0, 10)]


def test_a_page_of_one_endpoint_says_nothing_of_another(tmp_path: Path) -> None:
    pages = (Server("a:1", "m/eager", labelled=False), Server("b:1", "m/compiled", labelled=False))
    run, written = run_of(tmp_path / "run", TWO, *pages)
    found = rows_of(run, SUCCESS)
    assert found[["endpoint", "source"]].to_numpy().tolist() == [["m/eager", "a:1"], ["m/compiled", "b:1"]]
    assert found["delta"].tolist() == [answered(written.requests, 2, 12), answered(written.requests, 14, 24)]


def test_a_page_of_one_endpoint_says_nothing_of_another_that_its_labels_name(tmp_path: Path) -> None:
    run, written = run_of(tmp_path / "run", TWO)
    run.manifest.extra["metrics"][0]["endpoint"] = "m/eager"
    found = rows_of(run, SUCCESS)
    assert found["endpoint"].tolist() == ["m/eager"]
    assert found["delta"].tolist() == [answered(written.requests, 2, 12)]


# ---- gauges and quotients


def test_a_gauge_has_its_mean_and_highest_over_the_looks(tmp_path: Path) -> None:
    run, written = run_of(tmp_path / "run", [Load("m/a", 100, queue(20), seconds=10)])
    (row,) = rows_of(run, "nv_inference_pending_request_count").itertuples()
    sent, done = (written.requests[f"{name}_ns"].to_numpy(dtype=np.int64) for name in ("sent", "done"))
    looks = START_NS + np.arange(10) * 10**9
    under_way = [((sent < at) & (done >= at)).sum() for at in looks]
    assert (row.mean, row.highest) == (np.mean(under_way), max(under_way))
    assert row.highest > 400


def test_a_quotient_is_of_what_was_counted_in_the_window(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path / "run", TWO)
    batch = rows_of(run, "nv_inference_count")
    assert batch["mean"].tolist() == [4, 4]
    assert batch["delta"].tolist() == rows_of(run, SUCCESS)["delta"].tolist()


# ---- the folder


def test_a_run_without_metrics_has_none_and_no_file_for_them(tmp_path: Path) -> None:
    make_run(tmp_path / "run", [Load("m/a", 50, constant(5))], sealed=False)
    seal(tmp_path / "run")
    run = analysis.load(tmp_path / "run")
    assert not sealed_path(run.folder, "metrics").exists()
    assert (len(run.metrics), run.metric_tracks, len(run.step_metrics)) == (0, [], 0)
    assert report_json.report_of(run)["metrics"] == []
