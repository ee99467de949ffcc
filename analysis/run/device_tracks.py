"""Device samples on the load generator's clock: one `DeviceTrack` per device, and its figures over a window.

Owns the mapping of clocks (`clock` of the manifest), what counts as throttled, and energy. A device's figure
is None where it was not sampled: a short window on a lost GPU has no power rather than none drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tailrate.analysis.run.arrays import filled
from tailrate.analysis.stats.array_types import Floats

Instants = npt.NDArray[np.int64]

STATE = (
    "util_pct", "mem_util_pct", "mem_bytes", "power_w", "energy_j", "temp_c", "sm_mhz", "mem_mhz", "throttle_bits",
    "sm_active_pct", "tensor_active_pct", "dram_active_pct", "own_mem_bytes", "net_in_bps", "net_out_bps",
)  # fmt: skip
"""The columns that describe a device at an instant."""

THROTTLES = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat (software)", 0x40: "heat (hardware)", 0x80: "power brake",
}  # fmt: skip
"""NVML's reasons that lower clocks against the will of the load."""
THROTTLED = sum(THROTTLES)
MOST_HOLE = 0.02
"""Share of a window that may be without samples, for its energy to be told from power."""
IDLE_MOVED = 0.1
"""Share by which idle power after the load may differ from that before it, without being said."""


def throttled_pct(bits: Floats) -> Floats:
    """By sample: 100 where clocks were held down, NaN where it was not said."""
    held: Floats = np.where(np.isnan(bits), np.nan, 100.0 * ((np.nan_to_num(bits).astype(np.int64) & THROTTLED) != 0))
    return held


@dataclass(frozen=True, eq=False)
class DeviceTrack:
    """One device's samples in order of time."""

    device: str
    host: str
    time_ns: Instants
    """On the load generator's clock."""
    rows: npt.NDArray[np.intp]
    """Where each sample stands in `Run.devices`."""
    state: dict[str, Floats]
    period_ns: int | None
    """Median spacing; None with fewer than two samples."""
    error_ns: int | None
    """Bound of the clock offset's error; None where the offset was never measured."""

    @property
    def is_cpu(self) -> bool:
        return self.device.lower().startswith("cpu")

    def within(self, column: str, start_ns: int, end_ns: int) -> Floats:
        """The known values of the window."""
        first, last = np.searchsorted(self.time_ns, [start_ns, end_ns])
        values = self.state[column][first:last]
        return values[~np.isnan(values)]

    def joules(self, start_ns: int, end_ns: int) -> float | None:
        """Energy over the window: the counter's difference, or the integral of power where there is no counter."""
        if self.counter is not None:
            edges = self._covered(self.counter[0], start_ns, end_ns)
            if edges is None:
                return None
            used = float(np.diff(np.interp(edges, *self.counter))[0])
            return used * (end_ns - start_ns) / float(edges[1] - edges[0])
        power = self._known("power_w")
        edges = None if power is None else self._covered(power[0], start_ns, end_ns)
        if power is None or edges is None or self.hole_s(start_ns, end_ns) > MOST_HOLE * (end_ns - start_ns) / 1e9:
            return None
        inside = (power[0] > edges[0]) & (power[0] < edges[1])
        at = np.concatenate([edges[:1], power[0][inside], edges[1:]])
        mean_w = np.trapezoid(np.interp(at, *power), at) / (at[-1] - at[0])
        return float(mean_w) * (end_ns - start_ns) / 1e9

    def hole_s(self, start_ns: int, end_ns: int) -> float:
        """Time of a window that has no power sample within two periods; 0 where a counter bridges it."""
        if self.counter is not None:
            return 0.0
        at = self.time_ns[~np.isnan(self.state["power_w"])]
        at = np.concatenate([[start_ns], at[(at > start_ns) & (at < end_ns)], [end_ns]])
        gaps = np.diff(at)
        return float(gaps[gaps > 2 * (self.period_ns or 0)].sum()) / 1e9

    @cached_property
    def counter(self) -> tuple[Floats, Floats] | None:
        """The energy counter; None where it ever fell, as that of a driver that was started anew."""
        found = self._known("energy_j")
        return found if found is not None and (np.diff(found[1]) >= 0).all() else None

    def _known(self, column: str) -> tuple[Floats, Floats] | None:
        """Times since the first sample and values, where there are values; two make an interval."""
        values = self.state[column]
        known = ~np.isnan(values)
        if np.count_nonzero(known) < 2:
            return None
        return (self.time_ns[known] - self.time_ns[0]).astype(np.float64), values[known]

    def _covered(self, times: Floats, start_ns: int, end_ns: int) -> Floats | None:
        """The part of the window between first and last sample; None if more than two periods are uncovered."""
        start, end = float(start_ns - self.time_ns[0]), float(end_ns - self.time_ns[0])
        slack = 2.0 * (self.period_ns or 0)
        edges = np.array([max(start, times[0]), min(end, times[-1])])
        return edges if edges[0] - start <= slack and end - edges[1] <= slack and edges[1] > edges[0] else None


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """What the devices of one endpoint did over a window; utilisation and clocks are means over them, energy a sum."""

    util_pct: float | None = None
    mem_peak_bytes: int | None = None
    power_w: float | None = None
    joules: float | None = None
    net_joules: float | None = None
    temp_c: float | None = None
    """The hottest sample."""
    sm_mhz: float | None = None
    throttled_pct: float | None = None
    util_max_pct: float | None = None
    sm_active_pct: float | None = None
    tensor_active_pct: float | None = None
    dram_active_pct: float | None = None
    throttled_by: str | None = None
    """Reasons and their shares of the time, the largest first."""


