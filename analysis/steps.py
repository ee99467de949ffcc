"""One row per step and endpoint: `StepSummary`, the columns of `run.steps` and `steps.csv`.

A step's window is [start + settle, end) by intended time; `offered_rps` is its arrivals ÷ its length,
`achieved_rps` its successes ÷ its length, `goodput_rps` the successes within the latency of the objective
with the highest percentile ÷ its length. `mean_ms` and the stages are means of successes. `late` counts
arrivals sent more than `verdict.late_limit_ms` after their time: 1 ms, or 5 % of the window's P50 service time.
`early_stop_n` is how many arrivals MLPerf's rule asks for: for the objective's percentile, given those over
its latency where the sample meets it, else for P99 with none. What is unknown is None (NaN in frames), never 0.

Owns the arithmetic; the rules (trusted? objective met?) are in `verdict`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis import stats, verdict, words
from analysis.devices import Track, over
from analysis.records import LOST
from analysis.stats import Floats, Growth

if TYPE_CHECKING:
    from analysis.store import Run

Places = npt.NDArray[np.intp]

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
    start_ns: int
    end_ns: int
    """The window, settle time excluded; as long as the run lasted."""
    rows: Places
    """The window's rows in `run.requests`, in order of intended time."""
    growth: Growth
    overloaded: bool
    met: tuple[bool | None, ...]
    """The answer to each objective of the manifest."""

    @property
    def asked(self) -> str:
        return words.load(self.rate, self.concurrency)


def frame(summaries: Sequence[StepSummary]) -> pd.DataFrame:
    """The rows as a frame: numbers with NaN where unknown, `slo` as True, False or None."""
    table = pd.DataFrame([{name: getattr(row, name) for name in COLUMNS} for row in summaries], columns=list(COLUMNS))
    texts = ("endpoint", "slo", "reasons")
    whole = ("index", "block", "n", "ok", "errors", "late", "dropped")
    kinds = {name: "float64" for name in COLUMNS if name not in (*texts, *whole, "trusted")}
    return table.astype(kinds | dict.fromkeys(whole, "int64") | {"trusted": "bool", "slo": "object"})


