"""What happened when: requests and device samples gathered into equal slices of time.

A run of ten million requests becomes at most a thousand slices before any of it is drawn. Owns the
gathering, in pandas and numpy; draws nothing. Times are seconds since the start of the run on the load
generator's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.devices import Track

DEVICE_LINES = ("util_pct", "mem_bytes", "power_w")

_SLICES = 1000
_ROUND_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
_ROUTINE = ("step", "row", "segment", "seal", "start", "finish", "clock", "idle", "load_cpu", "run")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Equal slices of a run."""

    zero_ns: int
    seconds: float
    slice_s: int

    @classmethod
    def over(cls, first_ns: int, last_ns: int) -> Timeline:
        seconds = max(1.0, (last_ns - first_ns) / 1e9)
        least = seconds / _SLICES
        return cls(first_ns, seconds, next((s for s in _ROUND_S if s >= least), int(least) + 1))

    def at(self, time_ns: float) -> float:
        return (time_ns - self.zero_ns) / 1e9

    def slices(self, times_s: Floats) -> npt.NDArray[np.int64]:
        return np.floor_divide(times_s, self.slice_s).astype(np.int64)

    def middle(self, number: int) -> float:
        return min((number + 0.5) * self.slice_s, self.seconds)


def latencies(
    line: Timeline, intended_ns: pd.Series[Any], latency_ms: Floats, endpoint: pd.Series[Any]
) -> pd.DataFrame:
    """Per slice and endpoint: `n`, `failed`, `p50_ms`, `p99_ms` over every arrival, failures as infinity."""
    names = endpoint.astype("category")
    code = names.cat.codes.to_numpy()
    part = line.slices((intended_ns.to_numpy(dtype=np.int64) - line.zero_ns) / 1e9)
    order = np.lexsort((latency_ms, part, code))
    code, part, value = code[order], part[order], latency_ms[order]
    changes = np.flatnonzero((np.diff(code) != 0) | (np.diff(part) != 0)) + 1
    first = np.concatenate([[0], changes]) if len(value) else np.empty(0, dtype=np.int64)
    n = np.diff(np.append(first, len(value)))

    def quantile(q: float) -> Floats:
        found: Floats = value[first + np.ceil(q * (n - 1)).astype(np.int64)]
        return found

    failed = np.add.reduceat(np.isinf(value), first, dtype=np.int64) if len(value) else n
    return pd.DataFrame(
        {
            "endpoint": [str(names.cat.categories[k]) for k in code[first]],
            "slice": part[first],
            "n": n,
            "failed": failed,
            "p50_ms": quantile(0.50),
            "p99_ms": quantile(0.99),
        }
    )


def device_slices(line: Timeline, tracks: Sequence[Track]) -> pd.DataFrame:
    """Per slice over these devices: mean and largest `util_pct`, summed `mem_bytes` and `power_w`."""
    pieces = [
        pd.DataFrame({"slice": line.slices((track.time_ns - line.zero_ns) / 1e9), "device": track.device}).assign(
            **{column: track.state[column] for column in DEVICE_LINES}
        )
        for track in tracks
    ]
    frame = pd.concat(pieces) if pieces else pd.DataFrame(columns=["slice", "device", *DEVICE_LINES], dtype="float64")
    frame = frame[(frame["slice"] >= 0) & (frame["slice"] * line.slice_s < line.seconds)]
    each = frame.groupby(["slice", "device"])[list(DEVICE_LINES)].mean().groupby("slice")
    return pd.DataFrame(
        {
            "util_pct": each["util_pct"].mean(),
            "util_max_pct": frame.groupby("slice")["util_pct"].max(),
            "mem_bytes": each["mem_bytes"].sum(min_count=1),
            "power_w": each["power_w"].sum(min_count=1),
        }
    ).reset_index()


def notable(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Events that a reader should see: not the starts and ends of steps or the counts of rows."""
    return [
        event
        for event in events
        if not str(event["event"]).startswith(_ROUTINE) and isinstance(event.get("time_ns"), int)
    ]