def tracks(samples: Any, clock: Sequence[Mapping[str, Any]], started_ns: int) -> dict[str, DeviceTrack]:
    """Each device's track. A name that two hosts share belongs to neither: whose samples were a request's?"""
    hosts, devices = (samples[name].unify_dictionaries().combine_chunks() for name in ("host", "device"))
    host, device = filled(hosts.indices, -1, np.int32), filled(devices.indices, -1, np.int32)
    names = [*hosts.dictionary.to_pylist(), ""]
    known = np.unique(host)
    time = filled(samples["time_ns"].combine_chunks(), 0, np.int64)
    state = {name: filled(samples[name].combine_chunks(), math.nan, np.float64) for name in STATE}
    found = {}
    for name, code in sorted((name, code) for code, name in enumerate(devices.dictionary.to_pylist())):
        places = np.flatnonzero(device == code)
        mine = np.unique(host[places])
        if len(mine) != 1:
            continue
        entry = _entry(clock, names[mine[0]], alone=len(known) == 1)
        time_ns = time[places]
        if entry is not None:
            time_ns = _on_client(time_ns, entry, started_ns)
        order = np.argsort(time_ns, kind="stable")
        rows = places[order]
        spacing = np.diff(time_ns[order])
        found[name] = DeviceTrack(
            device=name,
            host=names[mine[0]],
            time_ns=time_ns[order],
            rows=rows,
            state={column: values[rows] for column, values in state.items()},
            period_ns=int(np.median(spacing)) if len(spacing) else None,
            error_ns=None if entry is None or entry.get("error_ns") is None else int(entry["error_ns"]),
        )
    return found


def _entry(clock: Sequence[Mapping[str, Any]], host: str, *, alone: bool) -> Mapping[str, Any] | None:
    """The host's entry; one without a host is for all, and a lone entry is a lone host's whatever its name."""
    named = [entry for entry in clock if entry.get("host") in (host, None)]
    if not named and alone and len(clock) == 1:
        named = [clock[0]]
    return named[0] if named else None


def _on_client(time_ns: Instants, entry: Mapping[str, Any], started_ns: int) -> Instants:
    """Device time minus the offset, which holds at `at_ns` (else at the start) and drifts from there."""
    shifted: Instants = time_ns - int(entry.get("offset_ns") or 0)
    drift = float(entry.get("drift_ppm") or 0.0) * 1e-6
    elapsed = shifted - int(entry.get("at_ns") or started_ns)  # by the device's clock
    shifted -= np.rint(elapsed * (drift / (1 + drift))).astype(np.int64)
    return shifted


def over(
    devices: Sequence[DeviceTrack], start_ns: int, end_ns: int, idle: Sequence[tuple[int, int]] = ()
) -> DeviceFigures:
    """The figures of these devices together over [start, end); `idle` are windows without load before it."""
    if not devices or end_ns <= start_ns:
        return DeviceFigures()

    def each(column: str) -> list[Floats]:
        found = [track.within(column, start_ns, end_ns) for track in devices]
        return found if all(map(len, found)) else []

    def mean(column: str) -> float | None:
        values = each(column)
        return float(np.mean([value.mean() for value in values])) if values else None

    joules = _total([track.joules(start_ns, end_ns) for track in devices])
    length_s = (end_ns - start_ns) / 1e9
    idle_w = [_idle_w(track, idle) for track in devices]
    total_idle_w = _total(idle_w)
    power = each("power_w")
    mean_w = float(sum(value.mean() for value in power)) if power else None
    if joules is not None:
        mean_w = joules / length_s  # samples that come late make their plain mean wrong
    memory = each("mem_bytes")
    heat = each("temp_c")
    bits = np.concatenate(each("throttle_bits") or [np.empty(0)]).astype(np.int64)
    highest = each("util_pct")
    return DeviceFigures(
        util_pct=mean("util_pct"),
        mem_peak_bytes=int(sum(value.max() for value in memory)) if memory else None,
        power_w=mean_w,
        joules=joules,
        net_joules=None if joules is None or total_idle_w is None else joules - total_idle_w * length_s,
        temp_c=float(max(value.max() for value in heat)) if heat else None,
        sm_mhz=mean("sm_mhz"),
        throttled_pct=100 * float(np.mean(bits & THROTTLED != 0)) if len(bits) else None,
        util_max_pct=float(max(value.max() for value in highest)) if highest else None,
        sm_active_pct=mean("sm_active_pct"),
        tensor_active_pct=mean("tensor_active_pct"),
        dram_active_pct=mean("dram_active_pct"),
        throttled_by=_reasons(bits),
    )


def _reasons(bits: npt.NDArray[np.int64]) -> str | None:
    shares = {name: float(np.mean(bits & bit != 0)) for bit, name in THROTTLES.items()} if len(bits) else {}
    found = sorted(((share, name) for name, share in shares.items() if share), reverse=True)
    return ", ".join(f"{name} {share:.0%}".replace("%", " %") for share, name in found) or None


def idle_moved(track: DeviceTrack, windows: Sequence[tuple[int, int]]) -> tuple[float, float] | None:
    """Idle watts before the first step and after the last, where they differ; None where not, or not known."""
    if len(windows) < 2:
        return None
    before, after = _idle_w(track, windows[:1]), _idle_w(track, windows[-1:])
    if before is None or after is None:
        return None
    return (before, after) if abs(after - before) > IDLE_MOVED * before else None


def _idle_w(track: DeviceTrack, windows: Sequence[tuple[int, int]]) -> float | None:
    found = [(track.joules(*window), (window[1] - window[0]) / 1e9) for window in windows]
    known = [(joules, seconds) for joules, seconds in found if joules is not None]
    return sum(joules for joules, _ in known) / sum(seconds for _, seconds in known) if known else None


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) and known else None
