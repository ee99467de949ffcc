import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from folders import GPU, START_NS, Load, Waveform, Written, lognormal, make_run, rewrite

from tailrate import analysis
from tailrate.analysis.records.folder import DEVICES
from tailrate.analysis.run.device_tracks import STATE
from tailrate.analysis.verdicts.run import Run

LOADS = [Load("m/a", 97, lognormal(30), seconds=20)]


def _middle_s(run: Run) -> pd.Series:
    return ((run.requests()["sent_ns"] + run.requests()["done_ns"]) / 2 - START_NS).astype("float64") / 1e9


@pytest.mark.parametrize(
    ("offset_ns", "drift_ppm"), [(0, 0.0), (1_700_000_000, 0.0), (-1_700_000_000, 50.0), (86_400_000_000_000, 0.0)]
)
def test_each_request_gets_the_sample_nearest_to_its_middle(tmp_path: Path, offset_ns: int, drift_ppm: float) -> None:
    written = make_run(tmp_path / "run", LOADS, devices=[Waveform()], offset_ns=offset_ns, drift_ppm=drift_ppm)
    run = analysis.load(written.folder)
    # the temperature is the true time of the sample
    away_s = (run.joined()["temp_c"] - _middle_s(run)).abs()
    assert away_s.max() <= 0.05 + 1e-6
    assert run.joined()["temp_c"].nunique() > 190


