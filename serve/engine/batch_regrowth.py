"""When a batch size for which memory ran out is tried again: what took the memory may have been one request.

A size comes back after a wait in which memory did not run out and a batch of the largest size that is left fitted;
where it then runs out again, the next wait is twice as long. A single row that does not fit begins the wait anew.
Pure: time is an argument.
"""

from __future__ import annotations

FIRST_S = 60.0
LONGEST_S = 3600.0


class Regrowth:
    """Of one replica."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        """Those that were given up, largest first."""
        self._wait_s = FIRST_S
        self._again_s = 0.0
        self._on_trial = False
        self._fitted = False

    def gave_up(self, size: int, now_s: float) -> None:
        """Batches of so many rows are no longer made."""
        self._sizes.append(size)
        self.ran_out(now_s)

    def ran_out(self, now_s: float) -> None:
        """Memory ran out, be it for a single row."""
        if self._on_trial:
            self._wait_s = min(2 * self._wait_s, LONGEST_S)
        self._wait(now_s, on_trial=False)

    def ran(self, largest: bool, now_s: float) -> int | None:
        """A batch fitted, and was as large as they are made or not: what size to try from now on, if another."""
        self._fitted |= largest
        if not self._fitted or now_s < self._again_s:
            return None
        if not self._sizes:
            self._wait_s, self._on_trial = FIRST_S, False  # all is as it was
            return None
        self._wait(now_s, on_trial=True)
        return self._sizes.pop()

    def _wait(self, now_s: float, *, on_trial: bool) -> None:
        self._again_s = now_s + self._wait_s
        self._on_trial, self._fitted = on_trial, False
