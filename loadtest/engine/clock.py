"""One time base for a run, and where the device hosts' clocks stand against it.

`Base` fixes the wall clock to the monotonic clock once, so that a step of the wall clock during a run does no harm;
workers on other machines get it for their own monotonic clock. `Offset` estimates theirs minus ours from exchanges (t1
sent, t2 received there, t3 sent there, t4 back): offset ((t2−t1)+(t3−t4))/2 with an error of at most half the round
trip that is not the other's own time. The shortest such round trip of each second is kept. A line through the short
ones (Theil-Sen) gives offset and drift; the error that is stated is the furthest that the truth may be from that line
at any of them: its own half round trip and its distance from the line, and as much more as two straight lines that are
no further apart there may be at the run's ends. Clocks move in steps (of 4 ms where a kernel has no finer one): each of
the four instants may be as much as a step later than it says, a round trip come out as nothing or less, and a step is
added to what it may be wrong by.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from statistics import median
from typing import Any

WINDOW_NS = 1_000_000_000
MOST_KEPT = 200
"""Windows; beyond them they become twice as long."""
SHORT = 2.0
"""Round trips up to so many times the median are used: a loaded second says little."""


@cache
def clock_step_ns() -> int:
    """How far this machine's clock moves at once: some tens of nanoseconds, or milliseconds."""
    steps = []
    for _ in range(3):  # one may be as long as this process did not run
        began_ns = now_ns = time.monotonic_ns()
        while now_ns == began_ns:
            now_ns = time.monotonic_ns()
        steps.append(now_ns - began_ns)
    return min(steps)


@dataclass(frozen=True, slots=True)
class Base:
    """Wall time = monotonic time + `anchor_ns`, for the whole run."""

    anchor_ns: int

    @classmethod
    def here(cls) -> Base:
        return cls(time.time_ns() - time.monotonic_ns())

    def wall_ns(self, monotonic_ns: int) -> int:
        return monotonic_ns + self.anchor_ns

    def monotonic_ns(self, wall_ns: int) -> int:
        return wall_ns - self.anchor_ns

    def for_clock(self, offset_ns: int, error_ns: int) -> Base:
        """The same wall time for a process whose monotonic clock is ahead of ours by `offset_ns`.

        Where that is less than it is known to, both clocks are the same one: processes of one machine.
        """
        return self if abs(offset_ns) <= error_ns else Base(self.anchor_ns - offset_ns)


class Offset:
    """Keeps the best exchange of each window; cheap enough to see every request, and for any length of time."""

    def __init__(self, step_ns: int | None = None) -> None:
        self._step_ns = clock_step_ns() if step_ns is None else step_ns
        self._best: dict[int, tuple[int, int, int]] = {}  # window → (round trip, offset, at)
        self._window_ns = WINDOW_NS

    def see(self, t1: int, t2: int, t3: int, t4: int) -> None:
        self.merge([((t4 - t1) - (t3 - t2), ((t2 - t1) + (t3 - t4)) // 2, (t1 + t4) // 2)])

    def best(self) -> list[tuple[int, int, int]]:
        return [self._best[window] for window in sorted(self._best)]

    def merge(self, windows: Iterable[tuple[int, int, int]]) -> None:
        """Takes in what another process saw."""
        for round_trip, offset, at in windows:
            window = at // self._window_ns
            if window not in self._best or round_trip < self._best[window][0]:
                self._best[window] = (round_trip, offset, at)
        if len(self._best) > MOST_KEPT:
            kept, self._best, self._window_ns = self.best(), {}, 2 * self._window_ns
            self.merge(kept)

    def least(self) -> tuple[int, int, int] | None:
        """(offset, error, at) of the exchange with the shortest round trip."""
        if not self._best:
            return None
        round_trip, offset, at = min(self._best.values())
        return offset, math.ceil(round_trip / 2 + self._longer_step_ns()), at

    def _longer_step_ns(self) -> int:
        """Of both clocks: the other's step is as long as ours, or as round trips below nothing show."""
        return max(self._step_ns, -min(self._best.values())[0] - self._step_ns)

    def _beyond(self, used: Sequence[tuple[int, int, int]]) -> int:
        """How far the run may reach beyond the first and the last of them, in ns."""
        begin, end = min(self._best) * self._window_ns, (max(self._best) + 1) * self._window_ns
        return max(used[0][2] - begin, end - used[-1][2])

    def as_json(self, host: str) -> dict[str, Any] | None:
        """The manifest's entry: the offset at `at_ns`, its error bound, and the drift; None before any exchange."""
        found = self.best()
        if not found:
            return None
        step_ns = self._longer_step_ns()
        usual = median(round_trip / 2 for round_trip, *_ in found) + step_ns
        used = [window for window in found if window[0] / 2 + step_ns <= SHORT * usual]
        slopes = [(b[1] - a[1]) / (b[2] - a[2]) for a, b in combinations(used, 2) if b[2] > a[2]]
        # two windows cannot tell drift from jitter
        drift = median(slopes) if len(used) >= 3 else 0.0
        at_ns = min(used)[2]
        offset = median(known - drift * (at - at_ns) for _, known, at in used)
        error = max(abs(known - offset - drift * (at - at_ns)) + trip / 2 for trip, known, at in used)
        error += step_ns
        if (span := used[-1][2] - used[0][2]) > 0:
            error *= 1 + 2 * self._beyond(used) / span
        return {
            "host": host,
            "offset_ns": round(offset),
            "error_ns": math.ceil(error),
            "drift_ppm": round(drift * 1e6, 3),
            "at_ns": at_ns,
        }
