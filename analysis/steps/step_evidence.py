"""What is known of one endpoint in one step, beyond what the pass over the rows counted: `StepEvidence`.

Each figure is worked out when it is first asked for: whether the queue grew, what stands in the way of the figures,
what the rows say to each objective, what the devices did. `step_summary` makes a row of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.counting.counts import Tally
from tailrate.analysis.counting.order_statistics import Ordered, OrderStatistics
from tailrate.analysis.counting.slices import SliceFigures, counted
from tailrate.analysis.counting.steadiness import Steadiness, causes, steadiness
from tailrate.analysis.counting.stream_tally import StreamFigures
from tailrate.analysis.judging.evidence import counts
from tailrate.analysis.judging.judge import Judgement, Window
from tailrate.analysis.judging.judge import answers as judged
from tailrate.analysis.judging.share import ALL, Count, terms
from tailrate.analysis.judging.trust import SPARE, lateness, overload
from tailrate.analysis.judging.trust import doubts as doubts_of
from tailrate.analysis.records.folder import REQUESTS
from tailrate.analysis.records.objective import Slo, overall
from tailrate.analysis.records.rows import LOST
from tailrate.analysis.run.window import Excerpt, read
from tailrate.analysis.stats import trend
from tailrate.analysis.stats.array_types import Bools
from tailrate.analysis.stats.interval import least_for_upper
from tailrate.analysis.stats.trend import NO_GROWTH, Growth
from tailrate.analysis.steps import by_rate
from tailrate.analysis.steps.step_devices import StepDevices
from tailrate.analysis.text import words

if TYPE_CHECKING:
    from tailrate.analysis.steps.measured_run import MeasuredRun

LONGEST_ADVICE_S = 3600.0


@dataclass(frozen=True, eq=False)
class StepEvidence(StepDevices):
    """One endpoint in one step."""

    short: bool
    """A load process was lost in it."""

    @cached_property
    def order(self) -> OrderStatistics:
        return self.run.orders.get(self.key) or OrderStatistics.empty()

    @property
    def streams(self) -> StreamFigures | None:
        """Where its answers come token by token."""
        return self.run.streams.get(self.key)

    def of_streams(self, figure: Callable[[StreamFigures], float | None]) -> float | None:
        """Nothing where answers don't come token by token."""
        return None if self.streams is None else figure(self.streams)

    @property
    def concurrency(self) -> int:
        return int(self.plan.get("concurrency") or 0)

    # ---- arrivals

    @property
    def n(self) -> int:
        return self.tally.n

    @property
    def done(self) -> int:
        """Successes that were answered in the window, whichever step they were due in."""
        return self.tally.done + self.run.tallies.carried[self.key]

    def per_success(self, joules: float | None) -> float | None:
        return joules / self.done if joules is not None and self.done else None

    def per_token(self, streams: StreamFigures) -> float | None:
        came, joules = streams.tally.arrived_out, self.energy.joules
        return joules / came if joules is not None and came else None

    # ---- what stands in the way of the figures

    @cached_property
    def growth(self) -> Growth:
        return growth_of(self.tally, self.streams) if self.n else NO_GROWTH

    @cached_property
    def overload(self) -> str:
        """How the queue grew, where it did; a search cuts a probe for that, of which there may be nothing to see."""
        cuts = (e for e in self.run.events if e["event"] == "step_cut" and e.get("step") == self.plan["index"])
        cut = next((str(event.get("sentence")) for event in cuts), "")
        if not self.n:
            return cut
        dropped, later_ms = self.tally.inside["dropped"], self.tally.mean("latency_ms") or math.inf
        given_up = self.tally.inside["timeout"] + dropped
        return overload(self.growth, self.n, given_up, dropped, self.tally.early_ms(), later_ms) or cut

    @property
    def overloaded(self) -> bool:
        return bool(self.overload)

    @cached_property
    def late(self) -> str:
        return lateness(self.order.late_ms.get(99.0) or 0.0, self.order.late, self.order.late_limit_ms)

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        """Why the figures say more about the load generator than about the endpoint."""
        offered_rps = self.n / self.seconds
        would_do = offered_rps * (self.order.ok_ms.get(99.0) or 0.0) / 1e3 * SPARE
        dropped = 0 if self.overloaded else self.tally.inside["dropped"]
        found = doubts_of(dropped, self.n, would_do, cpu_pct(self.run, self.plan))
        found += by_rate.beyond(self.run.manifest.extra.get("self_check"), offered_rps, bool(self.concurrency))
        if self.short:
            found.append("a load process was lost, and its share of the arrivals with it")
        return tuple(found)

    @cached_property
    def steadiness(self) -> Steadiness:
        return steadiness(self.tally, self.growth)

    @cached_property
    def unsteady(self) -> str:
        """How the step was not steady and what else was wrong in it; of an overloaded one that is not asked."""
        how = "" if self.overloaded else self.steadiness.sentence(self.tally)
        if not how:
            return ""
        span, throttled = (int(self.plan["start_ns"]), self.span[1]), self.device.throttled_by is not None
        return f"not steady: {how}{causes(self.run, self.endpoint, span, throttled, bool(self.doubts or self.late))}"

    # ---- the objectives

    @cached_property
    def showed(self) -> Window:
        """What stands in the way of the figures; without counts."""
        if not self.n:
            return Window((), self.overload)
        flatters = None if self.overloaded else self.steadiness.flatters
        return Window((), self.overload, self.late, self.doubts, flatters, self.unsteady)

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """The same for each objective, with its counts."""
        slos = self.run.manifest.slos
        if not self.n:
            return tuple(replace(self.showed, counts=tuple(Count(0, 0) for _ in terms(slo))) for slo in slos)
        found = (
            counted(self.slices, slo) if slo.slice else self._counts(number, slo) for number, slo in enumerate(slos)
        )
        return tuple(replace(self.showed, counts=one) for one in found)

    def _counts(self, number: int, slo: Slo) -> tuple[Count, ...]:
        of_streams = {**self.streams.sketches, ALL: self.streams.met(number)} if self.streams else {}
        return counts(slo, self.order.sketch, self.seconds, lambda: self._rows().burst(), of_streams)

    @property
    def slices(self) -> Mapping[str, SliceFigures]:
        return self.run.slices_of(self.plan, self.endpoint, self.tally.grid)

    def _rows(self) -> Excerpt:
        """Of its window."""
        return self.run.reading(REQUESTS, partial(read, endpoint=self.endpoint, steps=[self.plan], span=self.span))

    @cached_property
    def answers(self) -> list[Judgement]:
        both = zip(self.run.manifest.slos, self.windows, strict=True)
        return [answer for slo, window in both for answer in judged(slo, [window])]

    @cached_property
    def _beyond(self) -> dict[tuple[float, float], int]:
        """Arrivals over the latency of each objective, by its percentile and latency."""
        limits = [(slo.percentile, slo.latency_ms) for slo in overall(self.run.manifest.slos) if slo.percentile]
        return {(at, ms): int(self.order.sketch.beyond(ms).sum()) for at, ms in limits if ms}

    @cached_property
    def early_stop_n(self) -> int:
        """MLPerf's rule for each objective: given those over it where the sample keeps it, else none."""
        beyond, n = self._beyond, self.n
        found = [trend.early_stop_n(at, over if over <= n * (1 - at / 100) else 0) for (at, _), over in beyond.items()]
        return max(found, default=trend.early_stop_n(99))

    @property
    def goodput_rps(self) -> float | None:
        """Of the objective with the highest percentile: the others' limits are lower. Of streams: with most limits."""
        if self.streams and (
            asked := [(len(slo.bounds), -number) for number, slo in enumerate(self.run.manifest.slos)]
        ):
            limits, number = max(asked)
            if limits:
                return (self.n - int(self.streams.tally.missed[-number].sum())) / self.seconds
        return (self.n - self._beyond[max(self._beyond)]) / self.seconds if self._beyond else None

    @property
    def p99_interval_ms(self) -> tuple[float | None, float | None]:
        return (None, None) if self.overloaded else self.order.p99_interval_ms or (None, None)

    def between(self, figure: Ordered) -> tuple[float | None, float | None]:
        """The same of a figure of streams."""
        return (None, None) if self.overloaded else figure.interval_ms or (None, None)

    # ---- in words

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """Why the step is not trusted or missed the objective, and what else to know of it, one sentence each."""
        if not self.n:
            return (*self._cut_short(), self.overload or "no arrivals were recorded in its window")
        return (*filter(None, [self.late]), *self.doubts, *self._cut_short(), *self._remarks())

    def _cut_short(self) -> Iterator[str]:
        end_ns = self.span[1]
        if end_ns < int(self.plan["end_ns"]):
            into_s = (end_ns - int(self.plan["start_ns"])) / 1e9
            yield f"the run ended {f'{into_s:.3g} s into' if into_s > 0 else 'before'} this step"

    def _remarks(self) -> Iterator[str]:
        if self.concurrency:
            yield "closed loop: the endpoint set the rate, and latency counts from when a request was sent"
        if self.plan.get("sessions"):
            yield "an arrival began a session: further turns came after answers, so the endpoint shared in their rate"
        if self.overloaded:
            yield f"overloaded: {self.overload}, so no P99 describes this step"
        if lost := self.tally.inside[LOST]:
            yield f"{lost} arrivals were lost before their answer came, and count as failed"
        yield from dict.fromkeys(answer.sentence for answer in self.answers if answer.kept is not True)
        if not self._beyond and self.n < self.early_stop_n:
            yield f"{self.n} arrivals are too few for P99; MLPerf's rule asks for {self.early_stop_n}"
        elif not self.overloaded:
            yield from self._too_few()
        yield from filter(None, [self.unsampled, self.energy.remark])
        if by := self.device.throttled_by:
            yield f"its device's clocks were held down: {by} of the time"
        yield from filter(None, [self.unsteady])

    def _too_few(self) -> Iterator[str]:
        """Why P99 has no interval, or one open above although its arrivals did not fail, and what would help."""
        n, n_eff = self.n, self.order.n_eff
        if n_eff is None or self.order.p99_interval_ms is None:
            yield f"P99 has no interval: {n} arrivals are too few"
        elif (short := least_for_upper(99) / n_eff) > 1:
            longer_s = short * self.seconds
            advice = f"; a window of {words.duration(longer_s)} would do" if longer_s <= LONGEST_ADVICE_S else ""
            yield f"P99 is not bounded from above: {n} arrivals are worth {int(n_eff)} independent ones{advice}"


