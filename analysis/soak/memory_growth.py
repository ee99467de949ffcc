"""What the harness itself took of its machine during a soak: memory, time on cores, open files, by process.

Whether memory grows is asked of the second half of a process's longest life, when buffers and pools have come to their
size: the slope through the least of each minute, as garbage comes and goes (Theil–Sen), with an interval that allows
for neighbouring minutes being alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

MINUTE_NS = 60 * 10**9
LEAST_MINUTES = 6


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the load generator over the soak."""

    role: str
    samples: int
    rss_first_bytes: int | None
    rss_last_bytes: int | None
    rss_most_bytes: int | None
    grew_bytes_h: float | None
    """By hour; None where the second half is shorter than six minutes."""
    grew_low_bytes_h: float | None
    grew_high_bytes_h: float | None
    cpu_mean_pct: float | None
    cpu_most_pct: float | None
    open_files_most: int | None


def processes(run: Run) -> Iterator[Process]:
    told: dict[str, list[Mapping[str, Any]]] = {}
    for event in run.events:
        if event["event"] == "process":
            told.setdefault(str(event.get("role")), []).append(event)
    for role, mine in told.items():
        rss, cpu, files = ([e[k] for e in mine if e.get(k) is not None] for k in ("rss_bytes", "cpu_pct", "open_files"))
        yield Process(
            role,
            len(mine),
            int(rss[0]) if rss else None,
            int(rss[-1]) if rss else None,
            int(max(rss)) if rss else None,
            *_growth(mine),
            float(np.mean(cpu)) if cpu else None,
            float(max(cpu)) if cpu else None,
            int(max(files)) if files else None,
        )


def _growth(told: list[Mapping[str, Any]]) -> tuple[float | None, float | None, float | None]:
    """(bytes by hour, and where that lies in 95 of 100)."""
    lives: dict[Any, list[tuple[int, int]]] = {}
    for event in told:
        if event.get("rss_bytes") is not None:
            lives.setdefault(event.get("pid"), []).append((int(event["time_ns"]), int(event["rss_bytes"])))
    life = max(lives.values(), key=lambda seen: seen[-1][0] - seen[0][0], default=[(0, 0)])
    half_ns = (life[0][0] + life[-1][0]) // 2
    least: dict[int, int] = {}
    for at_ns, size in life:
        if at_ns >= half_ns:
            minute = (at_ns - half_ns) // MINUTE_NS
            least[minute] = min(size, least.get(minute, size))
    if len(least) < LEAST_MINUTES:
        return None, None, None
    from scipy.stats import theilslopes  # a second to import, which a run without minutes need not wait for

    hours, sizes = np.array(list(least)) / 60, np.array(list(least.values()), dtype=np.float64)
    found = theilslopes(sizes, hours)
    rest = sizes - found.slope * hours - found.intercept
    power = float(rest @ rest)
    alike = min(max(float(rest[1:] @ rest[:-1]) / power, 0.0), 0.95) if power else 0.0
    wider = ((1 + alike) / (1 - alike)) ** 0.5
    low, high = (float(found.slope + wider * (end - found.slope)) for end in (found.low_slope, found.high_slope))
    return float(found.slope), low, high
