"""What a run did by the minute: one `Series` per figure and subject, all on the cells of one time line.

A cell is a minute, of runs under an hour a sixtieth of them but ten seconds at least, of runs over half a day as long
as the slices that arrivals were counted in. A cell without a value is a hole (NaN), never a zero: time that belongs to
no step, settle time, gaps between a crash and its resumption, figures that nobody recorded. Owns what is recorded of
what and in which unit; what a series did is `drift`'s.

Percentiles come from counts in bins 3 % wide, within which arrivals are taken to lie evenly: of a latency that spreads
over several bins they are good to a few tenths of a per cent, far less than what chance does to P99 of a minute.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.records.manifest import settled_ns
from tailrate.analysis.records.objective import STREAM_FIGURES
from tailrate.analysis.run.bins import BINS
from tailrate.analysis.run.device_tracks import throttled_pct
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.stats.array_types import Floats, Ints
from tailrate.analysis.steps.curves import in_bins

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

LEAST_IN_CELL = 20
"""Arrivals under which a cell has no percentile."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure: how it is called, and what a change of it takes to be worth a sentence."""

    said: str
    unit: str
    by: str = "median"
    """What a run of cells is taken by: leaks show in the least, rare errors in the mean."""
    relative: bool = True
    """Whether changes are shares of the level, or in its own unit."""
    factor: bool = False
    """Whether what disturbs it multiplies it, so that its logarithm is what varies evenly."""
    matters: float | None = None
    """The smallest step, or drift over its whole course; None: shown, not judged."""


QUANTITIES: Mapping[str, Quantity] = {
    "p99_ms": Quantity("P99", "ms", factor=True, matters=0.03),
    "p50_ms": Quantity("P50", "ms", factor=True, matters=0.03),
    "ttft_p99_ms": Quantity("TTFT P99", "ms", factor=True, matters=0.03),
    "tpot_p99_ms": Quantity("TPOT P99", "ms", factor=True, matters=0.03),
    "error_share": Quantity("errors", "%", by="mean", relative=False, matters=0.001),
    "achieved_rps": Quantity("achieved rate", "/s", by="mean", matters=0.02),
    "memory_bytes": Quantity("memory", "bytes", by="least", matters=0.005),
    "own_memory_bytes": Quantity("the server's own memory", "bytes", by="least", matters=0.005),
    "host_memory_bytes": Quantity("host memory", "bytes", by="least", matters=0.005),
    "util_pct": Quantity("use", "%", relative=False, matters=5.0),
    "power_w": Quantity("power", "W", matters=0.05),
    "sm_mhz": Quantity("clock", "MHz", matters=0.02),
    "temp_c": Quantity("temperature", "°C", relative=False),
    "throttled_pct": Quantity("clocks held down", "%", by="mean", relative=False),
    "rss_bytes": Quantity("memory", "bytes", by="least", matters=0.02),
    "open_files": Quantity("open files", "", matters=0.05),
    "cpu_pct": Quantity("CPU", "%", relative=False),
    "peak_memory_bytes": Quantity("peak memory", "bytes"),
    "recompiles": Quantity("recompiles", ""),
    "first_hits": Quantity("first hits", ""),
    "fallbacks": Quantity("fallbacks", ""),
    "graph_breaks": Quantity("graph breaks", ""),
}
"""By name; the unit is the one that the name ends in, but for shares. The peak is one that only rises, so it proves
nothing; temperature rises in any run that warms up."""