def growth_of(tally: Tally, streams: StreamFigures | None, chosen: Bools | None = None) -> Growth:
    """Whether the queue grew in the step's window; `chosen` are the slices to look at, settle time first."""
    grid = tally.grid
    # while the first answers come, more and more are under way without anything having to wait
    filled_s = streams.tally.filled_s if streams else 0.0
    skip = max(grid.before, int(filled_s * 1e9 / grid.slice_ns))
    looked = slice(skip, None) if chosen is None else np.flatnonzero(chosen[skip:]) + skip
    left, arrived = tally.in_flight()[looked], tally.arrived[looked]
    return trend.queue_growth(left, arrived, len(left) * grid.slice_ns / 1e9)


def cpu_pct(run: MeasuredRun, plan: Mapping[str, Any]) -> float | None:
    """The busiest load process in a step; a report that names no step belongs to the one that began last before it."""
    begins = np.sort([step["start_ns"] for step in run.manifest.scenario["steps"]])
    found = []
    for event in run.events:
        if event["event"] == "load_cpu" and event.get("pct") is not None:
            own = np.searchsorted(begins, event.get("time_ns", 0), side="right") - 1
            last = own >= 0 and begins[own] == plan["start_ns"]
            if event["step"] == plan["index"] if "step" in event else last:
                found.append(float(event["pct"]))
    return max(found, default=None)
