"""A step's figures while it runs: for the progress line, and for a search that decides by them where to go next.

The report computes its own from the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.records import LATE_MS, LATE_SHARE, MOST_CPU_PCT, MOST_UNSENT
from loadtest.engine.client import OK
from loadtest.engine.plan import LoadStep
from loadtest.engine.search import Objective, Outcome

SEGMENTS = 10
RISING = 27
"""Mann-Kendall's S of ten segments that has less than one chance in a hundred without a trend (35: one in 4000)."""
SURELY_RISING = 35
BATCHES = 20
GIVEN_UP = 0.05
SETTLED_S = 1.0
"""What was answered so long ago has its row here, from whichever process."""
LEAST_S = 4.0

Floats = npt.NDArray[np.float64]


class Live:
    """`see` takes the step's rows as they come; `schedule_s` is when arrivals are due, from the step's start."""

    def __init__(self, step: LoadStep, start_ns: int, schedule_s: Floats) -> None:
        self.step = step
        self.start_ns = start_ns
        self._schedule_s = schedule_s
        self._latency_ms: list[Floats] = []
        self._late_ms: list[Floats] = []
        self._intended_s: list[Floats] = []
        self._done_s: list[Floats] = []
        self._statuses: dict[str, int] = {}

    def see(self, batch: Any) -> None:
        coded = batch.column("status").dictionary_encode()
        codes, names = np.asarray(coded.indices), coded.dictionary.to_pylist()
        for name, count in zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True):
            self._statuses[name] = self._statuses.get(name, 0) + count
        ok = codes == names.index(OK) if OK in names else np.zeros(len(codes), dtype=bool)
        intended, sent, done = (_float(batch, f"{name}_ns") for name in ("intended", "sent", "done"))
        self._late_ms.append((sent - intended)[~np.isnan(sent)] / 1e6)
        self._latency_ms.append(np.where(ok, (done - intended) / 1e6, np.inf))
        self._intended_s.append((intended - self.start_ns) / 1e9)
        self._done_s.append((np.where(np.isnan(done), intended, done) - self.start_ns) / 1e9)

    # ---- for people

    def figures(self, seconds: float) -> dict[str, Any]:
        late = self._late_ms
        return {
            "achieved_rps": round(self._statuses.get(OK, 0) / seconds, 3),
            "p50_ms": _quantile(self._latency_ms, 0.5),
            "p99_ms": _quantile(self._latency_ms, 0.99),
            "late_p50_ms": _quantile(late, 0.5),
            "late_p99_ms": _quantile(late, 0.99),
            "late_max_ms": _quantile(late, 1.0),
            "errors": sum(count for status, count in self._statuses.items() if status != OK),
            "statuses": dict(sorted(self._statuses.items())),
        }

    def sentence(self, seconds: float) -> str:
        found = {key: "–" if value is None else f"{value}" for key, value in self.figures(seconds).items()}
        asked = f"{self.step.concurrency} under way" if self.step.concurrency else f"offered {self.step.rate:.4g}/s"
        return (
            f"{self.step.endpoint}  {asked}  answered {found['achieved_rps']}/s  "
            f"P50 {found['p50_ms']} ms  P99 {found['p99_ms']} ms  late P99 {found['late_p99_ms']} ms  "
            f"errors {found['errors']}"
        )

    # ---- for a search

    def drowning(self, elapsed_s: float, limit_ms: float) -> bool:
        """Whether the queue grows without bound, and is already so long that everything in it misses its limit."""
        until_s = elapsed_s - SETTLED_S
        if until_s < LEAST_S:
            return False
        in_flight = self._in_flight(0.0, until_s)
        waiting_ms = 1e3 * in_flight[-1] / max(1e-9, self.step.rate)
        return _trend(in_flight) >= SURELY_RISING and waiting_ms > 2 * limit_ms

    def outcome(self, objective: Objective, seconds: float, cpu_pct: float, cut: bool) -> Outcome:
        """What the arrivals behind the settle time showed."""
        latency, intended, late = (
            np.concatenate(parts or [np.empty(0)]) for parts in (self._latency_ms, self._intended_s, self._late_ms)
        )
        order = np.argsort(intended, kind="stable")
        missed = latency[order][intended[order] >= self.step.settle_s] > objective.latency_ms
        n, gone = len(missed), sum(self._statuses.get(status, 0) for status in ("dropped", "timeout"))
        in_flight = self._in_flight(self.step.settle_s, seconds)
        growing = _trend(in_flight) >= RISING and in_flight[-1] - in_flight[0] > max(1.0, 0.005 * n)
        overloaded = cut or growing or gone > GIVEN_UP * max(1, len(latency))
        return Outcome(
            rate=self.step.rate,
            n=n,
            missed=int(missed.sum()),
            dependence=_dependence(missed),
            overloaded=overloaded,
            hindered=self._hindered(late, latency, n, 0 if overloaded else self._statuses.get("dropped", 0), cpu_pct),
            seconds=seconds,
        )

    def _hindered(self, late: Floats, latency: Floats, n: int, dropped: int, cpu_pct: float) -> str | None:
        if not n:
            return "no arrival was recorded"
        answered = latency[np.isfinite(latency)]
        limit_ms = max(LATE_MS, LATE_SHARE * float(np.median(answered)) if len(answered) else 0.0)
        late_ms = float(np.quantile(late, 0.99, method="higher")) if len(late) else 0.0
        if late_ms > limit_ms:
            return f"the load generator was late (P99 {late_ms:.3g} ms)"
        if dropped > MOST_UNSENT * n:
            return "arrivals were dropped although the queue did not grow: raise max_in_flight"
        return f"a load process was busy for {cpu_pct:.0f} % of the time" if cpu_pct > MOST_CPU_PCT else None

    def _in_flight(self, start_s: float, end_s: float) -> Floats:
        """Mean number of unanswered requests in each tenth of the time; what has no row yet is under way."""
        done = np.sort(np.concatenate(self._done_s or [np.empty(0)]))
        at = np.linspace(start_s, end_s, SEGMENTS * 20, endpoint=False)
        level = np.searchsorted(self._schedule_s, at) - np.searchsorted(done, at)
        return np.asarray(level.reshape(SEGMENTS, -1).mean(axis=1), dtype=np.float64)


def _trend(values: Floats) -> int:
    """Mann-Kendall's S: how many pairs rise, less those that fall."""
    rise = np.sign(values[None, :] - values[:, None])
    return int(np.triu(rise, 1).sum())


def _dependence(missed: npt.NDArray[np.bool_]) -> float:
    """Variance of the share of misses by batch means, over what it were if arrivals missed independently."""
    share = missed.mean() if len(missed) else 0.0
    if not 0 < share < 1 or len(missed) < 2 * BATCHES:
        return 1.0
    means = np.array([batch.mean() for batch in np.array_split(missed, BATCHES)])
    return float(means.var(ddof=1) / BATCHES * len(missed) / (share * (1 - share)))


def _float(batch: Any, name: str) -> Floats:
    """With NaN for what is null."""
    found: Floats = batch.column(name).to_numpy(zero_copy_only=False).astype(np.float64)
    return found


def _quantile(chunks: list[Floats], q: float) -> float | None:
    values = np.concatenate(chunks) if chunks else np.empty(0)
    value = float(np.quantile(values, q, method="higher")) if len(values) else np.inf
    return round(value, 3) if np.isfinite(value) else None
