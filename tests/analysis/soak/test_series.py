"""Series of a run against its rows: exact percentiles, holes that are holes, and what events and samples carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import GPU, START_NS, Load, Waveform, lognormal, make_run

from tailrate import analysis
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.soak.series import Series, cells, series

S = 10**9
CHAPTERS = [Load("m/a", 20, lognormal(10.0), 300.0, settle_s=20.0 * (n == 0), at_s=300.0 * n) for n in range(4)]


def of(folder: Path) -> dict[tuple[str, str], Series]:
    return {(one.name, one.subject): one for one in series(analysis.load(folder))[1]}


@pytest.fixture
def written(tmp_path: Path) -> Any:
    return make_run(tmp_path / "run", CHAPTERS, mode="soak", poisson=True, devices=[Waveform(period_s=1.0)])


def test_percentiles_of_a_cell_are_those_of_its_rows(written: Any) -> None:
    line = cells(analysis.load(written.folder))
    assert (line.slice_s, line.slices) == (20, 60)
    rows, found = written.requests, of(written.folder)
    cell = (rows["intended_ns"] - line.zero_ns) // line.slice_ns
    latency = (rows["done_ns"] - rows["intended_ns"]).to_numpy(dtype=float) / 1e6
    for name, percent, within in (("p50_ms", 50, 0.01), ("p99_ms", 99, 0.02)):
        values = found[name, "m/a"].values
        exact = [np.quantile(latency[cell == k], percent / 100, method="higher") for k in range(60)]
        assert np.isnan(values[0])  # settle time
        off = values[1:] / np.array(exact)[1:] - 1
        assert abs(np.median(off)) < within / 2
        assert np.quantile(np.abs(off), 0.8) < within * 2


def test_a_step_of_a_tenth_is_no_coarser_than_the_bins(tmp_path: Path) -> None:
    levels = {}
    for median_ms in np.geomspace(10, 12, 5):
        folder = tmp_path / f"{median_ms:.3f}"
        for scale in (1.0, 1.1):
            load = [Load("m/a", 1000, lognormal(median_ms * scale), 60.0)]
            run = make_run(folder / str(scale), load, mode="soak")
            levels[median_ms, scale] = np.nanmedian(of(run.folder)["p99_ms", "m/a"].values)
        assert levels[median_ms, 1.1] / levels[median_ms, 1.0] == pytest.approx(1.1, abs=0.005)


def test_what_was_not_driven_is_a_hole(tmp_path: Path) -> None:
    loads = [CHAPTERS[0], Load("m/a", 20, lognormal(10.0), 300.0, at_s=600.0, failed=0.1)]
    written = make_run(tmp_path / "run", loads, mode="soak")
    append_event(written.folder, "gap", start_ns=START_NS + 700 * S, end_ns=START_NS + 760 * S, scheduled={"m/a": 1200})
    found = of(written.folder)
    rate, errors = found["achieved_rps", "m/a"].values, found["error_share", "m/a"].values
    assert np.isnan(rate[15:30]).all()
    assert np.isnan(rate[35:38]).all()
    assert np.isfinite(rate[30:35]).all()
    assert np.isnan(found["p99_ms", "m/a"].values[30:]).all()  # a tenth failed, so it is infinite
    assert np.nanmean(errors[30:]) == pytest.approx(0.1, abs=0.03)
    assert np.nanmedian(rate[1:15]) == pytest.approx(20, abs=0.5)


def test_minutes_stand_for_rows_that_were_retired(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [CHAPTERS[0], Load("m/a", 20, seconds=300.0, at_s=3600.0)], mode="soak")
    for minute in range(10, 20):
        start = START_NS + minute * 60 * S
        append_event(
            written.folder, "minute", endpoint="m/a", start_ns=start, end_ns=start + 60 * S, n=1200, ok=1194,
            statuses={"200": 1194, "503": 6}, p50_ms=11.0, p99_ms=31.0 if minute < 15 else None,
        )  # fmt: skip
    found = of(written.folder)
    p99 = found["p99_ms", "m/a"].values
    assert (p99[10:15] == 31.0).all()
    assert np.isnan(p99[15:20]).all()
    assert found["p50_ms", "m/a"].values[12] == 11.0
    assert found["error_share", "m/a"].values[12] == pytest.approx(0.005)
    assert found["achieved_rps", "m/a"].values[12] == pytest.approx(19.9)


def test_samples_and_events_by_cell(written: Any) -> None:
    for second in range(0, 1200, 10):
        more = {"rss_bytes": 10**8 + second, "cpu_pct": 7.0, "open_files": 30, "pid": 1}
        append_event(written.folder, "process", time_ns=START_NS + second * S, role="load 0", **more)
        append_event(written.folder, "server", time_ns=START_NS + second * S, endpoint="m/a", recompiles=second // 600)
    found = of(written.folder)
    rss, recompiles = found["rss_bytes", "load 0"], found["recompiles", "m/a"]
    assert (rss.of, recompiles.of) == ("process", "server")
    assert rss.values[:3].tolist() == [10**8, 10**8 + 20, 10**8 + 40]  # the least of each cell
    assert recompiles.values[[0, 29, 30]].tolist() == [0, 0, 1]
    power, held, memory = (found[name, GPU].values for name in ("power_w", "throttled_pct", "memory_bytes"))
    assert power == pytest.approx(200, abs=5)  # two whole waves to a cell
    assert held == pytest.approx(25, abs=1)
    assert (np.diff(memory) == 20).all()
    assert ("host_memory_bytes", GPU) not in found
