import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from folders import (
    GPU,
    START_NS,
    Floats,
    Load,
    Waveform,
    Written,
    answered,
    constant,
    lognormal,
    make_run,
    queue,
    rewrite,
)  # fmt: skip

from tailrate import analysis
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.stats.trend import percentile
from tailrate.analysis.steps.step_summary import COLUMNS

DESIGN = """
index, endpoint, block, offered_rps, achieved_rps, goodput_rps, n, ok, errors, late, dropped, mean_ms, p50_ms, p90_ms,
p95_ms, p99_ms, p999_ms, p99_low_ms, p99_high_ms, ok_p99_ms, service_p99_ms, late_p99_ms, n_eff, early_stop_n,
queue_mean_ms, batch_mean_ms, h2d_mean_ms, compute_mean_ms, d2h_mean_ms, batch_rows_mean, util_pct, mem_peak_bytes,
power_w, joules, joules_per_request, net_joules_per_request, temp_c, sm_mhz, throttled_pct, slo, trusted, reasons
"""


def _latency(rows: pd.DataFrame) -> Floats:
    """By hand from what was written: failures are infinite."""
    done, intended = rows["done_ns"].fillna(0).astype("int64"), rows["intended_ns"].astype("int64")
    return np.where(rows["status"] == "200", (done - intended) / 1e6, math.inf)


def _only(written: Written) -> dict[str, Any]:
    steps = analysis.load(written.folder).steps
    assert len(steps) == 1
    return steps.to_dict("records")[0]


def test_columns_are_those_of_the_contract() -> None:
    wanted = [name.strip() for name in DESIGN.replace("\n", " ").split(",")]
    assert list(COLUMNS)[: len(wanted)] == wanted


def test_every_figure_of_a_step_equals_the_truth(tmp_path: Path) -> None:
    load = Load("m/a", 200, lognormal(20), seconds=30, settle_s=5, failed=0.002, dropped=0.001, timed_out=0.003)
    written = make_run(tmp_path / "run", [load], slo=["p95<30ms"], poisson=True)
    row = _only(written)
    rows = written.requests[written.requests["intended_ns"] >= START_NS + 5 * 10**9]
    latency = _latency(rows)
    ok = rows["status"] == "200"
    assert row["n"] == len(rows)
    assert row["ok"] == ok.sum()
    assert row["errors"] == (~ok).sum()
    assert row["dropped"] == (rows["status"] == "dropped").sum() > 0
    assert row["offered_rps"] == len(rows) / 25
    assert row["achieved_rps"] == answered(written.requests, 5, 30) / 25
    assert row["goodput_rps"] == (latency <= 30).sum() / 25
    for name, percent in (("p50_ms", 50), ("p90_ms", 90), ("p95_ms", 95), ("p99_ms", 99)):
        assert row[name] == np.quantile(latency, percent / 100, method="higher")
    assert row["ok_p99_ms"] == np.quantile(latency[ok], 0.99, method="higher") < row["p99_ms"]
    assert row["service_p99_ms"] == pytest.approx(row["p99_ms"] - 0.1)
    assert row["late_p99_ms"] == 0.1
    assert row["mean_ms"] == pytest.approx(latency[ok].mean())
    assert row["queue_mean_ms"] == pytest.approx(0.5 * (latency[ok].mean() - 0.1))
    assert row["compute_mean_ms"] == pytest.approx(rows["compute_ms"].mean())
    assert row["batch_rows_mean"] == 4
    assert row["p99_low_ms"] < row["p99_ms"] < row["p99_high_ms"]


def test_a_window_takes_the_settle_time_out_and_its_end_belongs_to_the_next(tmp_path: Path) -> None:
    slow_start = lambda rng, at_s: np.where(at_s < 2, 500.0, 10.0)  # noqa: E731
    row = _only(make_run(tmp_path / "run", [Load("m/a", 10, slow_start, seconds=10, settle_s=2)]))
    assert row["n"] == 80
    assert row["p99_ms"] == 10


@pytest.mark.parametrize(("rate", "given"), [(4602, False), (4603, True)])
def test_p999_is_there_where_the_sample_carries_it(tmp_path: Path, rate: int, given: bool) -> None:
    row = _only(make_run(tmp_path / "run", [Load("m/a", rate, constant(10), seconds=1)]))
    assert (row["p999_ms"] == 10) == given
    assert math.isnan(row["p999_ms"]) != given


