"""A model fitted from runs whose batches are known: sizes, times, pauses, rules, and what it foretells."""

import json

import numpy as np
import pandas as pd
import pytest
from batched import Server, batched_run, linear
from fitted import calibrate, validate
from folders import Load, Waveform, make_run, rewrite

from tailrate import analysis
from tailrate.analysis.planning.model.cross_validation import measured, replay
from tailrate.analysis.planning.model.fit import CalibrationError, observed
from tailrate.analysis.planning.model.observed_batches import observe
from tailrate.analysis.planning.model.service_time import by_size, computed_as
from tailrate.analysis.planning.plan.candidates import variants
from tailrate.analysis.planning.simulator.fleet import AWAKE
from tailrate.analysis.planning.simulator.simulate import Routing, Rule
from tailrate.analysis.records.folder import RunError
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.text import words

GAP_S = 0.0006
FIXED_S, EACH_S = 0.004, 0.001
LIMIT = 8 / (FIXED_S + 8 * EACH_S + GAP_S)
SIZES = np.arange(1, 9)
SHARES = (0.2, 0.5, 0.7, 0.85)


def steady(**given):
    return Server(linear(FIXED_S, EACH_S, 0.1), **{"gap_s": GAP_S} | given)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "steady"
    said = {"load_s": 4.0, "warmup_s": 2.5, "device_name": "NVIDIA H200"}
    batched_run(folder, steady(said=said), [LIMIT * share for share in SHARES], slo=("p99<30ms",))
    return analysis.load(folder)


@pytest.fixture(scope="module")
def model(run):
    return calibrate([run], "m/a")


def test_batches_are_put_together_as_they_were(run):
    rows = run.requests()
    for step in run.measured:
        seen, own = observe(run, step), rows[rows["step"] == step.summary.index]
        batches = seen.batches
        assert batches.whole.mean() > 0.99  # but for one that the settle time cuts
        assert seen.replicas == 1
        # the endpoint writes the size of its batch into every row
        sizes = own["batch_rows"].to_numpy(dtype=int)
        true = np.bincount(sizes, minlength=9)[1:] / SIZES * (1 - 2 / 30)
        assert np.bincount(batches.requests, minlength=9)[1:] == pytest.approx(true, rel=0.3, abs=12)
        assert (np.diff(batches.begun_s) > 0.9 * batches.stages_s[:-1]).all()


def test_occupation_is_the_time_between_two_begins_while_somebody_waited(model):
    assert model.service.mean_s[1:] == pytest.approx(FIXED_S + EACH_S * SIZES + GAP_S, rel=0.006)
    assert model.service.limit_rps == pytest.approx(LIMIT, rel=0.005)
    spread = model.service.spread
    assert spread.mean(axis=1) == pytest.approx(1.0)
    # the pause does not vary, the stages do, by a tenth
    assert spread[model.service.spread_class[4]].std() == pytest.approx(0.1 * 8 / 8.6, rel=0.1)
    assert len(spread[0]) & (len(spread[0]) - 1) == 0


def test_a_replica_that_was_idle_takes_longer(tmp_path, model):
    assert model.service.waking == AWAKE
    sleepy = steady(waking=(0.02, 0.1, 0.004))
    batched_run(tmp_path / "it", sleepy, [15, 60, 200, 400], seconds=60)
    run = analysis.load(tmp_path / "it")
    model = calibrate([run], "m/a")
    from_s, full_s, extra_s = model.service.waking
    assert (from_s, full_s) == (0.02, 0.1)
    assert extra_s == pytest.approx(0.004, rel=0.05)
    assert model.service.mean_s[1:] == pytest.approx(FIXED_S + EACH_S * SIZES + GAP_S, rel=0.02)
    assert f"up to {words.significant(1e3 * extra_s)} ms longer" in model.notes[0]
    for step in observed([run], "m/a"):
        said, found = replay([step], model.fleet(1), 1), measured([step], model)
        assert (said.p50_ms, said.p99_ms) == pytest.approx((found.p50_ms, found.p99_ms), rel=0.05)


def test_beyond_some_answers_more_of_them_hold_up_no_longer(tmp_path):
    batched_run(tmp_path / "it", steady(telling_s=0.0004, telling_most=3), [100, 300, 450], seconds=60)
    model = calibrate([analysis.load(tmp_path / "it")], "m/a")
    assert model.service.telling_s[1:] == pytest.approx(0.0004 * np.minimum(SIZES, 3), rel=0.1)


