"""What kept a load process from its schedule: CPU, an event loop that came late, garbage collections. Step by step."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import numpy as np

from tailrate.loadtest.engine.workers.on_time.timer import Alarm

LOOK_NS = 25_000_000


class StallWatch:
    """Looks on while a block runs; `figures` tells what it saw of any part of it."""

    def __init__(self) -> None:
        self._looks: list[tuple[int, int, int]] = []
        """Instant, CPU until then, and by how much the look came late; all in ns."""
        self._pauses: list[tuple[int, int]] = []
        """When a collection began, and how long it took."""
        self._began_ns = 0

    @contextmanager
    def looking(self) -> Iterator[None]:
        self._looks.clear()
        self._pauses.clear()
        self._note(0)
        looker = gevent.spawn(self._look)
        gc.callbacks.append(self._on_collection)
        try:
            yield
        finally:
            gc.callbacks.remove(self._on_collection)
            looker.kill()
            self._note(0)

    def figures(self, start_ns: int, end_ns: int) -> dict[str, float | int]:
        """Between two instants of the monotonic clock, as far as it looked on."""
        at, cpu, lag = np.array(self._looks, dtype=np.int64).T
        start_ns, end_ns = max(start_ns, int(at[0])), min(end_ns, int(at[-1]))
        spent = np.interp([start_ns, end_ns], at, cpu)
        lags_ms = lag[(at >= start_ns) & (at <= end_ns)] / 1e6
        pauses_ms = [took / 1e6 for began, took in self._pauses if start_ns <= began <= end_ns]
        return {
            "cpu_pct": round(100 * float(spent[1] - spent[0]) / max(1, end_ns - start_ns), 1),
            "lag_p99_ms": round(float(np.quantile(lags_ms, 0.99, method="higher")) if len(lags_ms) else 0.0, 3),
            "lag_max_ms": round(float(lags_ms.max(initial=0.0)), 3),
            "gc_pauses": len(pauses_ms),
            "gc_max_ms": round(max(pauses_ms, default=0.0), 3),
        }

    def _note(self, lag_ns: int) -> None:
        self._looks.append((time.monotonic_ns(), time.process_time_ns(), lag_ns))

    def _look(self) -> None:
        alarm = Alarm()
        try:
            while True:
                due_ns = time.monotonic_ns() + LOOK_NS
                alarm.sleep_until(due_ns)
                self._note(max(0, time.monotonic_ns() - due_ns))
        finally:
            alarm.close()

    def _on_collection(self, phase: str, _: dict[str, Any]) -> None:
        try:
            began_ns, self._began_ns = self._began_ns, 0
            now_ns = time.monotonic_ns()
            if phase == "start":
                self._began_ns = now_ns
            elif began_ns:
                self._pauses.append((began_ns, now_ns - began_ns))
        except RecursionError:  # in the midst of an answer that is nested too deeply: goes uncounted
            pass
