"""A step's figures while it runs: for whoever watches it, and for a search that decides by them where to go next.

Figures are counts and histograms, so a step of a day takes no more memory than one of a minute; only a search keeps
every arrival. What was answered within each second is put aside until the board takes it. The report computes its own
figures from the rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailrate.analysis.judging.judge import Judgement, Window, answers
from tailrate.analysis.judging.share import Term
from tailrate.analysis.judging.trust import FILLED
from tailrate.analysis.records.folder import REQUESTS
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.run.arrays import Chunk
from tailrate.analysis.run.bins import NEVER
from tailrate.analysis.run.columns import WHOLE, conform
from tailrate.analysis.run.outcomes import STREAM_COLUMNS, StreamTimes, limited_ms, succeeded
from tailrate.analysis.stats.array_types import Bools, Floats, Ints
from tailrate.analysis.text.words import percentile, significant
from tailrate.loadtest.engine.live.histogram import Histogram
from tailrate.loadtest.engine.live.probe import Probe
from tailrate.loadtest.engine.live.window import DROPPED, LEAST_S, SEGMENTS, SETTLED_S, LiveWindow
from tailrate.loadtest.engine.scenario.knee_search import KneeObjective, ProbeOutcome
from tailrate.loadtest.engine.scenario.steps import LoadStep
from tailrate.loadtest.engine.workers.on_time.breath import breath

SURELY_RISING = 35
"""Mann-Kendall's S of ten segments that has one chance in 4000 without a trend."""
WHOLE_COLUMNS = ("worker", "seq", "status", "error", "intended_ns", "sent_ns", WHOLE)
COLUMNS = (*dict.fromkeys((*WHOLE_COLUMNS, *STREAM_COLUMNS)),)


class Second:
    """What became of the arrivals that were answered, or given up, within one second."""

    def __init__(self) -> None:
        self.latency = Histogram()
        self.dropped = 0
        self.late = 0
        self.ttft = Histogram()
        self.tokens: int | None = None

    def columns(self) -> list[float | None]:
        """`points.RATES` from `ok` to `p99_ms`."""
        ok, over = self.latency.finite, self.latency
        failed = over.infinite - self.dropped
        return [ok, failed, self.dropped, self.late, over.quantile(0.5), over.quantile(0.99)]

    def streamed(self) -> list[float | None]:
        """… and from `ttft_p99_ms` on."""
        return [None if self.tokens is None else self.ttft.quantile(0.99), self.tokens]

    def merge(self, other: Second) -> None:
        self.latency.merge(other.latency)
        self.dropped += other.dropped
        self.late += other.late
        self.ttft.merge(other.ttft)
        if other.tokens is not None:
            self.tokens = (self.tokens or 0) + other.tokens


