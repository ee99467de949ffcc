"""The one pass over the rows against the plain arithmetic of pandas, part by part and whole."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from folders import GPU, START_NS, Load, Waveform, Written, lognormal, make_run, queue, rewrite

from tailrate import analysis
from tailrate.analysis.counting import counts as row_counts
from tailrate.analysis.counting.order_statistics import Select
from tailrate.analysis.records.folder import DEVICES, REQUESTS, sealed_path
from tailrate.analysis.run import device_tracks
from tailrate.analysis.run.bins import BINS, FAILED, PARTS
from tailrate.analysis.run.recorded_run import seal
from tailrate.analysis.run.tables import PART_ROWS
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.run.window import read
from tailrate.analysis.steps.curves import EDGES_MS, batches, curves, in_bins, percentiles
from tailrate.analysis.verdicts.run import Run

LOADS = [
    Load("m/a", 300, lognormal(20), seconds=12, settle_s=2, failed=0.02, dropped=0.01, timed_out=0.01),
    Load("m/b", 200, queue(4.6), seconds=12, settle_s=3.5),
    Load("m/a", 400, lognormal(30), seconds=9, at_s=24),
    Load("m/b", 100, lognormal(15), seconds=9, at_s=24, device="GPU-2"),
]
WAVES = [Waveform(GPU), Waveform("GPU-2", period_s=0.25, util_pct=20)]


def _run(folder: Path, group_rows: int | None = None) -> tuple[Run, Written]:
    written = make_run(folder, LOADS, devices=WAVES, poisson=True, slo=["p99<50ms"], error_ns=3_000_000)
    rows = written.requests
    rows["batch_rows"] = pd.Series(np.arange(len(rows)) % 7 + 1, dtype="Int64").where(rows["status"] == "200")
    rows["handled_ms"] = rows["server_ms"] * 1.01
    # as the recorder leaves them: in the order in which they ended, steps that ran at once interleaved
    rows = rows.assign(key=rows["done_ns"].fillna(rows["intended_ns"])).sort_values("key").drop(columns="key")
    rewrite(folder, rows)
    if group_rows:
        path = sealed_path(folder, REQUESTS)
        pq.write_table(pq.read_table(path), path, row_group_size=group_rows)
    return analysis.load(folder), written


def _window(run: Run, step: int, endpoint: str) -> pd.DataFrame:
    plan = run.manifest.scenario["steps"][step]
    rows = run.requests(step=step)
    begin = plan["start_ns"] + int(plan["settle_s"] * 1e9)
    return rows[
        (rows["endpoint"] == endpoint) & (rows["intended_ns"] >= begin) & (rows["intended_ns"] < plan["end_ns"])
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return _run(tmp_path_factory.mktemp("whole") / "run")[0]


@pytest.mark.parametrize("step", range(4))
def test_a_step_is_what_pandas_says(run: Run, step: int) -> None:
    measured = run.measured[step]
    rows = _window(run, step, measured.summary.endpoint)
    row, found = measured.summary, measured.tally
    latency = np.where(rows["ok"], rows["latency_ms"], np.inf)
    good = rows[rows["ok"]]
    seconds = measured.tally.grid.seconds
    assert (row.n, row.ok, row.errors) == (len(rows), len(good), len(rows) - len(good))
    assert row.dropped == (rows["status"] == "dropped").sum()
    for percent, value in ((50, row.p50_ms), (90, row.p90_ms), (95, row.p95_ms), (99, row.p99_ms)):
        assert value == np.quantile(latency, percent / 100, method="higher")
    assert measured.order.latency_ms[99.9] == np.quantile(latency, 0.999, method="higher")
    assert row.ok_p99_ms == np.quantile(good["latency_ms"], 0.99, method="higher")
    service = np.where(rows["ok"], rows["service_ms"], np.inf)
    assert row.service_p99_ms == np.quantile(service, 0.99, method="higher")
    assert row.late_p99_ms == np.quantile(rows["late_ms"].dropna(), 0.99, method="higher")
    everything = run.requests()
    mine = everything[everything["ok"] & (everything["endpoint"] == row.endpoint)]["done_ns"].astype("int64")
    done = ((mine >= measured.start_ns) & (mine < measured.end_ns)).sum()
    assert row.achieved_rps == pytest.approx(done / seconds)
    assert row.goodput_rps == pytest.approx((latency <= 50).sum() / seconds)
    assert row.mean_ms == pytest.approx(good["latency_ms"].mean())
    for name in PARTS:
        mean = float(good[name].astype("float64").mean())
        assert found.mean(name) == (None if np.isnan(mean) else pytest.approx(mean)), name
    assert found.statuses == run.requests(step=step)["status"].astype(str).value_counts().to_dict()


@pytest.mark.parametrize("step", range(4))
def test_the_slices_are_what_pandas_says(run: Run, step: int) -> None:
    found = run.measured[step].tally
    rows = run.requests(step=step)
    edges = found.grid.first_ns + np.arange(len(found.arrived) + 1) * found.grid.slice_ns
    counted, _ = np.histogram(rows["intended_ns"], edges)
    assert found.arrived.tolist() == counted.tolist()
    sums, _ = np.histogram(rows.loc[rows["ok"], "intended_ns"], edges, weights=rows.loc[rows["ok"], "latency_ms"])
    assert np.allclose(np.nan_to_num(found.latency_ms * found.answered), sums)
    # the mean number under way, by asking at many instants
    sent = rows["sent_ns"].dropna().to_numpy(np.int64)
    done = rows["done_ns"].dropna().to_numpy(np.int64)
    for k in (0, 57, len(edges) - 2):
        at = np.linspace(edges[k], edges[k + 1], 4001)
        under_way = np.searchsorted(np.sort(sent), at, side="right") - np.searchsorted(np.sort(done), at, side="right")
        assert found.in_flight()[k] == pytest.approx(np.trapezoid(under_way, at) / (edges[k + 1] - edges[k]), abs=0.02)


@pytest.mark.parametrize("step", range(4))
def test_the_time_line_and_the_batches_are_what_pandas_says(run: Run, step: int) -> None:
    found, line = run.measured[step].tally, Timeline.of(run)
    rows = run.requests(step=step)
    edges = line.zero_ns + (found.first + np.arange(len(found.by_time) + 1)) * line.slice_ns
    ok = rows["ok"].to_numpy()
    good = rows[ok]
    wanted, _, _ = np.histogram2d(good["intended_ns"], good["latency_ms"], [edges.astype(float), EDGES_MS])
    assert (found.by_time[:, :BINS] == wanted).all()
    failed, _ = np.histogram(rows["intended_ns"][~ok], edges)
    assert found.by_time[:, BINS].tolist() == failed.tolist()
    all_edges = line.zero_ns + np.arange(line.slices + 1) * line.slice_ns
    all_edges[-1] = 2**62  # what comes after the end belongs to the last slice
    answered, _ = np.histogram(good["done_ns"].astype("int64"), all_edges)
    assert found.answered_by_time.tolist() == answered.tolist()
    inside = _window(run, step, run.measured[step].summary.endpoint).query("ok")
    each = inside.groupby("batch_rows")["compute_ms"].agg(["size", "mean"])
    mine = batches([run.measured[step]])
    assert [row.batch_rows for row in mine] == list(range(1, 8))
    assert [row.requests for row in mine] == each["size"].tolist()
    assert [row.compute_ms for row in mine] == pytest.approx(each["mean"].tolist())
    assert [row.rows_per_second for row in mine] == pytest.approx((1000 * each.index / each["mean"]).tolist())


@pytest.mark.parametrize("step", range(4))
def test_a_curve_is_the_order_statistics_to_one_per_cent(run: Run, step: int) -> None:
    measured = run.measured[step]
    rows = _window(run, step, measured.summary.endpoint)
    (curve,) = curves([measured])
    latency = np.where(rows["ok"], rows["latency_ms"], np.inf)
    exact = [np.quantile(latency, p / 100, method="higher") for p in curve.percentile]
    assert (np.diff(curve.percentile) > 0).all()
    assert (np.diff(np.nan_to_num(curve.latency_ms, posinf=1e9)) >= 0).all()
    assert {50.0, 90.0, 95.0, 99.0} <= set(curve.percentile)
    finite = np.isfinite(exact)
    assert np.isfinite(curve.latency_ms)[finite].all()
    busy = finite & (np.array(curve.percentile) > 10) & (np.array(curve.percentile) < 95)
    assert np.array(curve.latency_ms)[busy] == pytest.approx(np.array(exact)[busy], rel=0.015)
    assert dict(zip(curve.percentile, curve.latency_ms, strict=True))[99.0] == measured.summary.p99_ms
    assert len(rows) * (1 - curve.percentile[-1] / 100) >= 2.99


def test_a_curve_of_a_lognormal_is_the_lognormal() -> None:
    rng = np.random.default_rng(2)
    values = rng.lognormal(3, 0.5, 400_000)
    counts, _ = np.histogram(values, EDGES_MS)
    for p in percentiles(len(values)):
        if 0 < p < 99.99:
            truth = np.quantile(values, p / 100)
            assert in_bins(counts.astype(float), p / 100 * len(values)) == pytest.approx(truth, rel=0.01), p


@pytest.mark.parametrize("step", range(4))
def test_the_state_that_requests_saw_is_that_of_the_joined_rows(run: Run, step: int) -> None:
    measured = run.measured[step]
    inside = _window(run, step, measured.summary.endpoint)
    rows = run.joined(step).loc[inside.index]
    for name, value in (("util_pct", measured.summary.seen_util_pct), ("power_w", measured.summary.seen_power_w)):
        assert value == pytest.approx(rows[name].dropna().astype("float64").mean())
    bits = rows["throttle_bits"].dropna().astype("int64")
    assert measured.summary.seen_throttled_pct == pytest.approx(100 * (bits & 0x4 != 0).mean())


def test_the_join_counts_are_those_of_the_joined_rows(run: Run) -> None:
    joined = run.joined()
    assert run.tallies.with_device == joined["device"].notna().sum()
    assert run.tallies.joined == joined["sample_ns"].notna().sum()
    doubtful = 0
    for device in run.tracks.values():
        times, mine = device.time_ns, joined[(joined["device"] == device.device) & joined["sample_ns"].notna()]
        at = ((mine["sent_ns"] + mine["done_ns"]) // 2).to_numpy(np.int64)
        halfway = (times[1:] + times[:-1]) / 2
        doubtful += int((np.abs(at[:, None] - halfway[None, :]).min(axis=1) < device.error_ns).sum())
    assert run.tallies.near_boundary == pytest.approx(doubtful, abs=2)  # a nanosecond at either end


def test_settle_time_ends_at_the_nearest_nanosecond_whoever_reads_the_rows(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 100, settle_s=2.01)])
    written.requests.loc[201, "intended_ns"] = START_NS + 2_009_999_999
    rewrite(written.folder, written.requests)
    run = analysis.load(written.folder)
    (plan,), span = run.manifest.scenario["steps"], (START_NS, START_NS + 10 * 10**9)
    assert run.measured[0].summary.n == len(read(run.tables[REQUESTS], "m/a", [plan], span)) == 798


@pytest.mark.parametrize("group_rows", [97, 1000])
def test_parts_add_up_whatever_their_size(run: Run, tmp_path: Path, group_rows: int) -> None:
    other, _ = _run(tmp_path / "run", group_rows)
    assert len(other.tables[REQUESTS].parts) > 10
    pd.testing.assert_frame_equal(other.steps, run.steps)
    assert other.tallies.doubled == 0
    assert (other.tallies.joined, other.tallies.near_boundary) == (run.tallies.joined, run.tallies.near_boundary)


def test_what_is_not_kept_is_found_by_more_passes(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_counts, "MOST_KEPT", 50)
    other, _ = _run(tmp_path / "run", 500)
    assert not any(step.tally.kept for step in other.measured)
    for one, two in zip(other.measured, run.measured, strict=True):
        for name in ("latency_ms", "ok_ms", "service_ms", "service_all_ms", "late_ms", "late_whole_ms", "late"):
            assert getattr(one.order, name) == getattr(two.order, name), name
        assert one.order.sketch.n == two.order.sketch.n
    # what is worked out from a coarser sketch is nearly the same
    rough = ["n_eff", "p99_low_ms", "p99_high_ms"]
    pd.testing.assert_frame_equal(other.steps.drop(columns=rough), run.steps.drop(columns=rough))
    for name in rough:
        assert np.allclose(other.steps[name], run.steps[name], rtol=0.15, equal_nan=True), name


def test_order_statistics_by_passes_are_exact() -> None:
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.lognormal(17, 1.5, 30_000), np.full(9_000, 5_000_000), np.zeros(20), [FAILED] * 300])
    values = rng.permutation(values.astype(np.int64))
    found = Select()
    for part in np.array_split(values, 7):
        found.count(part)
    wanted = [0, 10, 500, 20_000, 25_000, 38_900, len(values) - 1]
    found.want(wanted)
    for part in np.array_split(values, 5):
        found.look(part)
    assert [found.at(place) for place in wanted] == np.sort(values)[wanted].tolist()


def test_a_number_given_twice_is_counted(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 100), Load("m/b", 100)])
    rows = written.requests
    for seq in (rows["seq"].where(rows["seq"] % 100 != 3, 4), rows["seq"].where(rows["seq"] % 100 != 3, -(10**15))):
        rewrite(tmp_path / "run", rows.assign(seq=seq))
        doubled = rows.assign(seq=seq).duplicated(["step", "seq"]).sum()
        assert analysis.load(tmp_path / "run").tallies.doubled == doubled > 0


def test_steps_may_be_numbered_as_one_likes(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 100), Load("m/b", 50)])
    for step, index in zip(written.manifest.scenario["steps"], (2_000_000_000, -7), strict=True):
        step["index"] = index
    written.manifest.write(written.folder)
    rewrite(written.folder, written.requests.assign(step=written.requests["step"].map({0: 2_000_000_000, 1: -7})))
    assert analysis.load(written.folder).steps[["index", "n"]].values.tolist() == [[2_000_000_000, 1000], [-7, 500]]


def test_sealing_writes_row_groups_of_full_size_from_segments_of_any(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 3000, seconds=100)], sealed=False)
    stored = analysis.load(written.folder).tables[REQUESTS]
    assert [part.rows >= PART_ROWS for part in stored.parts] == [True, False]
    seal(written.folder)
    meta = pq.read_metadata(sealed_path(written.folder, REQUESTS))
    assert [meta.row_group(k).num_rows for k in range(meta.num_row_groups)] == [PART_ROWS, 300_000 - PART_ROWS]
    rows = analysis.load(written.folder).requests(columns=["seq", "done_ns"])
    assert sorted(rows["seq"]) == list(range(300_000))
    assert rows.set_index("seq")["done_ns"].sort_index().tolist() == written.requests["done_ns"].tolist()


def test_columns_and_steps_on_demand(run: Run) -> None:
    assert list(run.requests(columns=["latency_ms", "step"]).columns) == ["latency_ms", "step"]
    assert run.requests(step=1)["step"].unique().tolist() == [1]
    assert set(run.requests(step=[0, 2], columns=["step"])["step"]) == {0, 2}
    assert list(run.joined(step=0, columns=["ok"]).columns) == [
        "ok",
        *device_tracks.STATE,
        "sample_ns",
    ]
    with pytest.raises(KeyError, match="requests have no column 'latency'"):
        run.requests(columns=["latency"])


def test_where_stages_are_unknown_no_time_was_computed_for(tmp_path: Path) -> None:
    """Rows know how many they ask for, and have no column of compute time or of the batch."""
    for number in range(5):  # what lay behind an empty column was another number each time
        load = Load("triton/onnx", 60, lognormal(20))
        (step,) = analysis.load(make_run(tmp_path / str(number), [load], foreign=True).folder).measured
        assert step.tally.by_slice[:, 7].tolist() == [0.0] * len(step.tally.by_slice)


def test_devices_without_samples_and_rows_without_answers(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 100, failed=1)], devices=[Waveform()])
    rewrite(written.folder, written.devices.iloc[:1], DEVICES)
    (step,) = analysis.load(written.folder).measured
    assert (step.summary.ok, step.summary.seen_util_pct) == (0, None)
    assert math.isinf(step.order.latency_ms[50.0])
    assert step.order.late_limit_ms == 1.0
    assert step.start_ns == START_NS