def test_an_idle_replica_takes_a_while_to_wake_and_takes_along_who_comes_by_then(tmp_path, model):
    assert model.service.wake_s == pytest.approx(0.0, abs=1e-4)
    batched_run(tmp_path / "it", steady(wake_s=0.001), [100, 300, 450], seconds=60)
    run = analysis.load(tmp_path / "it")
    model = calibrate([run], "m/a")
    assert model.service.wake_s == pytest.approx(0.001, rel=0.2)
    for step in observed([run], "m/a"):
        said, found = replay([step], model.fleet(1), 1), measured([step], model)
        assert (said.p50_ms, said.p99_ms) == pytest.approx((found.p50_ms, found.p99_ms), rel=0.03)
        assert said.batch == pytest.approx(found.batch, rel=0.03)


def test_a_batch_takes_longer_while_answers_of_the_one_before_are_handed_out(tmp_path, model):
    assert not model.service.telling_s.any()
    batched_run(tmp_path / "it", steady(telling_s=0.0002), [100, 300, 450], seconds=60)
    run = analysis.load(tmp_path / "it")
    model = calibrate([run], "m/a")
    assert model.service.telling_s[1:] == pytest.approx(0.0002 * SIZES, rel=0.1)
    assert model.service.mean_s[1:] == pytest.approx(FIXED_S + (EACH_S + 0.0002) * SIZES + GAP_S, rel=0.01)
    for step in observed([run], "m/a"):
        said, found = replay([step], model.fleet(1), 1), measured([step], model)
        assert (said.p50_ms, said.p99_ms) == pytest.approx((found.p50_ms, found.p99_ms), rel=0.05)


def test_overhead_is_what_waiting_and_occupation_do_not_explain(model):
    # there and back 0.5 ms each in the mean, the answer's 20 µs for each of its batch, less the pause
    assert 1e3 * np.median(model.service.overhead_s) == pytest.approx(2 * 0.5 + 0.06 - 0.6, abs=0.06)
    assert model.lone_ms == pytest.approx(5 + 1.02, abs=0.1)
    assert model.host_share == pytest.approx(1 - 5 / 6, abs=0.03)


def test_what_the_endpoint_declares(model):
    assert (model.max_batch, model.batch_wait_s, model.queue) == (8, 0.0, 256)
    assert (model.rule, model.declared_rule, model.routing) == (Rule.COMPANY, Rule.COMPANY, Routing.LEAST)
    assert (model.replicas, model.rows, model.warmup_s, model.device) == (1, 1.0, 6.5, "NVIDIA H200")
    assert model.highest_rps == pytest.approx(0.85 * LIMIT, rel=0.05)
    assert not model.notes
    assert (model.idle_w, model.active_w) == (None, None)
    fleet = model.fleet(3)
    assert (fleet.replicas, fleet.max_batch, fleet.queue) == (3, 8, 256)


def test_steps_that_say_nothing_are_left_out_and_said(tmp_path):
    rates = [LIMIT * share for share in (0.3, 0.6, 1.3)]
    rows = batched_run(tmp_path / "it", steady(), rates, seconds=20)
    late = rows["step"] == 1
    rows.loc[late, "sent_ns"] += 40_000_000  # the load generator was late
    rows.loc[late, "done_ns"] += 40_000_000
    rewrite(tmp_path / "it", rows)
    model = calibrate([analysis.load(tmp_path / "it")], "m/a")
    assert model.highest_rps == pytest.approx(rates[0], rel=0.1)
    said = " ".join(model.notes)
    assert "left out as overloaded: 825/s" in said
    assert "left out, since the load generator was late" in said
    # full batches were in the overloaded step alone; nobody says how large batches may be
    manifest = Manifest.read(tmp_path / "it")
    manifest.endpoints[0]["max_batch"] = None
    manifest.write(tmp_path / "it")
    assert calibrate([analysis.load(tmp_path / "it")], "m/a").max_batch == 8
    assert "7–8 requests were seen in overloaded steps only" in said or "8 requests were seen in overloaded" in said
    assert model.service.mean_s[8] == pytest.approx(FIXED_S + 8 * EACH_S + GAP_S, rel=0.01)


def test_failed_rows_do_no_harm(tmp_path):
    rows = batched_run(tmp_path / "it", steady(), [0.5 * LIMIT, 0.8 * LIMIT], seconds=20)
    gone = np.random.default_rng(1).random(len(rows)) < 0.05
    stages = ["queue_ms", "compute_ms", "batch_ms", "h2d_ms", "d2h_ms", "server_ms"]
    rows.loc[gone, "status"] = "503"
    rows.loc[gone, [*stages]] = np.nan
    rewrite(tmp_path / "it", rows)
    model = calibrate([analysis.load(tmp_path / "it")], "m/a")
    # a batch without one of its requests looks smaller by one
    assert model.service.limit_rps == pytest.approx(LIMIT, rel=0.04)


