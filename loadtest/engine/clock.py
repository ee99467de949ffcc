"""One time base for a run, and where the device host's clock stands against it.

`Base` fixes the wall clock to the monotonic clock once, so that a step of the wall clock during a run
does no harm. `Offset` estimates device minus client from exchanges (t1 sent, t2 received there, t3 sent
there, t4 back): offset ((t2−t1)+(t3−t4))/2 with an error of at most half the round trip that is not the
server's own time. The least such round trip of each window is kept; drift is the Theil-Sen slope over windows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

WINDOW_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Base:
    """Wall time = monotonic time + `anchor_ns`, for the whole run and, on one machine, for all its processes."""

    machine: str
    anchor_ns: int

    @classmethod
    def here(cls) -> Base:
        return cls(machine_id(), time.time_ns() - time.monotonic_ns())

    def wall_ns(self, monotonic_ns: int) -> int:
        return monotonic_ns + self.anchor_ns

    def monotonic_ns(self, wall_ns: int) -> int:
        return wall_ns - self.anchor_ns


def machine_id() -> str:
    """The same for processes that share a monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{time.time_ns() - time.monotonic_ns()}"


class Offset:
    """Keeps the best exchange of each window; cheap enough to see every request."""

    def __init__(self) -> None:
        self._best: dict[int, tuple[int, int, int]] = {}  # window → (round trip, offset, at)

    def see(self, t1: int, t2: int, t3: int, t4: int) -> None:
        round_trip = (t4 - t1) - (t3 - t2)
        window = t1 // WINDOW_NS
        best = self._best.get(window)
        if best is None or round_trip < best[0]:
            self._best[window] = (round_trip, ((t2 - t1) + (t3 - t4)) // 2, (t1 + t4) // 2)

    def best(self) -> list[tuple[int, int, int]]:
        return [self._best[window] for window in sorted(self._best)]

    def merge(self, windows: Iterable[tuple[int, int, int]]) -> None:
        """Takes in what another process saw."""
        for round_trip, offset, at in windows:
            window = at // WINDOW_NS
            if window not in self._best or round_trip < self._best[window][0]:
                self._best[window] = (round_trip, offset, at)

    def as_json(self, host: str) -> dict[str, Any] | None:
        """The manifest's entry: the offset at `at_ns`, its error bound, and the drift; None before any exchange."""
        found = self.best()
        if not found:
            return None
        round_trip, offset, at = min(found)
        slopes = [(b[1] - a[1]) / (b[2] - a[2]) for a, b in combinations(found, 2) if b[2] > a[2]]
        # two windows cannot tell drift from jitter
        drift = median(slopes) if len(found) >= 3 else 0.0
        return {
            "host": host,
            "offset_ns": offset,
            "error_ns": max(round_trip, 0) // 2,
            "drift_ppm": round(drift * 1e6, 3),
            "at_ns": at,
        }
