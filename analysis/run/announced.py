"""What `events.jsonl` says of the rows of each segment: how many were written, and which were deleted on purpose.

Owns the answers that follow for a table: how many rows are missing, and which segments hold more than can be read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tailrate.analysis.records.folder import REQUESTS
from tailrate.analysis.run.tables import Stored

Events = Sequence[Mapping[str, Any]]


def announced(events: Events, table: str) -> dict[str, int]:
    """Rows by the segment that holds them, those deleted on purpose aside."""
    # the last word counts: a run that goes on says how many a kill has left
    found = dict(_said(events, table))
    for event in events if table == REQUESTS else ():
        for name in (event.get("files") or ()) if event["event"] == "retired" else ():
            found.pop(name, None)
    return found


def missing(events: Events, stored: Stored) -> int:
    """Rows that were announced and are not there, though nobody deleted them."""
    said = announced(events, stored.table)
    if not stored.labelled:
        return max(0, sum(said.values()) - len(stored))
    return sum(max(0, rows - stored.held.get(name, 0)) for name, rows in said.items())


def unread(events: Events, stored: Stored) -> list[str]:
    """Segments that hold more than can be read. At the end of one that a kill has cut lie no rows that were announced,
    but only what was being written."""
    most: dict[str, int] = {}
    for name, rows in _said(events, stored.table):
        most[name] = max(rows, most.get(name, 0))
    return sorted(name for name in stored.torn if stored.held[name] < most.get(name, math.inf))


def retired(events: Events, stored: Stored) -> Counter[str]:
    """What became of the arrivals whose rows were deleted on purpose."""
    said = {tuple(event["files"]): event["totals"] for event in events if event["event"] == "retired"}
    found: Counter[str] = Counter()
    for files, totals in said.items():
        if not set(files) & stored.held.keys():  # else a kill came between the word and the deed
            found.update({kind: count for kind, count in totals.items() if kind != "scheduled"})
    return found


def _said(events: Events, table: str) -> Iterator[tuple[str, int]]:
    for event in events:
        if event["event"] == "rows" and event.get("table") == table:
            yield str(event.get("file")), int(event.get("rows", 0))