def test_an_arrival_at_the_end_of_a_window_is_outside(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 10)])
    written.manifest.scenario["steps"][0]["end_ns"] = START_NS + 5 * 10**9
    written.manifest.write(written.folder)
    assert _only(written)["n"] == 50


def test_no_row_is_counted_in_two_steps(tmp_path: Path) -> None:
    steps = analysis.load(make_run(tmp_path / "run", [Load("m/a", 30), Load("m/a", 70), Load("m/b", 70)]).folder).steps
    assert steps[["endpoint", "n"]].values.tolist() == [["m/a", 300], ["m/a", 700], ["m/b", 700]]


def test_lateness_counts_from_one_millisecond_or_five_percent_of_the_service(tmp_path: Path) -> None:
    for name, latency, late_ms, late in (
        ("fast", constant(5), 0.9, 0),
        ("fast-late", constant(5), 1.1, 1000),
        ("slow", constant(100), 4.0, 0),
        ("slow-late", constant(100), 6.0, 1000),
    ):
        row = _only(make_run(tmp_path / name, [Load("m/a", 100, latency, late_ms=late_ms)]))
        assert (row["late"], row["trusted"]) == (late, late == 0), name
        assert row["late_p99_ms"] == pytest.approx(late_ms)


def test_energy_of_a_step_is_the_integral_and_net_of_idle(tmp_path: Path) -> None:
    wave = Waveform()
    written = make_run(tmp_path / "run", [Load("m/a", 50, seconds=20, settle_s=2.5)], devices=[wave], offset_ns=10**9)
    row = _only(written)
    joules = float(np.diff(wave.energy_j(np.array([2.5, 20.0])))[0])
    assert row["joules"] == pytest.approx(joules, abs=0.1)
    assert row["joules_per_request"] == pytest.approx(joules / answered(written.requests, 2.5, 20), rel=1e-3)
    # the window's edge lies in the first sample under load, hence the tolerance
    assert row["net_joules_per_request"] == pytest.approx((joules - 17.5 * 40) / row["ok"], rel=0.03)
    assert row["power_w"] == pytest.approx(joules / 17.5, rel=0.01)
    assert row["util_pct"] == 90
    assert row["throttled_pct"] == pytest.approx(25, abs=0.5)


def test_without_an_idle_window_net_energy_is_unknown(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 50)], devices=[Waveform()])
    (written.folder / "events.jsonl").unlink()
    row = _only(written)
    assert row["joules_per_request"] > 0
    assert math.isnan(row["net_joules_per_request"])


def test_a_step_takes_the_devices_that_its_answers_name(tmp_path: Path) -> None:
    waves = [Waveform("GPU-0", util_pct=10), Waveform("GPU-1", util_pct=70), Waveform("cpu", util_pct=50)]
    loads = [Load("m/a", 50, device="GPU-0"), Load("m/b", 50, device="GPU-1"), Load("m/c", 50, device=None)]
    steps = analysis.load(make_run(tmp_path / "run", loads, devices=waves).folder).steps
    # the manifest names yet another device for m/c, which was not sampled
    assert steps["util_pct"].fillna(-1).tolist() == [10, 70, -1]


def test_two_endpoints_at_once_have_their_own_rows_and_share_energy_by_compute_time(tmp_path: Path) -> None:
    loads = [Load("m/a", 40, constant(10), at_s=0), Load("m/b", 60, constant(20), at_s=0)]
    run = analysis.load(make_run(tmp_path / "run", loads, mode="mixed", devices=[Waveform()]).folder)
    assert run.steps[["n", "p50_ms", "util_pct"]].values.tolist() == [[400, 10, 90], [600, 20, 90]]
    first, second = run.steps["joules"]
    alone = analysis.load(make_run(tmp_path / "alone", loads[:1], devices=[Waveform()]).folder).steps["joules"][0]
    assert first + second == pytest.approx(alone, rel=0.001)  # all of it, once
    ratio = 600 * 20 / (400 * 10)
    assert second / first == pytest.approx(ratio, rel=0.02)
    assert "its device also served m/b: its energy is an estimate, 25 % of all" in " ".join(run.steps["reasons"][0])


