"""Locust's own statistics, told of many requests at once, as its master is by its workers.

One at a time they take a tenth of what a whole request costs here. Who else listens to Locust's event of requests
still hears of each.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict

from locust import stats
from locust.env import Environment

TOGETHER = 128
RUNNER = "locust.runners"
"""Whose listener keeps the statistics."""


class LocustStatistics:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._told: dict[tuple[str, str], list[tuple[float | None, int]]] = defaultdict(list)
        """By name and method: milliseconds and bytes of each."""
        self._others = self._heard_by_others()

    def tell(self, method: str, name: str, response_ms: float | None, size: int, error: str | None) -> None:
        """`response_ms`: None of one that was not sent."""
        wrong = None if error is None else RuntimeError(error)
        if self._others:
            self._environment.events.request.fire(
                request_type=method, name=name, response_time=response_ms, response_length=size, exception=wrong,
                context={}, response=None,
            )  # fmt: skip
            return
        told = self._told[name, method]
        if not told:
            self._environment.stats.get(name, method)  # its time begins
        told.append((response_ms, size))
        if wrong is not None:
            self._environment.stats.log_error(method, name, wrong)
        if len(told) >= TOGETHER:
            self.flush()

    def flush(self) -> None:
        known, now = self._environment.stats, time.time()
        for (name, method), told in self._told.items():
            times = [ms for ms, _ in told if ms is not None]
            some = stats.StatsEntry(known, name, method)
            vars(some).update({  # as a worker reports it
                "last_request_timestamp": now, "num_requests": len(told),
                "num_none_requests": len(told) - len(times), "total_response_time": sum(times),
                "max_response_time": max(times, default=0), "min_response_time": min(times, default=None),
                "total_content_length": sum(size for _, size in told),
                "response_times": Counter(map(stats.bucket_response_time, times)),
                "num_reqs_per_sec": {int(now): len(told)},
            })  # fmt: skip
            known.entries[name, method].extend(some)
            known.total.extend(some)
        self._told.clear()
        self._others = self._heard_by_others()

    def _heard_by_others(self) -> bool:
        handlers = self._environment.events.request._handlers
        return any(getattr(each, "__module__", "") != RUNNER for each in handlers)
