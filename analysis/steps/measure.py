"""One row per step and endpoint: `StepSummary`, the columns of `run.steps` and `steps.csv`.

A step's window is [start + settle, end) by intended time; `offered_rps` is its arrivals ÷ its length, `achieved_rps`
the successes that were answered in it ÷ its length, `goodput_rps` its arrivals that succeeded within the latency of
the objective with the highest percentile ÷ its length. `mean_ms` and the stages are means of successes. `late` counts
arrivals sent more than `order.late_limit_ms` after their time.
`early_stop_n` is how many arrivals MLPerf's rule asks for: for the objective's percentile, given those over its
latency where the sample meets it, else for P99 with none. What is unknown is None (NaN in frames), never 0.

Owns the arithmetic; rows are gathered in `tally` and put in order in `order`, whether the step was steady is said by
`steady`, and the rules (trusted? objective met?) are in `verdict`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.counting.counts import Key, Tally
from tailrate.analysis.counting.order_statistics import OrderStatistics
from tailrate.analysis.judging.evidence import counts
from tailrate.analysis.judging.judge import SPARE, Count, Window, all_of, lateness, queue_filled, terms
from tailrate.analysis.judging.judge import answers as judged
from tailrate.analysis.judging.judge import doubts as doubts_of
from tailrate.analysis.records import LEAST_FOR_P999, LOST, REQUESTS
from tailrate.analysis.run.device_tracks import MOST_HOLE, DeviceTrack, over
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.run.window import read
from tailrate.analysis.stats import trend
from tailrate.analysis.stats.interval import least_for_upper
from tailrate.analysis.stats.trend import Growth
from tailrate.analysis.steps import by_rate, steadiness
from tailrate.analysis.text import words

if TYPE_CHECKING:
    import pandas as pd

    from tailrate.analysis.steps.measured_run import MeasuredRun

LONGEST_ADVICE_S = 3600.0
STAGES = ("queue", "batch", "h2d", "compute", "d2h")


@dataclass(frozen=True, slots=True)
class StepSummary:
    """A row of `steps`. In percentiles but `ok_p99_ms` and `late_p99_ms` a failure counts as +infinity."""

    index: int
    endpoint: str
    block: int
    offered_rps: float | None = None
    achieved_rps: float | None = None
    goodput_rps: float | None = None
    n: int = 0
    ok: int = 0
    errors: int = 0
    late: int = 0
    dropped: int = 0
    mean_ms: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    """Only where there are enough arrivals for it."""
    p99_low_ms: float | None = None
    p99_high_ms: float | None = None
    ok_p99_ms: float | None = None
    service_p99_ms: float | None = None
    late_p99_ms: float | None = None
    n_eff: float | None = None
    early_stop_n: int | None = None
    queue_mean_ms: float | None = None
    batch_mean_ms: float | None = None
    h2d_mean_ms: float | None = None
    compute_mean_ms: float | None = None
    d2h_mean_ms: float | None = None
    batch_rows_mean: float | None = None
    util_pct: float | None = None
    mem_peak_bytes: int | None = None
    power_w: float | None = None
    joules: float | None = None
    joules_per_request: float | None = None
    net_joules_per_request: float | None = None
    temp_c: float | None = None
    sm_mhz: float | None = None
    throttled_pct: float | None = None
    slo: bool | None = None
    trusted: bool = False
    reasons: tuple[str, ...] = ()
    util_max_pct: float | None = None
    sm_active_pct: float | None = None
    tensor_active_pct: float | None = None
    dram_active_pct: float | None = None
    settled_s: float | None = None
    """Since the step began: when latency had settled, as the data say."""
    steady: bool | None = None
    drift_pct: float | None = None
    """What mean latency changed by from the window's start to its end, where that is no chance."""
    three_windows: bool | None = None
    """Whether perf_analyzer's rule calls the step stable."""
    seen_util_pct: float | None = None
    """Of each request's own device at its time, the mean over the requests; so the next three."""
    seen_power_w: float | None = None
    seen_sm_mhz: float | None = None
    seen_throttled_pct: float | None = None


COLUMNS = tuple(column.name for column in fields(StepSummary))


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredStep:
    """A row with what `compare`, `capacity` and `verdict` need beyond it."""

    summary: StepSummary
    rate: float
    """Asked for, in requests per second; in a closed loop what came of it."""
    concurrency: int
    """Requests always under way in a closed loop, else 0."""
    twin: bool
    """Repeats the step before it, to show the noise between equal steps."""
    tally: Tally
    order: OrderStatistics
    growth: Growth
    overloaded: bool
    showed: Window
    """What stands in the way of its figures; without counts."""
    windows: tuple[Window, ...]
    """The same for each objective, with its counts: what the judge needs to know of it."""
    idle_w: float | None = None
    """What its devices draw without load, whoever else they served, …"""
    added_w: float | None = None
    """… and what serving it added to that."""

    @property
    def start_ns(self) -> int:
        """The window, settle time excluded; as long as the run lasted."""
        return self.tally.grid.start_ns

    @property
    def end_ns(self) -> int:
        return max(self.start_ns, self.tally.grid.end_ns)

    @property
    def asked(self) -> str:
        return words.load(self.rate, self.concurrency)