def test_one_step_with_two_endpoints_gives_two_rows(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 40, constant(10), at_s=0), Load("m/b", 60, constant(20), at_s=0)])
    written.manifest.scenario["steps"] = written.manifest.scenario["steps"][:1]
    written.manifest.write(written.folder)
    rewrite(written.folder, written.requests.assign(step=0))
    run = analysis.load(written.folder)
    assert run.steps[["index", "endpoint", "n"]].values.tolist() == [[0, "m/a", 400], [0, "m/b", 600]]


def test_an_overloaded_step_is_found_and_its_p99_not_bounded(tmp_path: Path) -> None:
    loads = [Load("m/a", 90, queue(10), seconds=30), Load("m/a", 120, queue(10), seconds=30)]
    run = analysis.load(make_run(tmp_path / "run", loads, poisson=True, seed=3).folder)
    assert [step.overloaded for step in run.measured] == [False, True]
    assert run.measured[1].growth.per_s == pytest.approx(20, rel=0.3)
    row = run.steps.loc[1]
    assert "overloaded: the queue grew by" in row["reasons"][0]
    assert row["trusted"]  # that is the endpoint's fault, and no reason for distrust
    assert math.isnan(row["p99_low_ms"])


def test_a_generator_that_falls_behind_is_not_the_endpoints_overload(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 100, constant(10), seconds=20)])
    sent = written.requests["intended_ns"] + np.linspace(0, 5_000_000_000, len(written.requests)).astype(np.int64)
    rewrite(written.folder, written.requests.assign(sent_ns=sent, done_ns=sent + 10_000_000))
    step = analysis.load(written.folder).measured[0]
    assert not step.overloaded
    assert not step.summary.trusted
    assert "the load generator was late" in step.summary.reasons[0]


def _filled(rng: np.random.Generator, at_s: np.ndarray) -> np.ndarray:
    """A queue that grows until it is as long as it may be."""
    return 10 + np.minimum(at_s / 3, 1) * 80


def test_drops_of_a_growing_queue_are_the_endpoints_others_the_clients(tmp_path: Path) -> None:
    sporadic = make_run(tmp_path / "a", [Load("m/a", 100, constant(10), seconds=30, dropped=0.002)], seed=2)
    row = _only(sporadic)
    assert 1 < row["dropped"] < 15
    assert not row["trusted"]
    assert "were dropped although" in row["reasons"][0]
    capped = _only(make_run(tmp_path / "b", [Load("m/a", 100, _filled, seconds=30, dropped=0.4)]))
    assert capped["trusted"]
    assert "of the arrivals were dropped or ran into the time limit" in capped["reasons"][0]
    # an endpoint that takes as long from the beginning: more may be under way at once
    small = _only(make_run(tmp_path / "c", [Load("m/a", 100, constant(90), seconds=30, dropped=0.4)]))
    assert not small["trusted"]
    assert small["reasons"][0].endswith("were dropped although the queue did not grow: raise --max-in-flight to 14")


def test_where_nothing_ever_succeeded_no_more_is_said_than_is_known(tmp_path: Path) -> None:
    none = _only(make_run(tmp_path / "run", [Load("m/a", 100, constant(10), seconds=30, failed=0.5, timed_out=0.5)]))
    assert none["reasons"][0].endswith(
        " % of the arrivals were dropped or ran into the time limit, so no P99 describes this step"
    )


def test_time_limits_that_cap_a_queue_say_overload(tmp_path: Path) -> None:
    load = Load("m/a", 50, _filled, seconds=30, timed_out=0.5)
    run = analysis.load(make_run(tmp_path / "run", [load]).folder)
    assert run.measured[0].overloaded
    assert "time limit" in run.measured[0].summary.reasons[0]
    steady = analysis.load(make_run(tmp_path / "steady", [replace(load, latency=constant(90))]).folder)
    assert not steady.measured[0].overloaded


def test_a_busy_load_process_marks_its_own_step_only(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 50), Load("m/a", 60), Load("m/a", 70)])
    for end_s, pct in ((10.05, 40.0), (20.3, 97.0), (20.2, 20.0), (30.1, 85.0)):
        append_event(written.folder, "load_cpu", time_ns=START_NS + round((end_s - 0.5) * 1e9), worker=0, pct=pct)
    steps = analysis.load(written.folder).steps
    assert steps["trusted"].tolist() == [True, False, True]
    assert "97 %" in steps.loc[1, "reasons"][0]