def test_several_replicas_are_told_by_their_names(tmp_path):
    batched_run(tmp_path / "it", steady(replicas=3), [1.5 * LIMIT, 2.4 * LIMIT], seconds=15)
    model = calibrate([analysis.load(tmp_path / "it")], "m/a")
    assert model.replicas == 3
    assert model.highest_rps == pytest.approx(0.8 * LIMIT, rel=0.05)
    assert model.service.limit_rps == pytest.approx(LIMIT, rel=0.01)


def test_an_endpoint_that_tells_no_stages_has_no_model(tmp_path):
    make_run(tmp_path / "it", [Load("m/a", 50.0)], foreign=True)
    with pytest.raises(CalibrationError, match="do not say what their batches took"):
        calibrate([analysis.load(tmp_path / "it")], "m/a")
    with pytest.raises(CalibrationError, match="no steps of m/b"):
        calibrate([analysis.load(tmp_path / "it")], "m/b")


def test_endpoints_driven_side_by_side_are_said(tmp_path):
    make_run(tmp_path / "it", [Load("m/a", 50.0), Load("m/b", 50.0, at_s=0.0), Load("m/a", 60.0)])
    run = analysis.load(tmp_path / "it")
    assert [step.beside for step in observed([run], "m/a")] == [("m/b",), ()]
    assert any("m/b was driven at the same time" in note for note in calibrate([run], "m/a").notes)


def test_power_is_idle_and_occupied(tmp_path):
    """The device draws 40 W idle and 200 W on average in the load, whatever that is."""
    folder = tmp_path / "it"
    make_run(folder, [Load("m/a", 0.8 * LIMIT, seconds=30.0, settle_s=0.0)], devices=[Waveform()], mode="hold")
    watts = analysis.load(folder)
    (step,) = observed([watts], "m/a")
    assert step.power_w == pytest.approx(200, rel=0.03)
    assert step.idle_w == pytest.approx(40, rel=0.05)


def test_power_of_a_device_that_two_use_is_shared_out(tmp_path):
    loads = [Load("m/a", 100.0, seconds=30.0), Load("m/b", 100.0, seconds=30.0, at_s=0.0)]
    make_run(tmp_path / "it", loads, devices=[Waveform()], mode="hold")
    run = analysis.load(tmp_path / "it")
    steps = [step for name in ("m/a", "m/b") for step in observed([run], name)]
    # what each adds is a part of the whole; a plan's fleet has devices of its own, which draw as much while idle
    assert sum(step.power_w - step.idle_w for step in steps) == pytest.approx(160, rel=0.03)
    assert [step.idle_w for step in steps] == pytest.approx([40, 40], rel=0.05)


def test_requests_of_several_sizes_are_no_model(tmp_path):
    rows = batched_run(tmp_path / "it", steady(), [0.5 * LIMIT])
    rows.loc[::2, ["rows", "batch_rows"]] = [4, 12]
    rewrite(tmp_path / "it", rows)
    with pytest.raises(CalibrationError, match=r"m/a have 1 to 4 rows: .* drive each size by itself"):
        calibrate([analysis.load(tmp_path / "it")], "m/a")


def test_what_was_lost_has_no_size_of_its_own(tmp_path):
    """A soak that was killed and goes on has rows for what was under way, which say when it was due and no more."""
    rows = batched_run(tmp_path / "it", steady(said={"max_batch": 32}), [0.5 * LIMIT])
    rows[["rows", "batch_rows"]] = rows[["rows", "batch_rows"]].astype("Int32") * 4
    rows.loc[rows.index[-3:], "status"] = "lost"
    rows.loc[rows.index[-3:], ["rows", "batch_rows", "sent_ns", "done_ns"]] = pd.NA
    rewrite(tmp_path / "it", rows)
    model = calibrate([analysis.load(tmp_path / "it")], "m/a")
    assert (model.rows, model.max_batch) == (4.0, 8)


def test_replicas_without_names_are_no_model(tmp_path):
    """Taken for one, they would be accused of leaving requests behind."""
    rows = batched_run(tmp_path / "it", steady(replicas=2), [1.2 * LIMIT])
    rows["replica"] = None
    rewrite(tmp_path / "it", rows)
    with pytest.raises(CalibrationError, match="batches of m/a overlap, as of several replicas"):
        calibrate([analysis.load(tmp_path / "it")], "m/a")