def frame(summaries: Sequence[StepSummary]) -> pd.DataFrame:
    """The rows as a frame: numbers with NaN where unknown, `slo` as True, False or None."""
    import pandas as pd

    table = pd.DataFrame([{name: getattr(row, name) for name in COLUMNS} for row in summaries], columns=list(COLUMNS))
    answers = ("slo", "steady", "three_windows")
    texts = ("endpoint", "reasons", *answers)
    whole = ("index", "block", "n", "ok", "errors", "late", "dropped")
    kinds = {name: "float64" for name in COLUMNS if name not in (*texts, *whole, "trusted")}
    return table.astype(kinds | dict.fromkeys(whole, "int64") | {"trusted": "bool", **dict.fromkeys(answers, "object")})


def measure(run: MeasuredRun) -> list[MeasuredStep]:
    """Every step of the manifest, in its order, for each endpoint that it drove."""
    log = _Log(run)
    groups = log.groups()
    return [log.measure(group, groups) for group in groups]


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """One endpoint in one step, and the devices that served it."""

    step: Mapping[str, Any]
    endpoint: str
    tally: Tally
    tracks: list[DeviceTrack]
    unsampled: str
    """Why its energy is not known, where some of it was sampled."""

    @property
    def key(self) -> Key:
        return int(self.step["index"]), self.endpoint

    def beside(self, others: Sequence[_Group]) -> list[_Group]:
        """Those that load one of its devices at the same time."""
        return [
            other
            for other in others
            if other is not self
            and other.step["start_ns"] < self.step["end_ns"]
            and self.step["start_ns"] < other.step["end_ns"]
            and {track.device for track in other.tracks} & {track.device for track in self.tracks}
        ]


