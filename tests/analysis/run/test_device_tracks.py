import math
from pathlib import Path

import numpy as np
import pytest
from folders import GPU, START_NS, Load, Waveform, make_run

from tailrate import analysis
from tailrate.analysis.run.device_tracks import DeviceFigures, over

SECOND = 10**9
LOADS = [Load("m/a", 20, seconds=30)]


def _window(start_s: float, end_s: float) -> tuple[int, int]:
    return START_NS + round(start_s * 1e9), START_NS + round(end_s * 1e9)


@pytest.mark.parametrize("counter", [True, False])
@pytest.mark.parametrize(("start_s", "end_s"), [(0.5, 10.5), (3.21, 7.77), (12.04, 29.99)])
def test_energy_is_the_integral_of_power(tmp_path: Path, counter: bool, start_s: float, end_s: float) -> None:
    wave = Waveform(counter=counter)
    run = analysis.load(make_run(tmp_path / "run", LOADS, devices=[wave], offset_ns=1_700_000_000).folder)
    energy = wave.energy_j(np.array([start_s, end_s]))
    # linear between samples 0.1 s apart: an error of at most period² ÷ 8 × slope of power, per edge
    assert run.tracks[GPU].joules(*_window(start_s, end_s)) == pytest.approx(np.diff(energy)[0], abs=0.15)


def test_a_counter_that_restarts_gives_way_to_power(tmp_path: Path) -> None:
    wave = Waveform()
    run = analysis.load(make_run(tmp_path / "run", LOADS, devices=[wave]).folder)
    counter = run.tracks[GPU].state["energy_j"]
    run.tracks[GPU].state["energy_j"] = np.where(np.arange(len(counter)) < 150, counter, counter - 1000.0)
    assert run.tracks[GPU].joules(*_window(5, 15)) == pytest.approx(2000.0, abs=0.15)


def test_what_was_not_sampled_has_no_energy(tmp_path: Path) -> None:
    run = analysis.load(make_run(tmp_path / "run", LOADS, devices=[Waveform()]).folder)
    assert run.tracks[GPU].joules(*_window(25, 32)) is None
    assert run.tracks[GPU].joules(*_window(-9, 2)) is None
    run = analysis.load(make_run(tmp_path / "mute", LOADS, devices=[Waveform(counter=False, power=False)]).folder)
    assert run.tracks[GPU].joules(*_window(5, 15)) is None
    assert run.steps.loc[0, ["joules", "power_w", "net_joules_per_request"]].isna().all()


def test_a_gap_at_the_edge_within_two_periods_is_filled(tmp_path: Path) -> None:
    run = analysis.load(make_run(tmp_path / "run", LOADS, devices=[Waveform(counter=False)]).folder)
    idle_starts = START_NS - 5 * SECOND
    assert run.tracks[GPU].joules(idle_starts - SECOND // 10, idle_starts + 2 * SECOND) == pytest.approx(40 * 2.1)


def test_figures_of_a_window(tmp_path: Path) -> None:
    run = analysis.load(make_run(tmp_path / "run", LOADS, devices=[Waveform()], offset_ns=-5 * SECOND).folder)
    start, end = _window(10, 20)
    idle = [(START_NS - 5 * SECOND, START_NS)]
    figures = over([run.tracks[GPU]], start, end, idle)
    # samples 0.1 s apart from −5 s on: the window holds numbers 150 to 249
    assert figures.util_pct == 90
    assert figures.mem_peak_bytes == 1_000_000_000 + 249
    assert figures.power_w == pytest.approx(200.0)
    assert figures.joules == pytest.approx(2000.0, abs=0.01)
    # the last tenth of a second before the load is interpolated towards the loaded power
    assert figures.net_joules == pytest.approx(2000.0 - 400.0, abs=20.0)
    assert figures.temp_c == pytest.approx(19.9)
    assert figures.sm_mhz == 1410
    assert figures.throttled_pct == 25  # every fourth sample has bit 0x4; bit 0x1 means idle


def test_two_devices_add_up(tmp_path: Path) -> None:
    waves = [Waveform("GPU-0"), Waveform("GPU-1", util_pct=30)]
    run = analysis.load(make_run(tmp_path / "run", LOADS, devices=waves).folder)
    one, both = (over(found, *_window(0, 10)) for found in ([run.tracks["GPU-0"]], list(run.tracks.values())))
    assert both.util_pct == 60
    assert one.joules is not None
    assert both.joules == pytest.approx(2 * one.joules)
    assert both.mem_peak_bytes == 2 * (one.mem_peak_bytes or 0)


def test_no_device_is_nothing_known(tmp_path: Path) -> None:
    assert over([], *_window(0, 10)) == DeviceFigures()
    run = analysis.load(make_run(tmp_path / "run", LOADS, devices=[Waveform(util_pct=None)]).folder)
    assert over(list(run.tracks.values()), *_window(0, 10)).util_pct is None
    assert over(list(run.tracks.values()), *_window(100, 110)) == DeviceFigures()


def test_a_name_on_two_hosts_belongs_to_neither(tmp_path: Path) -> None:
    waves = [Waveform("cpu", host="a"), Waveform("cpu", host="b"), Waveform("GPU-0", host="a")]
    run = analysis.load(make_run(tmp_path / "run", LOADS, devices=waves).folder)
    assert list(run.tracks) == ["GPU-0"]


@pytest.mark.parametrize("drift_ppm", [0.0, 50.0])
def test_clocks_are_aligned(tmp_path: Path, drift_ppm: float) -> None:
    offset = {"offset_ns": 1_700_000_000, "drift_ppm": drift_ppm}
    run = analysis.load(make_run(tmp_path / "run", LOADS, devices=[Waveform()], **offset).folder)  # type: ignore[arg-type]
    track = run.tracks[GPU]
    true_ns = START_NS + np.rint(track.state["temp_c"] * 1e9).astype(np.int64)
    assert np.abs(track.time_ns - true_ns).max() <= 2  # rounding
    assert track.period_ns == pytest.approx(1e8, abs=10)
    assert track.error_ns == 100_000


def test_an_unmeasured_clock_has_no_error_bound(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", LOADS, devices=[Waveform(), Waveform("GPU-1", host="other")])
    written.manifest.clock = written.manifest.clock[:1]
    written.manifest.write(written.folder)
    tracks = analysis.load(written.folder).tracks
    assert tracks[GPU].error_ns == 100_000
    assert tracks["GPU-1"].error_ns is None
    assert math.isclose(tracks["GPU-1"].state["temp_c"][50], 0.0, abs_tol=1e-9)


def test_a_gap_at_the_edge_is_filled_where_there_is_a_counter_too(tmp_path: Path) -> None:
    run = analysis.load(make_run(tmp_path / "run", LOADS, devices=[Waveform()]).folder)
    idle_starts = START_NS - 5 * SECOND
    assert run.tracks[GPU].joules(idle_starts - SECOND // 10, idle_starts + 2 * SECOND) == pytest.approx(40 * 2.1)
