"""Energy of a GPU as we count it, held against what nvidia-smi said of it in the same minute (see `recorded_gpu`)."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from recorded_gpu import NVIDIA_SMI, NVML

from tailrate.analysis.run.device_tracks import STATE, DeviceTrack, over, tracks

MINUTE_NS = (3_000_000_000, 63_000_000_000)


def track(without: str = "") -> DeviceTrack:
    found = pd.read_csv(NVML)
    if without:
        found[without] = np.nan
    found = found.reindex(columns=["time_ns", "host", "device", *STATE])
    columns = {name: pa.array(found[name], from_pandas=True) for name in STATE}
    names = {name: pa.array(found[name]).dictionary_encode() for name in ("host", "device")}
    table = pa.table({"time_ns": pa.array(found["time_ns"])} | names | columns)
    return tracks(table, [], 0)["GPU-0"]


def smi_joules(column: str) -> float:
    """By the rule of trapezia, over the same minute."""
    found = pd.read_csv(NVIDIA_SMI)
    at = np.linspace(*MINUTE_NS, 600_001)
    return float(np.trapezoid(np.interp(at, found["time_ns"], found[column]), at)) / 1e9


@pytest.mark.parametrize("without", ["", "energy_j"], ids=["by the counter", "by power"])
def test_a_minute_s_energy_is_nvidia_smi_s_within_a_hundredth(without):
    """While thirty variants were compiled and run: power moved between 84 and 690 W."""
    mine = track(without).joules(*MINUTE_NS)
    assert mine == pytest.approx(smi_joules("power.draw.instant"), rel=0.01)
    assert mine > 15_000  # where some of a minute were lost, a hundredth of little would be asked


def test_what_only_hopper_counts_is_there_and_within_bounds():
    figures = over([track()], *MINUTE_NS)
    assert figures.sm_active_pct is not None
    assert figures.util_pct is not None
    # utilisation is the share of time in which anything ran, of which the SMs worked in a part
    assert 0 < figures.sm_active_pct < figures.util_pct <= 100
    assert figures.throttled_pct == 0