class _Log:
    """What the run says of all its steps."""

    def __init__(self, run: MeasuredRun) -> None:
        self.run = run
        self.slos = run.manifest.slos
        self.idle = [(e["start_ns"], e["end_ns"]) for e in run.events if e["event"] == "idle" and "end_ns" in e]
        self.retired = {step for e in run.events if e["event"] == "retired" for step in e.get("steps") or ()}
        self.short = {step for e in run.events if e["event"] == "worker_lost" for step in e.get("steps") or ()}

    def groups(self) -> list[_Group]:
        found, line = [], Timeline.of(self.run)
        for step in self.run.manifest.scenario["steps"]:
            tallies = self.run.tallies.of(int(step["index"]))
            if not tallies and step["index"] in self.retired:  # its rows were deleted, so there is no row for it here
                continue
            planned = str(step["endpoint"])
            for endpoint in tallies or [planned]:
                tally = tallies.get(endpoint) or Tally.empty(step, self.run.ended_ns, line)
                found.append(self._group(step, endpoint, tally))
        return found

    def _burst(self, group: _Group) -> float:
        """How many failures came in a row, in the mean."""
        span = group.tally.grid.start_ns, group.tally.grid.end_ns
        rows = self.run.reading(REQUESTS, partial(read, endpoint=group.endpoint, steps=[group.step], span=span))
        return rows.burst()

    def _group(self, step: Mapping[str, Any], endpoint: str, tally: Tally) -> _Group:
        """With the devices that the answers name, else the one that the manifest names for the endpoint."""
        entries = self.run.manifest.endpoints
        named = tally.devices or {
            str(e.get("device")) for e in entries if f"{e.get('model')}/{e.get('variant')}" == endpoint
        }
        tracks = [track for name, track in self.run.tracks.items() if name in named]
        silent = sorted(named - {track.device for track in tracks})
        why = ""
        if tracks and silent:
            why = f"{' and '.join(silent)} answered, too, and has no samples: the energy of this step is not known"
        for track in tracks:
            hole_s = track.hole_s(tally.grid.start_ns, tally.grid.end_ns)
            if hole_s > MOST_HOLE * tally.grid.seconds:
                seconds = words.significant(hole_s, 2)
                why = f"{track.device} has no samples for {seconds} s of this step: its energy is not known"
        return _Group(step, endpoint, tally, tracks, why)

    def measure(self, group: _Group, groups: Sequence[_Group]) -> MeasuredStep:
        step, tally, rate = group.step, group.tally, float(group.step["rate"])
        order = self.run.orders.get(group.key) or OrderStatistics.empty()
        closed, twin = int(step.get("concurrency") or 0), bool(step.get("twin"))
        begin, block = int(step["start_ns"]), int(step.get("block") or 0)
        grid = tally.grid
        start, end, seconds = grid.start_ns, grid.end_ns, grid.seconds
        remarks = []
        if end < int(step["end_ns"]):
            into = (end - begin) / 1e9
            remarks.append(f"the run ended {f'{into:.3g} s into' if into > 0 else 'before'} this step")
        if not tally.n:
            remarks.append("no arrivals were recorded in its window")
            row = StepSummary(step["index"], group.endpoint, block, reasons=tuple(remarks))
            nothing = tuple(Window(counts=tuple(Count(0, 0) for _ in terms(slo))) for slo in self.slos)
            flat = Growth(False, 0.0, 1.0)
            return MeasuredStep(row, rate, closed, twin, tally, order, flat, False, Window(()), nothing)

        n, successes, dropped = tally.n, tally.ok, tally.inside["dropped"]
        done = tally.done + self.run.tallies.carried[group.key]
        rate = rate or n / seconds
        growth = trend.queue_growth(tally.in_flight()[grid.before :], tally.arrived[grid.before :], seconds)
        given_up = (tally.inside["timeout"] + dropped) / n
        overloaded = growth.rising or queue_filled(given_up, tally.early_ms(), tally.mean("latency_ms") or math.inf)
        late_ms = order.late_ms.get(99.0) or 0.0
        would_do = n / seconds * (order.ok_ms.get(99.0) or 0.0) / 1e3 * SPARE
        doubts = doubts_of(0 if overloaded else dropped, n, would_do, cpu_pct(self.run, step))
        doubts += by_rate.beyond(self.run.manifest.extra.get("self_check"), n / seconds, bool(closed))
        if step["index"] in self.short:
            doubts.append("a load process was lost, and its share of the arrivals with it")
        late = lateness(late_ms, order.late, order.late_limit_ms)
        device: dict[str, Any] = asdict(over(group.tracks, start, end, self.idle))
        joules, net_joules, by = (device.pop(name) for name in ("joules", "net_joules", "throttled_by"))
        state = steadiness.steadiness(tally, growth)
        overload = _overload(growth, given_up) if overloaded else ""
        unsteady = "" if overloaded else state.sentence(tally) or ""
        if unsteady:
            why = steadiness.causes(self.run, group.endpoint, (begin, end), by is not None, bool(doubts or late))
            unsteady = f"not steady: {unsteady}{why}"
        showed = Window((), overload, late, tuple(doubts), None if overloaded else state.flatters, unsteady)
        windows = tuple(
            replace(showed, counts=counts(slo, order.sketch, seconds, partial(self._burst, group))) for slo in self.slos
        )
        answers = [answer for slo, window in zip(self.slos, windows, strict=True) for answer in judged(slo, [window])]
        interval = None if overloaded else order.p99_interval_ms
        limits = [(slo.percentile, slo.latency_ms) for slo in self.slos if slo.percentile and slo.latency_ms]
        beyond = {limit: int(order.sketch.beyond(limit[1]).sum()) for limit in limits}
        needed = max((_needed(limit[0], n, beyond[limit]) for limit in limits), default=trend.early_stop_n(99))

        if closed:
            remarks.append("closed loop: the endpoint set the rate, and latency counts from when a request was sent")
        if overloaded:
            remarks.append(f"overloaded: {overload}, so no P99 describes this step")
        if lost := tally.inside[LOST]:
            remarks.append(f"{lost} arrivals were lost before their answer came, and count as failed")
        remarks += dict.fromkeys(answer.sentence for answer in answers if answer.kept is not True)
        if not limits and n < needed:
            remarks.append(f"{n} arrivals are too few for P99; MLPerf's rule asks for {needed}")
        elif not overloaded and (few := _too_few(order, n, seconds)):
            remarks.append(few)
        if group.unsampled:
            joules = net_joules = device["power_w"] = None
            remarks.append(group.unsampled)
        idle_w = None if joules is None or net_joules is None else (joules - net_joules) / seconds
        if joules is not None and (others := group.beside(groups)):
            joules, net_joules, remark = _part_of(joules, net_joules, group, others)
            remarks.append(remark)
        added_w = None if net_joules is None else net_joules / seconds
        if by:
            remarks.append(f"its device's clocks were held down: {by} of the time")
        if unsteady:
            remarks.append(unsteady)

        # of the objective with the highest percentile: the others' limits are lower
        goodput = (n - beyond[max(limits)]) / seconds if limits else None
        row = StepSummary(
            index=step["index"],
            endpoint=group.endpoint,
            block=block,
            offered_rps=n / seconds,
            achieved_rps=done / seconds,
            goodput_rps=goodput,
            n=n,
            ok=successes,
            errors=n - successes,
            late=order.late,
            dropped=dropped,
            mean_ms=tally.mean("latency_ms"),
            p50_ms=order.latency_ms[50.0],
            p90_ms=order.latency_ms[90.0],
            p95_ms=order.latency_ms[95.0],
            p99_ms=order.latency_ms[99.0],
            p999_ms=order.latency_ms[99.9] if n >= LEAST_FOR_P999 else None,
            p99_low_ms=interval[0] if interval else None,
            p99_high_ms=interval[1] if interval else None,
            ok_p99_ms=order.ok_ms.get(99.0),
            service_p99_ms=order.service_all_ms.get(99.0),
            late_p99_ms=order.late_ms.get(99.0),
            n_eff=order.n_eff,
            early_stop_n=needed,
            batch_rows_mean=tally.mean("batch_rows"),
            joules=joules,
            joules_per_request=joules / done if joules is not None and done else None,
            net_joules_per_request=net_joules / done if net_joules is not None and done else None,
            slo=all_of(answer.kept for answer in answers) if answers else None,
            trusted=not (doubts or late),
            reasons=(*filter(None, [late]), *doubts, *remarks),
            settled_s=state.settled_s,
            steady=False if overloaded else state.steady,
            drift_pct=None if overloaded else state.drift_pct,
            three_windows=state.three_windows,
            seen_util_pct=tally.saw("util_pct"),
            seen_power_w=tally.saw("power_w"),
            seen_sm_mhz=tally.saw("sm_mhz"),
            seen_throttled_pct=tally.saw("throttled_pct"),
            **device | {f"{stage}_mean_ms": tally.mean(f"{stage}_ms") for stage in STAGES},
        )
        return MeasuredStep(row, rate, closed, twin, tally, order, growth, overloaded, showed, windows, idle_w, added_w)