def test_a_step_cut_short_ends_with_the_run_and_says_so(tmp_path: Path) -> None:
    loads = [Load("m/a", 50, constant(10)), Load("m/a", 80, constant(10)), Load("m/a", 90, constant(10))]
    written = make_run(tmp_path / "run", loads, status="aborted", stopped_s=14)
    steps = analysis.load(written.folder).steps
    assert steps["n"].tolist() == [500, 320, 0]
    assert steps["offered_rps"].tolist()[:2] == [50, 80]
    assert "the run ended 4 s into this step" in steps.loc[1, "reasons"]
    assert steps.loc[2, "reasons"] == (
        "the run ended before this step",
        "no arrivals were recorded in its window",
    )
    empty = steps.loc[2].drop(
        ["index", "endpoint", "block", "n", "ok", "errors", "late", "dropped", "trusted", "reasons"]
    )
    assert empty.isna().all()
    assert not steps.loc[2, "trusted"]


def test_the_time_of_the_abort_counts_not_that_of_the_last_answer(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 50, constant(10))], status="aborted", stopped_s=6)
    written.manifest.finished_ns = START_NS + 9 * 10**9
    written.manifest.write(written.folder)
    append_event(written.folder, "aborted", time_ns=START_NS + 6 * 10**9)
    assert _only(written)["offered_rps"] == 50


def test_lost_arrivals_count_as_failed_and_stay_in_flight(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 50, constant(10), seconds=20)])
    rows = written.requests
    gone = rows["intended_ns"] >= START_NS + 10 * 10**9
    unknown = {name: rows[name].where(~gone) for name in ("done_ns", "device")}
    rewrite(written.folder, rows.assign(status=rows["status"].where(~gone, "lost"), **unknown))
    (step,) = analysis.load(written.folder).measured
    assert (step.summary.ok, step.summary.errors) == (500, 500)
    assert step.growth.rising
    assert "500 arrivals were lost before their answer came, and count as failed" in step.summary.reasons


def test_all_failed_is_infinite_and_zero_but_not_unknown(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 50, failed=1)], slo=["errors<1%"], devices=[Waveform()])
    row = _only(written)
    assert (row["n"], row["ok"], row["errors"], row["achieved_rps"]) == (500, 0, 500, 0)
    assert math.isinf(row["p50_ms"])
    assert row["slo"] is False
    for name in ("mean_ms", "ok_p99_ms", "joules_per_request", "queue_mean_ms", "batch_rows_mean"):
        assert math.isnan(row[name]), name


def test_a_foreign_server_leaves_stages_and_devices_empty(tmp_path: Path) -> None:
    row = _only(make_run(tmp_path / "run", [Load("triton/onnx", 60, constant(20))], foreign=True))
    assert (row["n"], row["p99_ms"], row["achieved_rps"], row["trusted"]) == (600, 20, 59.9, True)
    unknown = [name for name in COLUMNS if name.endswith("_mean_ms")] + [
        "batch_rows_mean",
        "util_pct",
        "joules",
        "temp_c",
    ]
    assert all(math.isnan(row[name]) for name in unknown)


def test_rows_without_an_endpoint_belong_to_their_steps(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 60)])
    rewrite(written.folder, written.requests.assign(endpoint=None))
    assert analysis.load(written.folder).steps[["endpoint", "n"]].values.tolist() == [["m/a", 600]]


def test_the_sample_size_asked_for_is_mlperfs(tmp_path: Path) -> None:
    few = _only(make_run(tmp_path / "few", [Load("m/a", 40, constant(10))]))
    assert few["early_stop_n"] == 459
    assert "400 arrivals are too few for P99; MLPerf's rule asks for 459" in few["reasons"]
    slow = lambda rng, at_s: np.where(np.arange(len(at_s)) % 200 == 0, 90.0, 10.0)  # noqa: E731
    five = _only(make_run(tmp_path / "five", [Load("m/a", 100, slow)], slo=["p99<50ms"]))
    assert five["early_stop_n"] == 1307  # 5 of 1000 are over
    assert five["slo"] is None  # 5 of 1307 would do
    assert any("0.50 % of 1,000 arrivals took longer than 50 ms" in reason for reason in five["reasons"])


def test_rows_in_any_order_give_the_same_steps(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 200, queue(4.5)), Load("m/b", 100)], poisson=True)
    steps = analysis.load(written.folder).steps
    rewrite(written.folder, written.requests.sample(frac=1, random_state=1))
    pd.testing.assert_frame_equal(steps, analysis.load(written.folder).steps)


