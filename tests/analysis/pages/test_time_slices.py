"""What devices said, by slice of the time line, against pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tailrate.analysis.pages.report.charts.time_slices import DEVICE_LINES, Samples, device_slices
from tailrate.analysis.run.device_tracks import THROTTLED
from tailrate.analysis.run.time_axis import Timeline

TOGETHER = ["mem_bytes", "power_w"]
SAID = ["util_pct", "mem_bytes", "power_w", "sm_mhz", "temp_c"]


def drawn(rng: np.random.Generator) -> list[Samples]:
    """Up to three devices, a third of whose figures are missing, some of them out of the run."""
    found: list[Samples] = []
    for number in range(rng.integers(1, 4)):
        n = rng.integers(1, 50)
        state = {name: np.where(rng.random(n) < 0.3, np.nan, 100 * rng.random(n)) for name in SAID}
        state["throttle_bits"] = np.where(rng.random(n) < 0.3, np.nan, rng.integers(0, 512, n).astype(float))
        found.append((f"gpu:{number}", np.sort(rng.integers(-5 * 10**9, 70 * 10**9, n)), state))
    return found


def by_pandas(line: Timeline, devices: list[Samples]) -> pd.DataFrame:
    pieces = [
        pd.DataFrame({"slice": (times_ns - line.zero_ns) // line.slice_ns, "device": device, **state})
        for device, times_ns, state in devices
    ]
    rows = pd.concat(pieces)
    rows = rows[(rows["slice"] >= 0) & (rows["slice"] < line.slices)]
    bits = rows["throttle_bits"]
    rows["throttled_pct"] = (bits.fillna(0).astype(int) & THROTTLED).gt(0).mul(100.0).where(bits.notna())
    each = rows.groupby(["slice", "device"])[list(DEVICE_LINES)].mean().groupby("slice")
    found = each.mean()
    found[TOGETHER] = each[TOGETHER].sum(min_count=1)
    apart = [name for name in DEVICE_LINES if name not in TOGETHER]
    ends = rows.groupby("slice")[apart]
    return found.join(ends.max().add_suffix("_most")).join(ends.min().add_suffix("_least")).reindex(range(line.slices))


@pytest.mark.parametrize("seed", range(40))
def test_devices_by_slice_are_what_pandas_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    line, devices = Timeline.over(1000, 1000 + int(rng.integers(1, 60)) * 10**9), drawn(rng)
    found, wanted = device_slices(line, devices), by_pandas(line, devices)
    assert bool(found) == any(((at >= 1000) & (at < 1000 + line.slices * line.slice_ns)).any() for _, at, _ in devices)
    for name, values in found.items():
        np.testing.assert_allclose(values, wanted[name].to_numpy(float), rtol=1e-12, err_msg=name)
    assert not found or set(found) == set(wanted)