def _overload(growth: Growth, given_up: float) -> str:
    if growth.rising:
        return f"the queue grew by {growth.per_s:.3g} requests/s"
    return f"{given_up:.1%} of the arrivals were dropped or ran into the time limit once the queue had grown so far"


def _needed(percent: float, n: int, beyond: int) -> int:
    """MLPerf's rule for an objective: given those beyond it where the sample keeps it, else none."""
    return trend.early_stop_n(percent, beyond if beyond <= n * (1 - percent / 100) else 0)


def cpu_pct(run: MeasuredRun, step: Mapping[str, Any]) -> float | None:
    """The busiest load process in it; a report that names no step belongs to the one that began last before it."""
    begins = np.sort([s["start_ns"] for s in run.manifest.scenario["steps"]])
    found = []
    for event in run.events:
        if event["event"] == "load_cpu" and event.get("pct") is not None:
            own = np.searchsorted(begins, event.get("time_ns", 0), side="right") - 1
            last = own >= 0 and begins[own] == step["start_ns"]
            if event["step"] == step["index"] if "step" in event else last:
                found.append(float(event["pct"]))
    return max(found, default=None)


def _part_of(
    joules: float, net_joules: float | None, group: _Group, others: Sequence[_Group]
) -> tuple[float | None, float | None, str]:
    """Energy of a device that served several endpoints at once, by the time for which it computed for each."""
    names = ", ".join(other.endpoint for other in others)
    own_devices = {track.device for track in group.tracks}
    if any({track.device for track in other.tracks} != own_devices for other in others):
        return None, None, f"it shares only some of its devices with {names}, so its energy cannot be told apart"
    window = group.tally.grid.start_ns, group.tally.grid.end_ns
    spent = [each.tally.computed_ms(*window) for each in (group, *others)]
    own, all_of_them = spent[0], sum(spent)
    if not own or not all(spent):
        return None, None, f"its device also served {names}, so its energy cannot be told apart"
    share = own / all_of_them
    remark = f"its device also served {names}: its energy is an estimate, {share:.0%} of all by compute time"
    return joules * share, None if net_joules is None else net_joules * share, remark.replace("%", " %")


def _too_few(order: OrderStatistics, n: int, seconds: float) -> str | None:
    """Why P99 has no interval, or one that is open above although its arrivals did not fail, and what would help."""
    if order.n_eff is None or order.p99_interval_ms is None:
        return f"P99 has no interval: {n} arrivals are too few"
    if (short := least_for_upper(99) / order.n_eff) <= 1:
        return None
    longer = words.duration(short * seconds)
    said = f"P99 is not bounded from above: {n} arrivals are worth {int(order.n_eff)} independent ones"
    return f"{said}; a window of {longer} would do" if short * seconds <= LONGEST_ADVICE_S else said
