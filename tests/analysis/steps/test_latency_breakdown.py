from pathlib import Path

import numpy as np
import pytest
from folders import Load, lognormal, make_run, rewrite

from tailrate import analysis
from tailrate.analysis.counting.order_statistics import PERCENTS
from tailrate.analysis.steps.latency_breakdown import LEAST, STAGES, Breakdown, breakdown


def _rows(folder: Path, loads: list[Load], handled: bool = True) -> list[Breakdown]:
    written = make_run(folder, loads)
    rows = written.requests
    if handled:  # folders' server has 95 % of the service time
        service_ms = (rows["done_ns"] - rows["sent_ns"]).astype("float64") / 1e6
        rewrite(folder, rows.assign(handled_ms=(0.97 * service_ms).where(rows["status"] == "200")))
    return breakdown(analysis.load(folder).measured)


def test_a_row_adds_up_to_the_latency_of_its_percentile(tmp_path: Path) -> None:
    rows = _rows(tmp_path / "run", [Load("m/a", 500, lognormal(20, 0.5), seconds=20, late_ms=0.4, failed=0.0005)])
    assert [row.percentile for row in rows] == list(PERCENTS)
    (step,) = analysis.load(tmp_path / "run").measured
    for row in rows[:4]:
        parts = [part for name in STAGES if (part := getattr(row, name)) is not None]  # it writes no text
        assert sum(parts) == pytest.approx(row.latency_ms)
        assert row.latency_ms == pytest.approx(step.order.latency_ms[row.percentile], rel=0.05)
        assert row.n >= LEAST
        service = row.latency_ms - 0.4
        assert row.client_ms == pytest.approx(0.4)
        assert row.network_ms == pytest.approx(0.03 * service)
        assert row.ingress_ms == pytest.approx(0.02 * service)
        assert row.compute_ms == pytest.approx(0.25 * service)


def test_a_row_is_of_the_request_that_the_percentile_is_of(tmp_path: Path) -> None:
    """41,000 × 99.9 % is a whole number, and in floating point a little more than one."""
    load = Load("m/a", 4100.1, lambda rng, at_s: np.where(np.arange(len(at_s)) <= 40_959, 10.0, 20.0))
    row = _rows(tmp_path / "run", [load])[-1]
    (step,) = analysis.load(tmp_path / "run").measured
    assert step.tally.n == 41_001
    assert row.latency_ms == pytest.approx(step.order.latency_ms[99.9]) == pytest.approx(10.0)


def test_slow_requests_are_averaged_and_not_all(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 500, lognormal(20, 0.1), seconds=20)])
    rows = written.requests
    # two in a hundred wait in the queue for as long again
    slow = np.arange(len(rows)) % 50 == 7
    wait_ns = 40_000_000 * slow
    changed = rows.assign(done_ns=rows["done_ns"] + wait_ns, queue_ms=rows["queue_ms"] + wait_ns / 1e6)
    rewrite(written.folder, changed)
    found = {row.percentile: row for row in breakdown(analysis.load(written.folder).measured)}
    assert found[50].queue_ms == pytest.approx(10, rel=0.1)
    assert found[99].queue_ms == pytest.approx(50, rel=0.1)
    assert found[99].compute_ms == pytest.approx(5, rel=0.1)


def test_what_grew_since_the_next_lower_rate(tmp_path: Path) -> None:
    loads = [Load("m/a", rate, lognormal(ms, 0.2)) for rate, ms in ((100, 10), (300, 30), (200, 10))]
    found = {(row.index, row.percentile): row for row in _rows(tmp_path / "run", loads)}
    assert found[0, 50].grew is None  # the lowest
    assert found[2, 50].grew is None  # as fast as at 100/s
    assert found[1, 50].grew == "queue"
    assert found[1, 50].grew_by_ms == pytest.approx(10, rel=0.15)  # half of 20 ms, against 200/s


def test_what_the_server_does_not_tell_is_empty(tmp_path: Path) -> None:
    row = _rows(tmp_path / "run", [Load("m/a", 100)], handled=False)[0]
    assert row.ingress_ms is None
    assert row.network_ms == pytest.approx(0.05 * (row.latency_ms - 0.1))  # all outside of the stages
    foreign = breakdown(analysis.load(make_run(tmp_path / "foreign", [Load("m/a", 100)], foreign=True).folder).measured)
    assert (foreign[0].network_ms, foreign[0].queue_ms, foreign[0].client_ms) == (None, None, pytest.approx(0.1))


def test_percentiles_that_the_sample_does_not_carry_are_left_out(tmp_path: Path) -> None:
    assert [row.percentile for row in _rows(tmp_path / "few", [Load("m/a", 5)])] == [50, 90, 95]
    failing = _rows(tmp_path / "failing", [Load("m/a", 100, failed=0.03)])
    assert [row.percentile for row in failing] == [50, 90, 95]  # P99 is infinite
    assert _rows(tmp_path / "none", [Load("m/a", 100, failed=1)]) == []
