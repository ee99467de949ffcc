"""What kept a load process from its schedule: CPU, an event loop that came late, garbage collections. Per order."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import numpy as np

from loadtest.engine.alarm import Alarm

LOOK_NS = 25_000_000


class Watch:
    """Looks on while a block runs; `figures` is what it saw."""

    def __init__(self) -> None:
        self.figures: dict[str, float | int] = {}
        self._lags_ms: list[float] = []
        self._pauses_ms: list[float] = []
        self._began_ns = 0

    @contextmanager
    def looking(self) -> Iterator[None]:
        self._lags_ms.clear()
        self._pauses_ms.clear()
        cpu_s, began_s = time.process_time(), time.monotonic()
        looker = gevent.spawn(self._look)
        gc.callbacks.append(self._on_collection)
        try:
            yield
        finally:
            gc.callbacks.remove(self._on_collection)
            looker.kill()
            spent_s = max(1e-9, time.monotonic() - began_s)
            self.figures = {
                "cpu_pct": round(100 * (time.process_time() - cpu_s) / spent_s, 1),
                "lag_p99_ms": round(float(np.quantile(self._lags_ms or [0.0], 0.99)), 3),
                "lag_max_ms": round(max(self._lags_ms, default=0.0), 3),
                "gc_pauses": len(self._pauses_ms),
                "gc_max_ms": round(max(self._pauses_ms, default=0.0), 3),
            }

    def _look(self) -> None:
        alarm = Alarm()
        try:
            while True:
                due_ns = time.monotonic_ns() + LOOK_NS
                alarm.sleep_until(due_ns)
                self._lags_ms.append((time.monotonic_ns() - due_ns) / 1e6)
        finally:
            alarm.close()

    def _on_collection(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._began_ns = time.perf_counter_ns()
        else:
            self._pauses_ms.append((time.perf_counter_ns() - self._began_ns) / 1e6)
