"""Each request with the state of *its* device at *its* time.

Nearest sample within one sampling period, else empty, as `pandas.merge_asof(by="device",
direction="nearest", tolerance=period)` does it; done here by bisection because each device has its own
period, and because the distance to the next sample tells how many requests the clock error could have
given the wrong one. Clocks are aligned in `devices`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.devices import STATE, Instants, Track


@dataclass(frozen=True, slots=True)
class JoinCounts:
    """What the join could do, for the trust section."""

    with_device: int
    """Requests that name the device that ran them."""
    joined: int
    """Of these, requests that have a sample within one period."""
    near_boundary: int
    """Of these, requests so near to the next sample's realm that the clock error could have mistaken it."""


def join(requests: pd.DataFrame, devices: pd.DataFrame, tracks: Mapping[str, Track]) -> pd.DataFrame:
    """`requests` with the device's columns and `sample_ns`, its sample's time on the load generator's clock."""
    row, sample_ns, _ = _match(requests, tracks)
    found = row >= 0
    states = devices[list(STATE)].take(np.where(found, row, 0)) if len(devices) else devices[list(STATE)]
    # without a sample every column is empty, the integer ones too
    states = states.reset_index(drop=True).reindex(range(len(requests))).where(pd.Series(found))
    states["sample_ns"] = pd.Series(sample_ns, dtype="Int64").where(pd.Series(found))
    return pd.concat([requests, states.set_axis(requests.index)], axis=1)


def count(requests: pd.DataFrame, tracks: Mapping[str, Track]) -> JoinCounts:
    row, _, doubtful = _match(requests, tracks)
    return JoinCounts(int(requests["device"].notna().sum()), int((row >= 0).sum()), int(doubtful.sum()))


def _match(
    requests: pd.DataFrame, tracks: Mapping[str, Track]
) -> tuple[npt.NDArray[np.intp], Instants, npt.NDArray[np.bool_]]:
    """For each request: the row of its sample in `devices` (−1: none), that sample's time, whether in doubt."""
    row = np.full(len(requests), -1, dtype=np.intp)
    sample_ns = np.zeros(len(requests), dtype=np.int64)
    doubtful = np.zeros(len(requests), dtype=np.bool_)
    at_ns = _middle_ns(requests)
    device = requests["device"]
    for name, track in tracks.items():
        mine = np.flatnonzero((device == name).to_numpy(dtype=bool) & (at_ns >= 0))
        if track.period_ns is None or not len(mine):
            continue
        at = at_ns[mine]
        times = track.time_ns
        after = np.searchsorted(times, at).clip(1, len(times) - 1)
        gap_before, gap_after = at - times[after - 1], times[after] - at
        nearest = np.where(gap_after < gap_before, after, after - 1)
        near = np.abs(times[nearest] - at) <= track.period_ns
        row[mine[near]] = track.rows[nearest[near]]
        sample_ns[mine[near]] = times[nearest[near]]
        # the boundary lies halfway between two samples; half the difference of the gaps is the way to it
        doubtful[mine] = near & (np.abs(gap_after - gap_before) < 2 * (track.error_ns or 0))
    return row, sample_ns, doubtful


def _middle_ns(requests: pd.DataFrame) -> Instants:
    """The middle of the service, or −1 where there was none.

    The device worked on the request at some time between sending and answer; the middle is the instant that
    is never further than half the service from it. Without a sent time the instant of the answer must do.
    """
    done = requests["done_ns"].fillna(-1).to_numpy(dtype=np.int64)
    sent = requests["sent_ns"].fillna(-1).to_numpy(dtype=np.int64)
    middle: Instants = np.where((done >= 0) & (sent >= 0), sent + (done - sent) // 2, done)
    return middle