@pytest.mark.parametrize("share", [0.3, 3.0])
def test_sizes_on_a_line_are_that_line_and_others_their_own(share):
    rng = np.random.default_rng(2)
    sizes = rng.integers(1, 9, 4000)
    line = 1 + 0.2 * np.arange(12)
    found, known = by_size(sizes, line[sizes] * rng.normal(1, 0.05, 4000), 11)
    assert found[1:9] == pytest.approx(line[1:9], rel=0.004)
    assert found[9:] == pytest.approx(line[9:], rel=0.01)  # never seen
    assert known.tolist() == [False, *[True] * 8, *[False] * 3]
    steps = np.where(np.arange(12) > 4, 1 + share, 1.0)  # padded to buckets of four and eight
    found, _ = by_size(sizes, steps[sizes] * rng.normal(1, 0.05, 4000), 11)
    assert found[1:9] == pytest.approx(steps[1:9], rel=0.01)


def test_sizes_that_were_not_seen_take_as_long_as_those_that_are_padded_alike():
    """A step of rates can jump over half of the sizes, and a line between 8 and 20 requests is wrong about all."""
    rng = np.random.default_rng(3)
    padded = computed_as("1,4,8,16,32", 1, 40)
    levels = {0: 0.0, 1: 3.0, 4: 4.5, 8: 7.3, 16: 12.0, 32: 21.7}
    truth = np.array([levels.get(int(rows), 0.0) for rows in padded])
    seen = np.array([1, 2, 3, 7, 20, 25, 32])
    sizes = rng.choice(seen, 4000)
    found, known = by_size(sizes, truth[sizes] * rng.normal(1, 0.05, 4000), 40, padded)
    assert np.flatnonzero(known).tolist() == seen.tolist()
    alike = [size for size in range(1, 33) if padded[size] != 16]
    assert found[alike] == pytest.approx(truth[alike], rel=0.01)
    # of sixteen rows nothing was seen: as far between eight and thirty-two as it is from them
    assert found[9:17] == pytest.approx([7.3 + (21.7 - 7.3) / 3] * 8, rel=0.01)
    assert (np.diff(found[32:]) > 0).all()


def test_requests_of_several_rows_are_padded_by_their_rows():
    assert computed_as("1,4,8", 2, 5).tolist() == [1, 4, 4, 8, 8, 10]
    assert computed_as("4x128,8x128", 1, 5).tolist() == [4, 4, 4, 4, 4, 8]
    assert computed_as("", 1, 3).tolist() == [0, 1, 2, 3]


def test_one_size_alone_says_little_of_larger_ones(tmp_path):
    batched_run(tmp_path / "it", steady(), [5.0], seconds=20)
    model = calibrate([analysis.load(tmp_path / "it")], "m/a")
    assert model.service.mean_s[8] == pytest.approx(8 * (FIXED_S + EACH_S), rel=0.05)
    said = " ".join(model.notes)
    assert "2–8 requests were never seen" in said
    assert "taken for granted" in said


# ---- what it foretells


def test_rates_that_it_has_not_seen(run):
    found = validate([run], "m/a")
    assert [row.beyond for row in found.rows] == [False, False, False, True]
    assert found.median["p50"] < 0.02
    assert found.median["p99"] < 0.06
    assert found.median["throughput"] < 0.005
    for row in found.rows:
        assert row.error.batch == pytest.approx(0, abs=0.03)
        assert row.error.utilisation == pytest.approx(0, abs=0.03)
        assert row.p99_predicted_ms[0] <= row.predicted.p99_ms <= row.p99_predicted_ms[1]
        assert row.p99_measured_ms is None or row.p99_measured_ms[0] <= row.measured.p99_ms <= row.p99_measured_ms[1]
    assert found.rows[0].p99_measured_ms
    assert abs(found.rate_at_slo_error) < 0.03
    assert found.gate == "good"
    # the objective is 30 ms, and the third rate is nearest to it
    assert f"at {LIMIT * 0.7:.4g}/s" in found.reason
    written = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert written["rows"][0]["measured"]["p50_ms"] == found.rows[0].measured.p50_ms


def test_steps_can_be_chosen_to_be_fitted(run):
    found = validate([run], "m/a", fitted=[0, 3])
    assert [row.step for row in found.rows] == [1, 2]
    assert not any(row.beyond for row in found.rows)
    assert found.median["p99"] < 0.06


