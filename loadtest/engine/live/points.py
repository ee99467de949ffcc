"""A run's points over time, one a second, kept so that a day of them stays small.

The newest are kept as they came; older ones are taken together in twos, then fours, then eights, `LENGTH` points of
each, so that a point spans about a three-hundredth of its age: an hour is 1000 points, a day 2500. Each is kept as
JSON, which takes a fifth of the memory and is sent many times, in room for 57 days that is taken at the start: memory
that grew with what is kept could not be told from a leak. Pure: a point's `t` (its end, seconds since the run began) is
all the time there is.

A point is `{"t", "s": seconds it spans, "e": {endpoint's number: columns of RATES}, "d": {device's number: columns of
DEVICES}}`. Taken together, counts are added up, P50 and what devices showed are averaged, and of P99 and of what was
unanswered the highest counts: a moment that was bad stays visible.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Point = dict[str, Any]
Values = Sequence[float | None]

RATES = (
    "offered",
    "ok",
    "failed",
    "dropped",
    "late",
    "p50_ms",
    "p99_ms",
    "in_flight",
    "step_s",
    "ttft_p99_ms",
    "tokens",
)
COUNTS = 5
"""So many of them are counts. A percentile that is null although there are counts is infinite; `step_s` is how much of
the time fell into a step. Where answers are no streams there is neither of the last two."""
DEVICES = ("util_pct", "mem_bytes", "power_w", "temp_c", "sm_mhz")
LENGTH = 300
TIERS = 14
"""Beyond 57 days the oldest are let go."""
WIDTH = 256
"""Bytes of a point, to begin with."""


class LivePoints:
    """`add` points in order; `after` gives those that are newer than a reader's last one."""

    def __init__(self, length: int = LENGTH) -> None:
        self._tiers = [Ring(length + 1) for _ in range(TIERS)]

    def add(self, point: Point) -> None:
        for tier in self._tiers:
            older = together(*(json.loads(tier.pop()) for _ in range(2))) if tier.count == tier.room else None
            tier.append(written(point).encode())
            if older is None:
                return
            point = older

    def after(self, t: int) -> list[str]:
        """Points that end after `t`, oldest first, as JSON."""
        found: list[str] = []
        for tier in self._tiers:
            for raw in tier.newest():
                text = raw.decode()
                if ended(text) <= t:
                    return found[::-1]
                found.append(text)
        return found[::-1]


class Ring:
    """At most so many texts, oldest first, whose room is taken at once."""

    def __init__(self, room: int) -> None:
        self.room, self.count, self._first = room, 0, 0
        self._cells = np.full(room, WIDTH * b" ")

    def append(self, text: bytes) -> None:
        if len(text) > self._cells.itemsize:
            self._cells = self._cells.astype(f"S{2 * len(text)}")
        self._cells[(self._first + self.count) % self.room] = text
        self.count += 1

    def pop(self) -> bytes:
        """The oldest."""
        text: bytes = self._cells[self._first]
        self._first, self.count = (self._first + 1) % self.room, self.count - 1
        return text

    def newest(self) -> Iterator[bytes]:
        """From the newest to the oldest."""
        for place in range(self.count - 1, -1, -1):
            yield self._cells[(self._first + place) % self.room]


def written(point: Point) -> str:
    return json.dumps({"t": point["t"]} | point, separators=(",", ":"))


def ended(text: str) -> int:
    """The `t` with which the text of a point begins."""
    return int(text[len('{"t":') : text.index(",")])


def together(a: Point, b: Point) -> Point:
    """One point for two neighbours."""
    rates = {key: _rates(a["e"].get(key), b["e"].get(key)) for key in a["e"] | b["e"]}
    devices = {key: _devices(a["d"].get(key), a["s"], b["d"].get(key), b["s"]) for key in a["d"] | b["d"]}
    return {"t": b["t"], "s": a["s"] + b["s"], "e": rates, "d": devices}


def _rates(a: Values | None, b: Values | None) -> Values | None:
    if a is None or b is None:
        return a or b
    counts = [_add(*pair) for pair in zip(a[:COUNTS], b[:COUNTS], strict=True)]
    p50, p99, tokens = _mean(a[5], a[1] or 0, b[5], b[1] or 0), _worst(a, b, 6), _add(a[10], b[10])
    ttft_p99 = None if tokens is None else _worst(a, b, 9)
    return [*counts, p50, p99, _most(a[7], b[7]), _add(a[8], b[8]), ttft_p99, tokens]


def _worst(a: Values, b: Values, place: int) -> float | None:
    endless = any(point[place] is None and any(point[1:4]) for point in (a, b))
    return None if endless else _most(a[place], b[place])


def _devices(a: Values | None, a_s: float, b: Values | None, b_s: float) -> Values | None:
    if a is None or b is None:
        return a or b
    return [_mean(x, a_s, y, b_s) for x, y in zip(a, b, strict=True)]


def _add(a: float | None, b: float | None) -> float | None:
    return None if a is None and b is None else (a or 0) + (b or 0)


def _most(a: float | None, b: float | None) -> float | None:
    return max((value for value in (a, b) if value is not None), default=None)


def _mean(a: float | None, weight_a: float, b: float | None, weight_b: float) -> float | None:
    if a is None or b is None or not weight_a + weight_b:
        return b if a is None else a
    return round((a * weight_a + b * weight_b) / (weight_a + weight_b), 3)