def test_the_settle_time_may_cover_the_whole_step(tmp_path: Path) -> None:
    row = _only(make_run(tmp_path / "run", [Load("m/a", 20, seconds=4, settle_s=5)]))
    assert (row["n"], row["trusted"]) == (0, False)
    assert math.isnan(percentile(np.empty(0), 50))


def test_a_step_whose_rows_were_deleted_on_purpose_has_no_row(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 50), Load("m/a", 60)], mode="soak")
    rewrite(written.folder, written.requests[written.requests["step"] == 1])
    assert [step.summary.n for step in analysis.load(written.folder).measured] == [0, 600]
    append_event(written.folder, "retired", steps=[0], rows=500, files=["requests-0000.arrows"], totals={"ok": 500})
    run = analysis.load(written.folder)
    assert [(step.summary.index, step.summary.n) for step in run.measured] == [(1, 600)]
    assert run.retired == 500


def test_what_takes_just_the_time_of_the_objective_is_in_time(tmp_path: Path) -> None:
    row = _only(make_run(tmp_path / "run", [Load("m/a", 200, constant(20))], slo=["p99<20ms"]))
    assert row["goodput_rps"] == row["offered_rps"] == 200
    assert row["slo"] is True


SECOND = GPU.replace("1", "2")


def test_energy_is_not_told_from_some_of_the_devices_that_answered(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 100)], devices=[Waveform()])
    assert _only(written)["joules_per_request"] > 0
    rows = written.requests
    rows.loc[rows.index % 2 == 1, "device"] = SECOND
    rewrite(written.folder, rows)
    row = _only(written)
    assert math.isnan(row["joules"])
    assert math.isnan(row["joules_per_request"])
    assert math.isnan(row["power_w"])
    assert f"{SECOND} answered, too, and has no samples: the energy of this step is not known" in row["reasons"]


@pytest.mark.parametrize("counter", [True, False])
def test_a_hole_in_the_samples_is_bridged_by_a_counter_or_leaves_no_energy(tmp_path: Path, counter: bool) -> None:
    load = Load("m/a", 100, seconds=30)
    written = make_run(tmp_path / "run", [load], devices=[Waveform(counter=counter)])
    truth = _only(written)["joules"]
    samples = written.devices
    into_s = (samples["time_ns"] - START_NS) / 1e9
    rewrite(written.folder, samples[(into_s < 1) | (into_s > 29)], "devices")
    row = _only(written)
    if counter:
        assert row["joules"] == pytest.approx(truth, rel=0.01)
    else:
        assert math.isnan(row["joules"])
        assert f"{GPU} has no samples for 28 s of this step: its energy is not known" in row["reasons"]


def test_devices_that_are_shared_in_part_have_no_energy_of_one_variant(tmp_path: Path) -> None:
    loads = [Load("m/a", 100, at_s=0.0), Load("m/b", 100, at_s=0.0, device=SECOND)]
    written = make_run(tmp_path / "run", loads, mode="mixed", devices=[Waveform(), Waveform(device=SECOND)])
    rows = written.requests
    rows.loc[(rows["step"] == 0) & (rows["seq"] % 2 == 1), "device"] = SECOND
    rewrite(written.folder, rows)
    steps = analysis.load(written.folder).steps
    assert steps["joules"].isna().all()
    assert all("shares only some of its devices" in " ".join(reasons) for reasons in steps["reasons"])


def test_what_an_overloaded_step_achieves_is_what_the_server_answered_in_it(tmp_path: Path) -> None:
    """140 of 100 that it can do, then a spike's return to 50: the backlog is answered there."""
    loads = [Load("m/a", 140, queue(10), seconds=20), Load("m/a", 50, constant(10), seconds=20)]
    written = make_run(tmp_path / "run", loads, poisson=True, devices=[Waveform()])
    over, after = analysis.load(written.folder).steps.to_dict("records")
    assert over["achieved_rps"] == pytest.approx(answered(written.requests, 0, 20) / 20)
    assert over["achieved_rps"] == pytest.approx(100, rel=0.02)
    assert after["achieved_rps"] == pytest.approx(answered(written.requests, 20, 40) / 20)
    assert after["achieved_rps"] > 80
    assert over["joules_per_request"] == pytest.approx(over["joules"] / answered(written.requests, 0, 20))