def test_steps_of_one_rate_are_one_row_over_all_their_requests(tmp_path):
    shares = (0.7, 0.2, 0.5, 0.2, 0.7, 0.5)
    batched_run(tmp_path / "turns", steady(), [LIMIT * share for share in shares])
    turns = analysis.load(tmp_path / "turns")
    steps = observed([turns], "m/a")
    found = validate([turns], "m/a")
    assert [(row.step, row.steps) for row in found.rows] == [(1, 2), (2, 2), (0, 2)]
    for row, numbers in zip(found.rows, [(1, 3), (2, 5), (0, 4)], strict=True):
        both = [steps[number].latency_s[steps[number].window] for number in numbers]
        assert row.measured.p99_ms == pytest.approx(1e3 * np.percentile(np.concatenate(both), 99), rel=0.01)
        batches = np.concatenate([steps[number].batches.requests for number in numbers])
        assert row.measured.batch == pytest.approx(batches.mean())
        assert row.measured.throughput_rps == pytest.approx(row.rate, rel=0.03)
        assert row.error.utilisation == pytest.approx(0, abs=0.03)
        assert row.p99_measured_ms[0] < row.measured.p99_ms < row.p99_measured_ms[1]
    # a rate that is fitted is fitted with all of its steps
    assert [row.step for row in validate([turns], "m/a", fitted=[0, 1, 3, 4]).rows] == [2]


def test_above_the_highest_fitted_load_nothing_counts(run):
    found = validate([run], "m/a", fitted=[0, 1])
    assert all(row.beyond for row in found.rows)
    assert found.gate == "refused"
    assert "above those that were fitted" in found.reason
    assert np.isnan(found.median["p99"])
    assert found.as_json()["median"]["p99"] is None


def test_a_model_that_is_wrong_is_refused(tmp_path):
    """Batches take half as long again in the first step and the last: what is between cannot be foretold."""
    folder = tmp_path / "it"
    rates = [LIMIT * share for share in (0.3, 0.5, 0.6)]
    rows = batched_run(folder, steady(), rates)
    slow = tmp_path / "slow"
    other = batched_run(slow, Server(linear(1.5 * FIXED_S, 1.5 * EACH_S, 0.1), gap_s=GAP_S), rates)
    rewrite(folder, pd.concat([other[other["step"] != 1], rows[rows["step"] == 1]]))
    found = validate([analysis.load(folder)], "m/a", fitted=[0, 2])
    (row,) = found.rows
    assert row.predicted.p50_ms > 1.3 * row.measured.p50_ms
    assert row.rate_error is None or row.rate_error < -0.05
    assert found.gate == "refused"


def test_one_rate_alone_foretells_nothing(tmp_path):
    batched_run(tmp_path / "it", steady(), [0.5 * LIMIT], seconds=10)
    found = validate([analysis.load(tmp_path / "it")], "m/a")
    assert (found.rows, found.gate, found.rate_at_slo_error) == ((), "refused", None)


def test_batches_that_cost_more_than_they_bring_are_said(tmp_path):
    """As a small net on two cores: alone 5 ms, four together 30."""
    server = Server(lambda requests, rng: 0.005 * requests**1.3, 4)
    batched_run(tmp_path / "it", server, [60.0, 120.0], seconds=20)
    model = calibrate([analysis.load(tmp_path / "it")], "m/a")
    (said,) = [note for note in model.notes if "would take more" in note]
    assert "with max_batch 1 a replica would take more" in said


def test_runs_of_different_devices_are_no_model_and_that_is_said_first(tmp_path):
    """Not that the model is off: it is of neither."""
    runs = []
    for name, times in (("H200", 1), ("L4", 3)):
        said = {"max_batch": 8, "max_wait_ms": 0.0, "device_name": f"NVIDIA {name}"}
        server = Server(linear(0.008 * times, 0.002 * times, 0.1), gap_s=0.0005, said=said)
        batched_run(tmp_path / name, server, [40 / times, 120 / times], slo=("p99<100ms",), seconds=10)
        runs.append(analysis.load(tmp_path / name))
    with pytest.raises(RunError, match=r"m/a was measured on NVIDIA H200 \(H200\) and NVIDIA L4 \(L4\): plan with"):
        variants(runs, Slo.parse("p99<100ms"))
    assert variants(runs[:1], Slo.parse("p99<100ms"))[0][0].endpoint == "m/a"


def test_sizes_below_the_first_that_was_seen_take_no_time_less_than_none():
    """A line through large batches alone may begin anywhere."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(5, 9, 60)
        found, known = by_size(sizes, 0.2 * sizes**2 * rng.normal(1, 0.15, 60), 8)
        assert not known[:5].any()
        assert (found[1:] > 0).all()