class Live:
    """`see` takes the step's rows as they come; `schedule_s` is when arrivals are due, from the step's start.

    Seconds count from `origin_ns`, the run's start. `keep` keeps every arrival, for a search.
    """

    def __init__(
        self,
        step: LoadStep,
        start_ns: int,
        schedule_s: Floats,
        origin_ns: int | None = None,
        keep: bool = False,
        slos: Sequence[Slo] = (),
        streams: bool = False,
    ) -> None:
        self.step = step
        self.start_ns = start_ns
        self.latency, self.lateness, self.ttft = Histogram(), Histogram(), Histogram()
        self.tokens = 0
        """Of answers that are over."""
        self.late = 0
        self.in_time = 0
        """Successes before its end: those who come later were waited for."""
        self.next_second = 0
        """The first second that the board has not taken yet."""
        self.ended_s: float | None = None
        """How long it took, once every arrival is answered."""
        self._origin_ns = start_ns if origin_ns is None else origin_ns
        self._end_ns = start_ns + step.length_ns
        self._schedule_s = schedule_s
        self._slos = slos
        self.window = LiveWindow(step, start_ns, slos, streams)
        """Without the settle time."""
        self._statuses: Counter[str] = Counter()
        self._workers: Counter[int] = Counter()
        self._seconds: dict[int, Second] = {}
        self.taken_ok, self._taken = 0, 0
        self._gone: list[tuple[Floats, int]] = []
        self._keep = keep
        self._asks_tokens = streams or keep or any(name for slo in slos for name in slo.bounds)
        self._rows: list[dict[str, Any]] = []
        """All of them, for a search: `probe.COLUMNS`."""
        self._streamed_s: list[Floats] = []
        """From the first to the last event of each."""
        self._done_s: list[Floats] = []

    def see(self, batch: Any) -> None:
        # what comes in one piece is done in pieces, as arrivals wait meanwhile
        streamed = self._asks_tokens or batch.column("first_ns").null_count < len(batch)
        rows = as_chunk(batch, COLUMNS if streamed else WHOLE_COLUMNS)
        breath()
        codes, names = rows.text("status")
        self._statuses.update(dict(zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True)))
        for index, count in zip(*np.unique(rows.whole("worker"), return_counts=True), strict=True):
            self._workers[int(index)] += int(count)
        ok, dropped = succeeded(rows), np.array([name == DROPPED for name in names], np.bool_)[codes]
        intended, sent, done = (rows.whole(name) for name in ("intended_ns", "sent_ns", WHOLE))
        late_ms, latency_ms = np.where(sent != NEVER, (sent - intended) / 1e6, np.nan), (done - intended) / 1e6
        was_late = late_ms > self.window.late_limit_ms  # False for what was not sent
        self.late += int(was_late.sum())
        self.lateness.add(late_ms[sent != NEVER])
        self.latency.add(latency_ms[ok], int((~ok).sum()))
        over_ns = np.where(done == NEVER, intended, done)
        self.in_time += int((ok & (over_ns < self._end_ns)).sum())
        # what comes when its second has been taken already goes into the next: the sum stays right
        seconds = np.maximum((over_ns - self._origin_ns) // 1_000_000_000, self.next_second)
        for second in np.unique(seconds).tolist():
            mine = seconds == second
            place = self._seconds.setdefault(second, Second())
            place.latency.add(latency_ms[mine & ok], int((mine & ~ok).sum()))
            place.dropped += int((mine & dropped).sum())
            place.late += int((mine & was_late).sum())
        breath()
        streams = StreamTimes.of(rows, ok) if streamed else None
        figures_ms = limited_ms(ok, latency_ms, streams)
        if streams and (streams.first_ns != NEVER).any():
            self._see_streams(streams, seconds, ok)
        self.window.see(rows, ok, figures_ms)
        if self._keep:
            timed_out = np.array([name == "timeout" for name in names], np.bool_)[codes]
            columns = {"due_s": (intended - self.start_ns) / 1e9, "late_ms": late_ms, "dropped": dropped}
            self._rows.append(figures_ms | columns | {"timed_out": timed_out})
            self._done_s.append((over_ns - self.start_ns) / 1e9)

    def _see_streams(self, streams: StreamTimes, seconds: Ints, ok: Bools) -> None:
        began, ttft_ms = streams.first_ns != NEVER, streams.ttft_ns / 1e6
        self.window.streams = True
        if self._keep:
            self._streamed_s.append((streams.last_ns - streams.first_ns)[ok & began] / 1e9)
        for second in np.unique(seconds).tolist():
            mine, place = seconds == second, self._seconds[second]
            place.ttft.add(ttft_ms[mine & began], int((mine & ~began).sum()))
            place.tokens = (place.tokens or 0) + int(streams.tokens[mine].sum())
        self.ttft.add(ttft_ms[began], int((~began).sum()))
        self.tokens += int(streams.tokens.sum())

    # ---- for people

    def answers(self) -> list[Judgement]:
        """What the judge says of it so far, to each term of each objective."""
        if not self.window.n:
            return []
        found = zip(self._slos, self.window.windows(self._due), strict=True)
        return [answer for slo, window in found for answer in answers(slo, [window])]

    @property
    def shown(self) -> Window:
        """What stands in the way of its figures so far."""
        return self.window.shown(self._due)

    def _due(self, at_s: Floats) -> Ints:
        return np.searchsorted(self._schedule_s, at_s)

    @property
    def streams(self) -> bool:
        """Whether its answers come token by token."""
        return self.window.streams

    @property
    def n(self) -> int:
        return self._statuses.total()

    @property
    def answered(self) -> int:
        return self.latency.finite

    @property
    def statuses(self) -> dict[str, int]:
        return dict(sorted(self._statuses.items()))

    @property
    def drained(self) -> bool:
        """Whether nothing more will come of it."""
        return self.ended_s is not None and not self._seconds

    def take(self, second: int) -> Second | None:
        """What was answered in that second; to be asked for each of them in turn."""
        self.next_second = second + 1
        found = self._seconds.pop(second, None)
        if found:
            self._taken += found.latency.finite + found.latency.infinite
            self.taken_ok += found.latency.finite
        return found

    def due(self, at_s: float) -> int:
        """Arrivals whose time had come so long after the step's start."""
        return int(np.searchsorted(self._schedule_s, at_s))

    def in_flight(self, at_s: float) -> int | None:
        """Due and not answered when the second ended that was taken last; without what a lost process owes.

        None of sessions: who is thinking and who is waiting is known to the load processes alone.
        """
        if self.step.concurrency:
            return self.step.concurrency if 0 <= at_s < self.step.seconds and self.ended_s is None else 0
        if self.step.sessions:
            return None
        gone = sum(int(np.searchsorted(share, at_s)) - seen for share, seen in self._gone)
        return max(0, self.due(at_s) - self._taken - max(0, gone))

    def lose(self, index: int, count: int) -> None:
        """That load process, of so many, will report no more."""
        self._gone.append((self._schedule_s[index::count], self._workers[index]))
        self.window.short = True

    def cut(self, end_ns: int) -> None:
        """It ends before its time: nothing more is sent."""
        self._end_ns = min(self._end_ns, end_ns)

    def end(self, seconds: float) -> None:
        """Every arrival has its row; what only a search wants is let go."""
        self.ended_s = seconds
        for kept in (self._rows, self._streamed_s, self._done_s):
            kept.clear()

    def forget(self) -> None:
        """Its last second has been taken: lets the schedule go."""
        self._schedule_s = np.empty(0)
        self._gone.clear()
        self.window.forget()

    def figures(self, seconds: float) -> dict[str, Any]:
        return {
            "achieved_rps": round(self.in_time / seconds, 3),
            "p50_ms": self.latency.quantile(0.5),
            "p99_ms": self.latency.quantile(0.99),
            "late_p50_ms": self.lateness.quantile(0.5),
            "late_p99_ms": self.lateness.quantile(0.99),
            "late_max_ms": self.lateness.quantile(1.0),
            "errors": self.n - self.answered,
            "statuses": self.statuses,
        }

    def sentence(self, seconds: float) -> str:
        found = self.figures(seconds)
        asked = f"{self.step.concurrency} under way" if self.step.concurrency else f"offered {self.step.rate:.4g}/s"
        p50, p99 = (percentile(found[name], self.n) for name in ("p50_ms", "p99_ms"))
        return (
            f"{self.step.endpoint}  {asked}  answered {significant(found['achieved_rps'])}/s  "
            f"P50 {p50} ms  P99 {p99} ms  late P99 {significant(found['late_p99_ms'])} ms  errors {found['errors']}"
        )

    # ---- for a search

    def drowning(self, elapsed_s: float, objective: KneeObjective) -> bool:
        """Whether the queue grows without bound, and is already so long that everything in it misses its limit.

        While the first streams last, more and more are under way without anything having to wait.
        """
        streamed_s = self._kept(self._streamed_s)
        until_s, filled_s = elapsed_s - SETTLED_S, float(np.percentile(streamed_s, FILLED)) if len(streamed_s) else 0.0
        if until_s - filled_s < LEAST_S:
            return False
        in_flight = self._in_flight(filled_s, until_s)
        waiting_ms = 1e3 * (in_flight[-1] / max(1e-9, self.step.rate) - filled_s)
        # that of a token says nothing of waiting
        limit_ms = min((ms for figure, ms in objective.limits if figure != "tpot"), default=math.inf)
        return _trend(in_flight) >= SURELY_RISING and waiting_ms > 2 * limit_ms

    def outcome(
        self, objective: KneeObjective, seconds: float, cpu_pct: float, cut: bool, vetoes: Sequence[Term] = ()
    ) -> ProbeOutcome:
        """What the arrivals behind the settle time showed."""
        probe = Probe(self.step, seconds, self._rows)
        return probe.outcome(objective, vetoes, cpu_pct, cut, self.window.late_limit_ms)

    @staticmethod
    def _kept(parts: Sequence[Floats]) -> Floats:
        return np.concatenate([np.empty(0), *parts])

    def _in_flight(self, start_s: float, end_s: float) -> Floats:
        """Mean number of unanswered requests in each tenth of the time; what has no row yet is under way."""
        done = np.sort(self._kept(self._done_s))
        at = np.linspace(start_s, end_s, SEGMENTS * 20, endpoint=False)
        level = np.searchsorted(self._schedule_s, at) - np.searchsorted(done, at)
        return np.asarray(level.reshape(SEGMENTS, -1).mean(axis=1), dtype=np.float64)


def _trend(values: Floats) -> int:
    """Mann-Kendall's S: how many pairs rise, less those that fall."""
    rise = np.sign(values[None, :] - values[:, None])
    return int(np.triu(rise, 1).sum())


def as_chunk(batch: Any, columns: Sequence[str]) -> Chunk:
    """Rows on their way to the run folder, as it will give them back."""
    return Chunk(conform(batch, REQUESTS, Path("rows under way"), columns))
