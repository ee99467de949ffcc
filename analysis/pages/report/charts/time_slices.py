"""What happened when: latencies and device samples in the slices of the run's time line, ready to be drawn.

Nothing here looks at a row: arrivals were counted while the report was made, in bins 3 % wide. Draws nothing.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tailrate.analysis.run.bins import BINS, SPLIT
from tailrate.analysis.run.device_tracks import throttled_pct
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.stats.array_types import Floats
from tailrate.analysis.steps.curves import EDGES_MS

if TYPE_CHECKING:
    import pandas as pd

    from tailrate.analysis.verdicts.run import Run

DEVICE_LINES = ("util_pct", "mem_bytes", "power_w", "sm_mhz", "temp_c", "throttled_pct")
_TOGETHER = ("mem_bytes", "power_w")
"""Summed over the devices; the others are a mean, with the largest and the smallest beside it."""
_APART = tuple(name for name in DEVICE_LINES if name not in _TOGETHER)
_ROUTINE = (
    "step", "row", "segment", "seal", "start", "finish", "clock", "idle", "load_cpu", "run",
    "process", "server", "minute", "retired", "disk",
)  # fmt: skip
_HEAT = 1 << (SPLIT - 3)
"""Bins to one row of the heat map, which is an eighth of an octave."""

Samples: TypeAlias = tuple[str, npt.NDArray[np.int64], Mapping[str, Floats]]
"""A device, the instants of its samples, and what they say by column; NaN where a sample says nothing."""
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """One endpoint over the time line; percentiles are over every arrival, failures infinitely late."""

    n: Counts
    failed: Counts
    answered: Counts
    """Successes by when their answer came."""
    p50_ms: Floats
    p99_ms: Floats
    """NaN where nothing arrived; good to 3 %."""
    counts: Counts
    """Successes by slice and bin of latency."""
    tokens: Floats | None = None
    """By when they came, of an endpoint that streams."""

    def rows(self) -> tuple[int, int] | None:
        """The bins between which its successes lie, as whole rows of a heat map."""
        used = np.flatnonzero(self.counts.sum(axis=0))
        return (int(used[0]) // _HEAT * _HEAT, -(-int(used[-1] + 1) // _HEAT) * _HEAT) if len(used) else None


def slices(run: Run, line: Timeline) -> dict[str, Slices]:
    """By endpoint."""
    found: dict[str, Slices] = {}
    tallies = run.tallies.groups
    for endpoint in dict.fromkeys(name for _, name in tallies):
        counts = np.zeros((line.slices, BINS + 1), dtype=np.int64)
        answered = np.zeros(line.slices, dtype=np.int64)
        for (_, name), tally in tallies.items():
            if name == endpoint:
                counts[tally.first : tally.first + len(tally.by_time)] += tally.by_time
                answered += tally.answered_by_time
        found[endpoint] = _slices(counts, answered, _tokens(run, endpoint))
    return found


def _tokens(run: Run, endpoint: str) -> Floats | None:
    found = [tally.tokens_by_time for (_, name), tally in run.counted_streams.tallies.items() if name == endpoint]
    return np.sum(found, axis=0) if found else None


def from_rows(rows: pd.DataFrame, line: Timeline) -> dict[str, Slices]:
    """The same of rows of requests, by endpoint."""
    found: dict[str, Slices] = {}
    for endpoint, mine in rows.groupby("endpoint", observed=True):
        ok = mine["ok"].to_numpy(dtype=bool)
        intended_ns, latency_ms = mine["intended_ns"].to_numpy(dtype=np.int64), mine["latency_ms"].to_numpy(np.float64)
        bins = np.searchsorted(EDGES_MS, latency_ms, side="right") - 1
        bins = np.where(ok, np.clip(bins, 0, BINS - 1), BINS)
        places = np.clip(line.numbers(intended_ns), 0, line.slices - 1)
        counts = np.bincount(places * (BINS + 1) + bins, minlength=line.slices * (BINS + 1))
        done_ns = intended_ns[ok] + np.rint(1e6 * latency_ms[ok]).astype(np.int64)
        done = np.clip(line.numbers(done_ns), 0, line.slices - 1)
        answered = np.bincount(done, minlength=line.slices)
        found[str(endpoint)] = _slices(counts.reshape(line.slices, BINS + 1), answered)
    return found


def _slices(counts: Counts, answered: Counts, tokens: Floats | None = None) -> Slices:
    reached = np.cumsum(counts, axis=1)
    middles = np.append(np.sqrt(EDGES_MS[1:] * EDGES_MS[:-1]), np.inf)
    p50, p99 = (_quantiles(reached, middles, q) for q in (0.5, 0.99))
    return Slices(reached[:, -1], counts[:, BINS], answered, p50, p99, counts[:, :BINS], tokens)


def _quantiles(reached: Counts, values: Floats, q: float) -> Floats:
    """Of each row of running counts, the value at the order statistic that the report would take."""
    n = reached[:, -1]
    place = np.ceil(q * (n - 1)).astype(np.int64)
    found = values[np.argmax(reached > place[:, None], axis=1)]
    return np.where(n > 0, found, np.nan)


def heat(counts: Counts, first: int, last: int) -> bytes:
    """A grey PNG of these bins over time, upside up: how many of a slice's successes took how long, 15 is all.

    Each slice is held against its own fullest bin, so that a low rate shows its distribution as a high one does; the
    square root lets the few slow ones be seen.
    """
    rows = counts[:, first:last].reshape(len(counts), -1, _HEAT).sum(axis=2)
    most = np.maximum(rows.max(axis=1, keepdims=True), 1)
    shades = np.where(rows > 0, np.maximum(2, np.round(15 * np.sqrt(rows / most))), 0).astype(np.uint8).T[::-1]
    if shades.shape[1] % 2:
        shades = np.pad(shades, ((0, 0), (0, 1)))
    packed = (shades[:, ::2] << 4) | shades[:, 1::2]
    lines = np.pad(packed, ((0, 0), (1, 0))).tobytes()  # each begins with its filter: none

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", len(counts), len(shades), 4, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines, 9, 15)) + chunk(b"IEND", b"")
    )


def device_slices(line: Timeline, devices: Iterable[Samples]) -> dict[str, Floats]:
    """By slice over these devices: each of `DEVICE_LINES`, and the largest and smallest of what is not summed.

    NaN where nothing was said; empty where no sample lies on the line.
    """
    means: dict[str, list[Floats]] = {name: [] for name in DEVICE_LINES}
    ends = {f"{name}_{end}": np.full(line.slices, np.nan) for name in _APART for end in ("most", "least")}
    for _, times_ns, state in devices:
        places = line.numbers(times_ns)
        inside = (places >= 0) & (places < line.slices)
        if not inside.any():
            continue
        state = {**state, "throttled_pct": throttled_pct(state["throttle_bits"])}
        for name, said in means.items():
            said.append(line.means(times_ns, state[name]))
            if name in _APART:
                np.fmax.at(ends[f"{name}_most"], places[inside], state[name][inside])
                np.fmin.at(ends[f"{name}_least"], places[inside], state[name][inside])
    if not means["util_pct"]:
        return {}
    return {name: _over_devices(np.array(each), name in _TOGETHER) for name, each in means.items()} | ends


def _over_devices(each: Floats, together: bool) -> Floats:
    """Sum or mean of those that said something."""
    known = (~np.isnan(each)).sum(axis=0)
    found = np.full(each.shape[1], np.nan)
    np.divide(np.nansum(each, axis=0), 1 if together else known, out=found, where=known > 0)
    return found


def notable(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Events that a reader should see: not the starts and ends of steps or the counts of rows."""
    return [
        event
        for event in events
        if not str(event["event"]).startswith(_ROUTINE) and isinstance(event.get("time_ns"), int)
    ]
