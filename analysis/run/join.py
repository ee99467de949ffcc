"""Each request with the state of *its* device at *its* time.

Nearest sample within one sampling period, else empty, as `pandas.merge_asof(by="device",
direction="nearest", tolerance=period)` does it, for who wants the rows; the sums over all of them are `kernel`'s, by
the same rule. Clocks are aligned in `devices`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tailrate.analysis.run.device_tracks import STATE, DeviceTrack, Instants

if TYPE_CHECKING:
    import pandas as pd


def join(requests: pd.DataFrame, devices: pd.DataFrame, tracks: Mapping[str, DeviceTrack]) -> pd.DataFrame:
    """`requests` with the device's columns and `sample_ns`, its sample's time on the load generator's clock."""
    import pandas as pd

    row, sample_ns = _match(requests, tracks)
    found = row >= 0
    states = devices[list(STATE)].take(np.where(found, row, 0)) if len(devices) else devices[list(STATE)]
    # without a sample every column is empty, the integer ones too
    states = states.reset_index(drop=True).reindex(range(len(requests))).where(pd.Series(found))
    states["sample_ns"] = pd.Series(sample_ns, dtype="Int64").where(pd.Series(found))
    return pd.concat([requests, states.set_axis(requests.index)], axis=1)


def _match(requests: pd.DataFrame, tracks: Mapping[str, DeviceTrack]) -> tuple[npt.NDArray[np.intp], Instants]:
    """For each request: the row of its sample in `devices` (−1: none), and that sample's time."""
    row = np.full(len(requests), -1, dtype=np.intp)
    sample_ns = np.zeros(len(requests), dtype=np.int64)
    at_ns = _middle_ns(requests)
    device = requests["device"]
    for name, track in tracks.items():
        mine = np.flatnonzero((device == name).to_numpy(dtype=bool) & (at_ns >= 0))
        if track.period_ns is None or not len(mine):
            continue
        at = at_ns[mine]
        times = track.time_ns
        after = np.searchsorted(times, at).clip(1, len(times) - 1)
        closest = np.where(times[after] - at < at - times[after - 1], after, after - 1)
        near = np.abs(times[closest] - at) <= track.period_ns
        row[mine[near]] = track.rows[closest[near]]
        sample_ns[mine[near]] = times[closest[near]]
    return row, sample_ns


def _middle_ns(requests: pd.DataFrame) -> Instants:
    """The middle of the service, or −1 where there was none.

    The device worked on the request at some time between sending and answer; the middle is the instant that
    is never further than half the service from it. Without a sent time the instant of the answer must do.
    """
    done = requests["done_ns"].fillna(-1).to_numpy(dtype=np.int64)
    sent = requests["sent_ns"].fillna(-1).to_numpy(dtype=np.int64)
    middle: Instants = np.where((done >= 0) & (sent >= 0), sent + (done - sent) // 2, done)
    return middle
