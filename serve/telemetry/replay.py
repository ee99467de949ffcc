"""A recorded device trace played back, over and over, for tests and demos without a GPU.

The trace is a CSV file with the columns of a device sample: what `tailrate rows RUN --table devices` prints.
"""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any

from tailrate.serve.spec import ServeError
from tailrate.serve.wire import SAMPLE_FIELDS

TEXTS = ("host", "device")
WHOLE = ("time_ns", "index", "mem_bytes", "throttle_bits", "own_mem_bytes")


class ReplaySource:
    """The samples that were due since the last read, each of the instant that it had in the trace."""

    name = "replay"

    def __init__(self, path: Path) -> None:
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = [_typed(row) for row in csv.DictReader(file)]
        except (OSError, ValueError) as problem:
            raise ServeError(f"the device trace {path} cannot be played back: {problem}") from None
        if not rows or any(row.get(key) is None for row in rows for key in ("time_ns", "device")):
            raise ServeError(f"the device trace {path} has no samples, or some without time_ns or device")
        self._rows = sorted(rows, key=lambda row: int(row["time_ns"]))
        first = int(self._rows[0]["time_ns"])
        self._at_ns = [int(row["time_ns"]) - first for row in self._rows]
        times = sorted(set(self._at_ns))
        self._length_ns = times[-1] + (times[1] - times[0] if len(times) > 1 else 1_000_000_000)
        self._began_ns = time.time_ns()
        self._next = 0

    def read(self) -> list[dict[str, Any]]:
        found = []
        while (due := self._due_ns(self._next)) <= time.time_ns():
            row = self._rows[self._next % len(self._rows)] | {"time_ns": due}
            row.pop("host", None)
            found.append(row)
            self._next += 1
        return found

    def _due_ns(self, number: int) -> int:
        turn, place = divmod(number, len(self._rows))
        return self._began_ns + turn * self._length_ns + self._at_ns[place]


def _typed(row: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in SAMPLE_FIELDS:
        if (text := row.get(name)) and text.lower() != "nan":
            found[name] = text if name in TEXTS else int(float(text)) if name in WHOLE and "." in text else (
                int(text) if name in WHOLE else float(text)
            )  # fmt: skip
    return found
