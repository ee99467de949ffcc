"""Each minute of a long run in a line: what is left of it when its rows have been deleted.

A minute counts from its chapter's start and ends with it at the latest, by the instants at which arrivals were due; it
is told when the last of them has been answered or given up. Percentiles are those of histograms.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadtest.engine.client import OK
from loadtest.engine.histogram import Histogram

LENGTH_NS = 60_000_000_000
GRACE_NS = 2_000_000_000
"""For rows on their way here."""


@dataclass(slots=True)
class Minute:
    endpoint: str
    start_ns: int
    end_ns: int
    statuses: Counter[str] = field(default_factory=Counter)
    latency: Histogram = field(default_factory=Histogram)
    replicas: set[str] = field(default_factory=set)

    @property
    def n(self) -> int:
        return self.statuses.total()

    @property
    def ok(self) -> int:
        return self.statuses[OK]

    def as_json(self) -> dict[str, Any]:
        return {
            "endpoint": self.endpoint,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "n": self.n,
            "ok": self.ok,
            "statuses": dict(sorted(self.statuses.items())),
            "p50_ms": self.latency.quantile(0.5),
            "p99_ms": self.latency.quantile(0.99),
            "replicas": len(self.replicas),
        }


class Minutes:
    """`begin` a chapter, `see` its rows, `over` gives the minutes that nothing can be added to."""

    def __init__(self, timeout_s: float) -> None:
        self._after_ns = int(timeout_s * 1e9) + GRACE_NS
        self._start_ns, self._end_ns = 0, 0
        self._open: dict[tuple[int, str], Minute] = {}

    def begin(self, start_ns: int, end_ns: int) -> None:
        self._start_ns, self._end_ns = start_ns, end_ns

    def see(self, batch: Any) -> None:
        intended = np.asarray(batch.column("intended_ns"))
        done = batch.column("done_ns").to_numpy(zero_copy_only=False).astype(np.float64)
        statuses, endpoints, replicas = (
            np.asarray(batch.column(name).to_pylist(), dtype=object) for name in ("status", "endpoint", "replica")
        )
        numbers = (intended - self._start_ns) // LENGTH_NS
        for number in np.unique(numbers).tolist():
            for endpoint in set(endpoints[numbers == number]):
                mine = (numbers == number) & (endpoints == endpoint)
                minute = self._minute(number, endpoint)
                minute.statuses.update(statuses[mine])
                minute.replicas.update(name for name in replicas[mine] if name)
                good = mine & (statuses == OK)
                minute.latency.add((done[good] - intended[good]) / 1e6, int(mine.sum() - good.sum()))

    def _minute(self, number: int, endpoint: str) -> Minute:
        start_ns = self._start_ns + number * LENGTH_NS
        fresh = Minute(endpoint, start_ns, min(start_ns + LENGTH_NS, self._end_ns))
        return self._open.setdefault((number, endpoint), fresh)

    def over(self, now_ns: int | None = None) -> list[Minute]:
        """Without an instant: all of them, because the chapter has ended."""
        done = [key for key, minute in self._open.items() if now_ns is None or minute.end_ns + self._after_ns < now_ns]
        return [self._open.pop(key) for key in sorted(done)]