def measure(run: Run) -> list[MeasuredStep]:
    """Every step of the manifest, in its order, for each endpoint that it drove."""
    log = _Log(run)
    groups = log.groups()
    return [log.measure(group, groups) for group in groups]


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """One endpoint's arrivals in one step, in order of intended time, and the devices that served them."""

    step: Mapping[str, Any]
    endpoint: str
    rows: Places
    tracks: list[Track]

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
    """The run's columns as arrays, taken out of the frame once, and the rows of each step."""

    def __init__(self, run: Run) -> None:
        rows = run.requests
        self.run = run
        self.slos = run.manifest.slos
        self.bounds = [(s.percentile, s.latency_ms) for s in self.slos if s.percentile and s.latency_ms]
        self.rising = verdict.is_rising(run)
        self.idle = [(e["start_ns"], e["end_ns"]) for e in run.events if e["event"] == "idle" and "end_ns" in e]
        self.short = {step for e in run.events if e["event"] == "worker_lost" for step in e.get("steps") or ()}
        self.intended_ns = rows["intended_ns"].to_numpy()
        self.ok = rows["ok"].to_numpy()
        self.own_rows = rows["rows"].to_numpy(dtype=np.float64, na_value=math.nan)
        self.dropped = (rows["status"] == "dropped").to_numpy()
        self.timed_out = (rows["status"] == "timeout").to_numpy()
        self.lost = (rows["status"] == LOST).to_numpy()
        names = ("late_ms", "service_ms", "latency_ms", *(f"{stage}_ms" for stage in STAGES), "batch_rows")
        self.number = {name: rows[name].to_numpy(dtype=np.float64, na_value=math.nan) for name in names}

    def groups(self) -> list[_Group]:
        requests = self.run.requests
        codes, names = requests["endpoint"].cat.codes.to_numpy(), requests["endpoint"].cat.categories
        by_step: dict[Any, Any] = requests.groupby("step").indices
        found = []
        for step in self.run.manifest.scenario["steps"]:
            rows = np.asarray(by_step.get(step["index"], ()), dtype=np.intp)
            rows = rows[np.argsort(self.intended_ns[rows], kind="stable")]
            # a foreign source may leave the endpoint to the step
            planned = str(step["endpoint"])
            named = {code: planned if code < 0 else str(names[code]) for code in np.unique(codes[rows]).tolist()}
            for endpoint in dict.fromkeys(named.values()) or [planned]:
                mine = rows[np.isin(codes[rows], [code for code, name in named.items() if name == endpoint])]
                found.append(_Group(step, endpoint, mine, self._tracks(endpoint, mine)))
        return found

    def _tracks(self, endpoint: str, rows: Places) -> list[Track]:
        """The devices that the answers name, else the one that the manifest names for the endpoint."""
        named = {str(name) for name in self.run.requests["device"].iloc[rows].dropna().unique()}
        if not named:
            entries = self.run.manifest.endpoints
            named = {str(e.get("device")) for e in entries if f"{e.get('model')}/{e.get('variant')}" == endpoint}
        return [track for name, track in self.run.tracks.items() if name in named]

    def measure(self, group: _Group, groups: Sequence[_Group]) -> MeasuredStep:
        step, endpoint, rate = group.step, group.endpoint, float(group.step["rate"])
        closed, twin = int(step.get("concurrency") or 0), bool(step.get("twin"))
        begin, end, block = int(step["start_ns"]), int(step["end_ns"]), int(step.get("block") or 0)
        start = begin + int(float(step.get("settle_s") or 0) * 1e9)
        remarks = []
        stop = self.run.ended_ns
        if stop is not None and stop < end:
            into = (stop - begin) / 1e9
            remarks.append(f"the run ended {f'{into:.3g} s into' if into > 0 else 'before'} this step")
            end = stop
        intended = self.intended_ns[group.rows]
        window = group.rows[(intended >= start) & (intended < end)]
        if not len(window):
            remarks.append("no arrivals were recorded in its window")
            row = StepSummary(step["index"], endpoint, block, reasons=tuple(remarks))
            unknown = (None,) * len(self.slos)
            still = Growth(False, 0.0, 1.0)
            return MeasuredStep(row, rate, closed, twin, start, max(start, end), window, still, False, unknown)

        seconds = (end - start) / 1e9
        rate = rate or len(window) / seconds
        ok, number = self.ok[window], {name: values[window] for name, values in self.number.items()}
        n, successes, dropped = len(window), int(ok.sum()), int(self.dropped[window].sum())
        latency = np.where(ok, number["latency_ms"], math.inf)
        late, late_limit = _known(number["late_ms"]), verdict.late_limit_ms(_percentile(number["service_ms"][ok], 50))
        late_p99, growth = _percentile(late, 99), self._growth(group.rows, start, end)
        given_up = float((self.timed_out | self.dropped)[window].mean())
        overloaded = verdict.is_overloaded(growth, given_up)
        cpu_pct = self._cpu_pct(step)
        doubts = verdict.doubts(late, late_limit, 0.0 if overloaded else dropped / n, cpu_pct)
        doubts += verdict.beyond(self.run.manifest.extra.get("self_check"), n / seconds, bool(closed))
        if step["index"] in self.short:
            doubts.append("a load process was lost, and its share of the arrivals with it")
        answers = [
            verdict.meets(slo, latency, overloaded, successes / seconds, rate, at_rate=not self.rising)
            for slo in self.slos
        ]
        n_eff, needed = stats.effective_size(latency, 99), self._early_stop_n(latency)
        interval = None if overloaded else stats.percentile_interval(latency, 99, n_eff)
        device: dict[str, Any] = asdict(over(group.tracks, start, end, self.idle))
        joules, net_joules = device.pop("joules"), device.pop("net_joules")
        by = device.pop("throttled_by")
        stages = {f"{stage}_mean_ms": _mean(number[f"{stage}_ms"][ok]) for stage in STAGES}

        if closed:
            remarks.append("closed loop: the endpoint set the rate, and latency counts from when a request was sent")
        if overloaded:
            grew, limits = f"the queue grew by {growth.per_s:.3g} requests/s", "were dropped or ran into the time limit"
            how = grew if growth.rising else f"{given_up:.1%} of the arrivals {limits}"
            remarks.append(f"overloaded: {how}, so no P99 describes this step")
        if lost := int(self.lost[window].sum()):
            remarks.append(f"{lost} arrivals were lost before their answer came, and count as failed")
        remarks += dict.fromkeys(sentence for _, against in answers for sentence in against)
        if not self.bounds and n < needed:
            remarks.append(f"{n} arrivals are too few for P99; MLPerf's rule asks for {needed}")
        elif interval is None and not overloaded:
            remarks.append(f"P99 has no interval: {_sample(n_eff, n)} are too few")
        if joules is not None and (others := group.beside(groups)):
            joules, net_joules, remark = self._part_of(joules, net_joules, group, others, (start, end))
            remarks.append(remark)
        if by:
            remarks.append(f"its device's clocks were held down: {by} of the time")

        met = tuple(answer for answer, _ in answers)
        row = StepSummary(
            index=step["index"],
            endpoint=endpoint,
            block=block,
            offered_rps=n / seconds,
            achieved_rps=successes / seconds,
            goodput_rps=float((latency <= max(self.bounds)[1]).sum()) / seconds if self.bounds else None,
            n=n,
            ok=successes,
            errors=n - successes,
            late=int((late > late_limit).sum()),
            dropped=dropped,
            mean_ms=_mean(number["latency_ms"][ok]),
            p50_ms=_percentile(latency, 50),
            p90_ms=_percentile(latency, 90),
            p95_ms=_percentile(latency, 95),
            p99_ms=_percentile(latency, 99),
            p999_ms=_percentile(latency, 99.9),
            p99_low_ms=interval[0] if interval else None,
            p99_high_ms=interval[1] if interval else None,
            ok_p99_ms=_percentile(latency[ok], 99),
            service_p99_ms=_percentile(np.where(ok, number["service_ms"], math.inf), 99),
            late_p99_ms=late_p99,
            n_eff=n_eff,
            early_stop_n=needed,
            batch_rows_mean=_mean(number["batch_rows"][ok]),
            joules=joules,
            joules_per_request=joules / successes if joules is not None and successes else None,
            net_joules_per_request=net_joules / successes if net_joules is not None and successes else None,
            slo=verdict.all_of(met) if met else None,
            trusted=not doubts,
            reasons=(*doubts, *remarks),
            **device | stages,
        )
        return MeasuredStep(row, rate, closed, twin, start, end, window, growth, overloaded, met)

    def _part_of(
        self, joules: float, net_joules: float | None, group: _Group, others: Sequence[_Group], window: tuple[int, int]
    ) -> tuple[float | None, float | None, str]:
        """Energy of a device that served several endpoints at once, by the time for which it computed for each."""
        names = ", ".join(other.endpoint for other in others)
        spent = [self._computed_ms(each.rows, window) for each in (group, *others)]
        own, all_of_them = spent[0], sum(spent)
        if not own or not all(spent):
            return None, None, f"its device also served {names}, so its energy cannot be told apart"
        share = own / all_of_them
        remark = f"its device also served {names}: its energy is an estimate, {share:.0%} of all by compute time"
        return joules * share, None if net_joules is None else net_joules * share, remark.replace("%", " %")

    def _computed_ms(self, rows: Places, window: tuple[int, int]) -> float:
        """Time for which the device computed for these requests; those of one batch share it by their rows."""
        inside = rows[(self.intended_ns[rows] >= window[0]) & (self.intended_ns[rows] < window[1])]
        each = self.number["compute_ms"][inside] * self.own_rows[inside] / self.number["batch_rows"][inside]
        return float(np.nansum(each))

    def _growth(self, rows: Places, start: int, end: int) -> Growth:
        """The in-flight count over the window, counted from when requests were sent.

        Not from the intended time: a generator's own backlog is not the endpoint's queue.
        """
        rows = rows[~self.dropped[rows]]
        intended_s = (self.intended_ns[rows] - start) / 1e9
        sent_s = intended_s + np.nan_to_num(self.number["late_ms"][rows]) / 1e3
        done_s = intended_s + self.number["latency_ms"][rows] / 1e3
        return stats.queue_growth(sent_s, np.nan_to_num(done_s, nan=math.inf), 0.0, (end - start) / 1e9)

    def _early_stop_n(self, latency: Floats) -> int:
        needed = []
        for percent, limit_ms in self.bounds:
            met = stats.percentile(latency, percent) <= limit_ms
            needed.append(stats.early_stop_n(percent, int((latency > limit_ms).sum()) if met else 0))
        return max(needed, default=stats.early_stop_n(99))

    def _cpu_pct(self, step: Mapping[str, Any]) -> float | None:
        """The busiest load process during the step; its report belongs to the step that began last before it."""
        begins = np.sort([s["start_ns"] for s in self.run.manifest.scenario["steps"]])
        found = []
        for event in self.run.events:
            if event["event"] == "load_cpu" and event.get("pct") is not None:
                own = np.searchsorted(begins, event.get("time_ns", 0), side="right") - 1
                if own >= 0 and begins[own] == step["start_ns"]:
                    found.append(float(event["pct"]))
        return max(found, default=None)


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def _percentile(values: Floats, percent: float) -> float | None:
    """None where nothing is known, or some of it is not."""
    value = stats.percentile(values, percent)
    return None if math.isnan(value) else value


def _mean(values: Floats) -> float | None:
    known = _known(values)
    return float(known.mean()) if len(known) else None


def _sample(n_eff: float | None, n: int) -> str:
    return f"{n} arrivals" if n_eff is None else f"{n} arrivals, worth {int(n_eff)} independent ones,"