def test_the_join_is_that_of_merge_asof(tmp_path: Path) -> None:
    waves = [Waveform("GPU-0", period_s=0.1), Waveform("GPU-1", period_s=0.1, util_pct=20)]
    loads = [Load("m/a", 50, device="GPU-0"), Load("m/b", 50, device="GPU-1"), Load("m/c", 50, device="GPU-9")]
    run = analysis.load(make_run(tmp_path / "run", loads, devices=waves).folder)
    left = run.requests().assign(
        at=(run.requests()["sent_ns"] + (run.requests()["done_ns"] - run.requests()["sent_ns"]) // 2).astype("int64"),
        device=run.requests()["device"].astype(object),
    )
    right = run.devices.assign(device=run.devices["device"].astype(object)).sort_values("time_ns")
    truth = pd.merge_asof(
        left.sort_values("at"), right, left_on="at", right_on="time_ns", by="device", direction="nearest",
        tolerance=100_000_000,
    ).sort_values(["step", "seq"], ignore_index=True)  # fmt: skip
    found = run.joined().sort_values(["step", "seq"], ignore_index=True)
    for name in ("util_pct", "temp_c", "power_w", "mem_bytes", "throttle_bits"):
        assert (found[name].isna() == truth[name].isna()).all()
        assert found[name].dropna().tolist() == truth[name].dropna().tolist()
    assert found.loc[found["endpoint"] == "m/c", "util_pct"].isna().all()
    assert found.loc[found["endpoint"] == "m/b", "util_pct"].eq(20).all()


def test_a_request_without_device_or_answer_has_empty_columns(tmp_path: Path) -> None:
    loads = [Load("m/a", 100, failed=0.2, dropped=0.2)]
    run = analysis.load(make_run(tmp_path / "run", loads, devices=[Waveform()]).folder)
    joined = run.joined()
    assert joined.loc[joined["ok"], "util_pct"].eq(90).all()
    assert joined.loc[~joined["ok"], ["util_pct", "mem_bytes", "sample_ns"]].isna().all(axis=None)
    assert run.tallies.with_device == run.tallies.joined == run.requests()["ok"].sum()


def test_further_than_a_period_is_empty(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", LOADS, devices=[Waveform()])
    # a GPU lost for three seconds
    rewrite(written.folder, written.devices[~written.devices["temp_c"].between(4.95, 8.05)], DEVICES)
    run = analysis.load(written.folder)
    middle_s = _middle_s(run)
    lost = middle_s.between(4.9 + 0.1001, 8.1 - 0.1001)
    assert run.joined().loc[lost, "temp_c"].isna().all()
    assert run.joined().loc[~middle_s.between(4.9, 8.1), "temp_c"].notna().all()
    assert run.tallies.joined == run.joined()["temp_c"].notna().sum() < run.tallies.with_device


def test_requests_that_the_clock_error_could_move_are_counted(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", LOADS, devices=[Waveform()], error_ns=5_000_000)
    run = analysis.load(written.folder)
    samples_s = np.sort(run.devices["temp_c"].to_numpy())
    boundaries_s = (samples_s[1:] + samples_s[:-1]) / 2
    middle_s = _middle_s(run).to_numpy()
    away_s = np.abs(middle_s[:, None] - boundaries_s[None, :]).min(axis=1)
    assert (run.tallies.with_device, run.tallies.joined) == (len(middle_s), len(middle_s))
    assert run.tallies.near_boundary == (away_s < 0.005).sum()
    assert 0.05 < run.tallies.near_boundary / len(middle_s) < 0.15


def test_joined_keeps_rows_and_columns_of_requests(tmp_path: Path) -> None:
    run = analysis.load(make_run(tmp_path / "run", LOADS, devices=[Waveform(GPU)]).folder)
    pd.testing.assert_frame_equal(run.joined()[run.requests().columns], run.requests())


def test_a_sample_just_a_period_away_still_counts(tmp_path: Path) -> None:
    load = Load("m/a", 100, lambda rng, at_s: np.full(len(at_s), 20.0), seconds=20, late_ms=0.0)
    written = make_run(tmp_path / "run", [load], devices=[Waveform()])
    rewrite(written.folder, written.devices[~written.devices["temp_c"].between(4.95, 8.05)], DEVICES)
    run = analysis.load(written.folder)
    joined, middle_s = run.joined(), _middle_s(run)
    just = ((middle_s - 5.0).abs() < 1e-6) | ((middle_s - 8.0).abs() < 1e-6)
    assert joined.loc[just, "temp_c"].tolist() == pytest.approx([4.9, 8.1])
    assert run.tallies.joined == joined["temp_c"].notna().sum()


def moved_to_the_manifest(written: Written, devices: dict[str, list[str]], keep: bool = False) -> Run:
    """The run as a server would have left it that says no device, with what `--devices` found of each endpoint."""
    manifest = json.loads((written.folder / "run.json").read_text())
    for entry in manifest["endpoints"]:
        entry["devices"] = devices[f"{entry['model']}/{entry['variant']}"]
        entry["device"] = None
    (written.folder / "run.json").write_text(json.dumps(manifest))
    if not keep:
        rewrite(written.folder, written.requests.assign(device=None))
    return analysis.load(written.folder)


def figures(run: Run) -> list[tuple[object, ...]]:
    names = ("joules", "power_w", "util_pct", "mem_peak_bytes", "temp_c", "joules_per_request")
    return [tuple(getattr(step.summary, name) for name in names) for step in run.measured]


def test_rows_that_say_no_device_are_on_the_one_of_their_endpoint(tmp_path: Path) -> None:
    """The same run twice: once each answer named its device, once the manifest alone does."""
    waves = [Waveform("GPU-0", idle_s=3), Waveform("GPU-1", util_pct=20)]
    loads = [Load("m/a", 50, device="GPU-0", failed=0.1, dropped=0.1), Load("m/b", 40, device="GPU-1")]
    said = analysis.load(make_run(tmp_path / "said", loads, devices=waves).folder)
    silent = make_run(tmp_path / "silent", loads, devices=waves)
    bound = moved_to_the_manifest(silent, {"m/a": ["GPU-0"], "m/b": ["GPU-1"]})
    assert figures(bound) == figures(said)
    assert figures(bound)[0][0] is not None
    for name in ("with_device", "joined", "near_boundary"):
        assert getattr(bound.tallies, name) == getattr(said.tallies, name)
    assert [step.tally.devices for step in bound.measured] == [{"GPU-0"}, {"GPU-1"}]
    one, other = said.joined(), bound.joined()
    pd.testing.assert_frame_equal(one[[*STATE, "sample_ns"]], other[[*STATE, "sample_ns"]])
    assert other["util_pct"].notna().sum() == other["ok"].sum()
    assert bound.joined(columns=["seq"])["util_pct"].tolist() == pytest.approx(one["util_pct"].tolist(), nan_ok=True)


def test_an_endpoint_with_a_name_of_its_own_is_on_the_device_that_the_manifest_names_for_it(tmp_path: Path) -> None:
    said = make_run(tmp_path / "said", [Load("old", 50)], devices=[Waveform()])
    entry = said.manifest.endpoints[0]
    entry |= {"name": "old", "model": "m", "variant": "eager"}
    said.manifest.write(said.folder)
    expected = figures(analysis.load(said.folder))
    assert None not in expected[0]
    rewrite(said.folder, said.requests.assign(device=None))
    assert figures(analysis.load(said.folder)) == expected
    entry["devices"] = [entry["device"]]
    said.manifest.write(said.folder)
    assert figures(analysis.load(said.folder)) == expected


def test_of_several_devices_the_energy_is_the_sum_and_no_row_has_one(tmp_path: Path) -> None:
    waves = [Waveform("GPU-0"), Waveform("GPU-1", util_pct=20)]
    written = make_run(tmp_path / "run", [Load("m/a", 50, device="GPU-0")], devices=waves)
    alone = figures(analysis.load(written.folder))[0]
    both = moved_to_the_manifest(written, {"m/a": ["GPU-0", "GPU-1"]})
    joules, _, util, *_ = figures(both)[0]
    assert joules == pytest.approx(2 * alone[0])
    assert util == pytest.approx((90 + 20) / 2)
    assert both.tallies.joined == 0
    assert both.measured[0].tally.devices == {"GPU-0", "GPU-1"}


def test_what_several_hosts_call_cpu_is_the_one_of_the_endpoint(tmp_path: Path) -> None:
    waves = [Waveform("cpu:one", host="one"), Waveform("cpu:two", host="two", util_pct=20)]
    loads = [Load("m/a", 50, device="cpu"), Load("m/b", 50, device="cpu")]
    written = make_run(tmp_path / "run", loads, devices=waves)
    run = moved_to_the_manifest(written, {"m/a": ["cpu:one"], "m/b": ["cpu:two"]}, keep=True)
    assert [step.summary.util_pct for step in run.measured] == [90, 20]
    joined = run.joined()
    assert joined.loc[joined["endpoint"] == "m/b", "util_pct"].eq(20).all()
    assert run.tallies.joined == joined["ok"].sum()