MEMORY = ("memory_bytes", "own_memory_bytes", "host_memory_bytes")
"""What the server holds; `rss_bytes` is of the load generator's own processes."""
COUNTERS = ("recompiles", "first_hits", "fallbacks", "graph_breaks")
_DEVICE = {
    "own_memory_bytes": "own_mem_bytes", "util_pct": "util_pct", "power_w": "power_w", "sm_mhz": "sm_mhz",
    "temp_c": "temp_c",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    name: str
    """Of `QUANTITIES`."""
    of: str
    """endpoint, device, process or server"""
    subject: str
    values: Floats
    """By cell."""
    floor: float = 0.0
    """The noise that a cell has at least, for being a count of few."""

    @property
    def quantity(self) -> Quantity:
        return QUANTITIES[self.name]

    @property
    def scaled(self) -> Floats:
        """The values on the scale on which their noise is additive: logarithms where it is a factor."""
        return np.log(self.values) if self.quantity.factor else self.values

    def plain(self, scaled: float) -> float:
        return math.exp(scaled) if self.quantity.factor else scaled

    def change(self, base: float, by: float) -> float:
        """What a change of the scaled value is: a share of the level where the quantity is relative."""
        return math.expm1(by) if self.quantity.factor else self.slope(base, by)

    def slope(self, base: float, by: float) -> float:
        """The same of what goes on, in any unit of time: as at its beginning, or minutes would be taken for hours."""
        return by / (abs(base) or math.inf) if self.quantity.relative and not self.quantity.factor else by


def cells(run: Run) -> Timeline:
    """The run's time line in minutes."""
    line = Timeline.of(run)
    wanted = next((s for s in (10, 20, 30) if line.seconds <= 60 * s), 60)
    return Timeline(line.zero_ns, line.seconds, line.slice_s * max(1, -(-wanted // line.slice_s)))


def series(run: Run) -> tuple[Timeline, list[Series]]:
    """Everything that the run recorded, on its cells."""
    line = cells(run)
    return line, [*_endpoints(run, line), *_devices(run, line), *_told(run, line)]


def loads(run: Run, line: Timeline) -> Floats | None:
    """What was asked for by plan in each cell, as a factor of its mean; None where that was the same throughout.

    Of a curve over the whole soak (`daily`, a sine) what its plan says, of shapes within steps what was due.
    """
    scenario = run.manifest.scenario
    kind, _, numbers = str(scenario.get("daily") or "").partition(":")
    if kind == "sine":
        depth, period_s = (float(number) for number in numbers.split(":")[:2])
        begin = min((int(step["start_ns"]) for step in scenario["steps"]), default=line.zero_ns)
        turn, edges_s = 2 * math.pi / period_s, (np.arange(line.slices + 1) * line.slice_s) - line.at(begin)
        found: Floats = 1 - depth / turn * np.diff(np.cos(turn * edges_s)) / line.slice_s
        return found
    if scenario.get("shape") in (None, "", "flat"):
        return None
    due, seconds, each = np.zeros(line.slices), np.zeros(line.slices), line.slice_s // Timeline.of(run).slice_s
    for tally in run.tallies.groups.values():
        at = (tally.first + np.arange(len(tally.by_time))) // each
        np.add.at(due, np.minimum(at, line.slices - 1), tally.by_time.sum(axis=1))
    for endpoint in {endpoint for _, endpoint in run.tallies.groups}:
        seconds += covered(run, endpoint, line)
    return np.divide(due, seconds, where=seconds > 0, out=np.zeros(line.slices))


# ---- endpoints


def covered(run: Run, endpoint: str, line: Timeline) -> Floats:
    """Seconds of each cell in which the endpoint was driven; none where a part of the cell was settle time."""
    edges: Ints = line.zero_ns + np.arange(line.slices + 1, dtype=np.int64) * line.slice_ns
    found, settling = np.zeros(line.slices), np.zeros(line.slices)
    last = run.ended_ns

    def within(start: int, end: int) -> Floats:
        seconds: Floats = np.maximum(0, np.minimum(edges[1:], end) - np.maximum(edges[:-1], start)) / 1e9
        return seconds

    for step in run.manifest.scenario["steps"]:
        if step["endpoint"] == endpoint:
            start, end = int(step["start_ns"]), int(step["end_ns"])
            settled = settled_ns(step)
            settling += within(start, settled)
            found += within(settled, end if last is None else min(end, last))
    for event in run.events:
        if event["event"] == "gap" and event.get("end_ns"):
            found -= np.minimum(found, within(int(event["start_ns"]), int(event["end_ns"])))
    found[settling > 0] = 0.0
    return found


def _endpoints(run: Run, line: Timeline) -> Iterator[Series]:
    fine = Timeline.of(run)
    each = line.slice_s // fine.slice_s
    groups = run.tallies.groups
    names = [str(step["endpoint"]) for step in run.manifest.scenario["steps"]]
    for endpoint in dict.fromkeys([*names, *(name for _, name in groups)]):
        counts = _in_cells(line, each, ((t.first, t.by_time) for (_, name), t in groups.items() if name == endpoint))
        seconds = covered(run, endpoint, line)
        whole = seconds >= 0.5 * line.slice_s
        n = np.where(whole, counts.sum(axis=1), 0)
        ok = np.where(whole, counts[:, :BINS].sum(axis=1), 0)
        p50, p99 = (_percentiles(counts, whole, p) for p in (0.5, 0.99))
        share = np.divide(n - ok, n, out=np.full(line.slices, math.nan), where=n > 0)
        rate = np.divide(ok, seconds, out=np.full(line.slices, math.nan), where=n > 0)
        _fill(run.events, endpoint, line, n, p50, p99, share, rate)
        known = float(np.median(n[n > 0])) if (n > 0).any() else 1.0
        rare = math.sqrt(max(1.0, float(np.nansum(share * n))) / max(1.0, float(n.sum())) / known)
        yield Series("p99_ms", "endpoint", endpoint, p99)
        yield Series("p50_ms", "endpoint", endpoint, p50)
        yield Series("error_share", "endpoint", endpoint, share, rare)
        yield Series("achieved_rps", "endpoint", endpoint, rate)
        streams = [tally for (_, name), tally in run.counted_streams.tallies.items() if name == endpoint]
        for figure in STREAM_FIGURES if streams else ():
            by_time = ((tally.first, getattr(tally, f"{figure}_by_time")) for tally in streams)
            values = _percentiles(_in_cells(line, each, by_time), whole, 0.99)
            yield Series(f"{figure}_p99_ms", "endpoint", endpoint, values)


def _in_cells(line: Timeline, each: int, counted: Iterable[tuple[int, Ints]]) -> Ints:
    """Counts by cell and bin, from those by slice of the run's time line."""
    counts = np.zeros((line.slices * each, BINS + 1), dtype=np.int64)
    for first, by_time in counted:
        counts[first : first + len(by_time)] += by_time
    found: Ints = counts.reshape(line.slices, each, BINS + 1).sum(axis=1)
    return found


def _percentiles(counts: Ints, whole: Any, p: float) -> Floats:
    """By cell; NaN also where it is lost to failures, which `error_share` tells."""
    n, found = np.where(whole, counts.sum(axis=1), 0), np.full(len(counts), math.nan)
    for cell in np.flatnonzero(n >= LEAST_IN_CELL).tolist():
        value = in_bins(counts[cell, :BINS], p * n[cell])
        found[cell] = math.nan if math.isinf(value) else value
    return found


def _fill(
    events: Sequence[Mapping[str, Any]], endpoint: str, line: Timeline, n: Any,
    p50: Floats, p99: Floats, share: Floats, rate: Floats,
) -> None:  # fmt: skip
    """Where rows were retired the minutes remain, each in the cell that its middle lies in."""
    for event in events:
        if event["event"] != "minute" or event.get("endpoint") != endpoint or not event.get("n"):
            continue
        start, end = int(event["start_ns"]), int(event["end_ns"])
        cell = int(line.numbers(np.array((start + end) // 2)))
        if 0 <= cell < line.slices and not n[cell] and end > start:
            for values, key in ((p50, "p50_ms"), (p99, "p99_ms")):
                values[cell] = math.nan if event.get(key) is None else float(event[key])
            ok = int(event.get("ok") or 0)
            share[cell], rate[cell] = 1 - ok / int(event["n"]), ok / ((end - start) / 1e9)


# ---- devices, processes, servers


def _devices(run: Run, line: Timeline) -> Iterator[Series]:
    for track in run.tracks.values():
        memory = "host_memory_bytes" if track.is_cpu else "memory_bytes"
        for name, column in {memory: "mem_bytes", **_DEVICE}.items():
            yield from _sampled(name, "device", track.device, line, track.time_ns, track.state[column])
        held = throttled_pct(track.state["throttle_bits"])
        yield from _sampled("throttled_pct", "device", track.device, line, track.time_ns, held)


def _told(run: Run, line: Timeline) -> Iterator[Series]:
    """What events carry: harness processes, and servers of themselves."""
    for kind, subject, names in (
        ("process", "role", ("rss_bytes", "open_files", "cpu_pct")),
        ("server", "endpoint", ("peak_memory_bytes", *COUNTERS)),
    ):
        mine = [event for event in run.events if event["event"] == kind]
        for who in dict.fromkeys(str(event.get(subject)) for event in mine):
            told = [event for event in mine if str(event.get(subject)) == who]
            times = np.array([event["time_ns"] for event in told], dtype=np.int64)
            for name in names:
                values = np.array([_number(event.get(name)) for event in told])
                yield from _sampled(name, kind, who, line, times, values)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _sampled(name: str, of: str, subject: str, line: Timeline, times: Any, values: Floats) -> Iterator[Series]:
    """Samples in order of time as one value a cell: their mean, of memory the least, of counters the last."""
    known = ~np.isnan(values)
    if not known.any():
        return
    edges = np.searchsorted(times[known], line.zero_ns + np.arange(line.slices + 1) * line.slice_ns)
    held = np.flatnonzero(np.diff(edges))
    found = np.full(line.slices, math.nan)
    if len(held):
        inside = values[known][: edges[-1]]
        if name in COUNTERS or name == "peak_memory_bytes":
            found[held] = inside[edges[1:][held] - 1]
        elif QUANTITIES[name].by == "least":
            found[held] = np.minimum.reduceat(inside, edges[:-1][held])
        else:
            found[held] = np.add.reduceat(inside, edges[:-1][held]) / np.diff(edges)[held]
        yield Series(name, of, subject, found)
