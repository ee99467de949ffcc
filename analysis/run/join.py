"""Each request with the state of *its* device at *its* time.

Nearest sample within one sampling period, else empty, as `pandas.merge_asof(by="device",
direction="nearest", tolerance=period)` does it, for who wants the rows; the sums over all of them are `kernel`'s, by
the same rule. Clocks are aligned in `devices`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tailrate.analysis.records.manifest import Manifest, endpoint_name
from tailrate.analysis.records.rows import is_success
from tailrate.analysis.run.columns import WHOLE
from tailrate.analysis.run.device_tracks import STATE, DeviceTrack, Instants

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class OwnDevices:
    """Which device a request was on, where its answer does not say, or says it by a name that several hosts use.

    `of` has the devices that each endpoint is on, as the manifest's `devices` name them and their samples are called.
    Of one alone, every success without a device was on that; answers that say `cpu` were on `cpu:HOST` where that is
    among them.
    """

    of: Mapping[str, tuple[str, ...]]

    @classmethod
    def said_by(cls, manifest: Manifest) -> OwnDevices:
        found = {endpoint_name(entry): entry.get("devices") for entry in manifest.endpoints}
        return cls({name: tuple(map(str, devices)) for name, devices in found.items() if isinstance(devices, list)})

    def device(self, endpoint: str, said: str) -> str:
        """Of a request whose answer said that (empty: nothing); empty where it is not known."""
        mine = self.of.get(endpoint, ())
        if said:
            longer = [name for name in mine if name.startswith(f"{said}:")]
            return longer[0] if len(longer) == 1 and said not in mine else said
        return mine[0] if len(mine) == 1 else ""

    def codes(self, texts: Mapping[str, tuple[Any, list[str]]]) -> tuple[Any, list[str]]:
        """Of columns that are numbers of words (−1: none): each row's own device, and the words for those."""
        device, devices = texts["device"]
        if not self.of:
            return device, devices
        (endpoint, endpoints), (status, statuses) = texts["endpoint"], texts["status"]
        words = list(devices)
        table = np.full((len(endpoints) + 1, len(devices) + 1), -1, dtype=np.int64)
        table[:, :-1] = np.arange(len(devices))
        for row, name in enumerate(endpoints):
            for column, said in enumerate((*devices, "")):
                if own := self.device(name, said):
                    if own not in words:
                        words.append(own)
                    table[row, column] = words.index(own)
        answered = np.array([*map(is_success, statuses), False])[status] | (device >= 0)  # −1 is the last of each
        return np.where(answered, table[endpoint, device], -1), words

    def column(self, rows: pd.DataFrame) -> npt.NDArray[Any]:
        """Each row's own device, None where it is not known."""
        known = rows["device"].astype(object)
        said: npt.NDArray[Any] = known.where(known.notna(), None).to_numpy(dtype=object)
        if not self.of:
            return said
        each = zip(rows["endpoint"].astype(object), said, rows["status"].astype(object), strict=True)
        own = [
            self.device(str(name), word or "") if word or is_success(str(status)) else "" for name, word, status in each
        ]
        return np.array([word or None for word in own], dtype=object)


def join(
    requests: pd.DataFrame, devices: pd.DataFrame, tracks: Mapping[str, DeviceTrack], own: OwnDevices
) -> pd.DataFrame:
    """`requests` with the device's columns and `sample_ns`, its sample's time on the load generator's clock."""
    import pandas as pd

    row, sample_ns = _match(requests, tracks, own.column(requests))
    found = row >= 0
    states = devices[list(STATE)].take(np.where(found, row, 0)) if len(devices) else devices[list(STATE)]
    # without a sample every column is empty, the integer ones too
    states = states.reset_index(drop=True).reindex(range(len(requests))).where(pd.Series(found))
    states["sample_ns"] = pd.Series(sample_ns, dtype="Int64").where(pd.Series(found))
    return pd.concat([requests, states.set_axis(requests.index)], axis=1)


def _match(
    requests: pd.DataFrame, tracks: Mapping[str, DeviceTrack], device: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.intp], Instants]:
    """For each request, of this device: the row of its sample in `devices` (−1: none), and that sample's time."""
    row = np.full(len(requests), -1, dtype=np.intp)
    sample_ns = np.zeros(len(requests), dtype=np.int64)
    at_ns = _middle_ns(requests)
    for name, track in tracks.items():
        mine = np.flatnonzero((device == name).astype(bool) & (at_ns >= 0))
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
    done = requests[WHOLE].fillna(-1).to_numpy(dtype=np.int64)
    sent = requests["sent_ns"].fillna(-1).to_numpy(dtype=np.int64)
    middle: Instants = np.where((done >= 0) & (sent >= 0), sent + (done - sent) // 2, done)
    return middle
