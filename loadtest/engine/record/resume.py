"""A soak that was interrupted, made ready to go on: its ledger closed up to the instant at which it stopped.

What was due by then and has no row was under way, or had not been written yet, when the process was killed: it gets
rows with the status `lost`. That instant is not known better than to the interval at which rows are written, so it is
taken as the last that anybody heard of the run and one such interval. What was due later falls into the gap, and does
not count as sent. Works on a folder that nobody writes; reads only the chapter that was under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailrate.analysis.records.folder import REQUESTS
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.records.rows import KINDS, LOST, REQUEST_COLUMNS, RequestRecord, kind_of
from tailrate.loadtest.engine.record.segments import FLUSH_S, Batcher, Segment
from tailrate.loadtest.engine.scenario.arrivals import Pattern
from tailrate.loadtest.engine.scenario.steps import LoadStep

WHY = "the load process was killed"


def open_steps(manifest: Manifest) -> list[dict[str, Any]]:
    """Those that no chapter has closed."""
    closed = {index for chapter in manifest.extra.get("chapters") or () for index in chapter["steps"]}
    return [step for step in manifest.scenario["steps"] if step["index"] not in closed]


def close(
    folder: Path,
    manifest: Manifest,
    seen: Mapping[int, Sequence[int]],
    statuses: Mapping[str, int],
    heard_ns: int,
    number: int,
) -> int:
    """Closes the chapter that was under way; `seen` has the numbers of its arrivals that have rows, by step, and
    `statuses` how many rows there are of each. New segments have this number at least.

    Returns how many arrivals were lost. The manifest then says since when there is a gap, and is written.
    """
    steps, chapters = open_steps(manifest), manifest.extra.setdefault("chapters", [])
    until_ns = manifest.extra.setdefault("interrupted_ns", heard_ns + int(FLUSH_S * 1e9))
    if steps:
        first = chapters[-1]["segments"][1] + 1 if chapters else 0
        segment = Segment(folder, REQUESTS, REQUEST_COLUMNS, number, every_s=FLUSH_S)
        batcher = Batcher(REQUEST_COLUMNS, segment.write)
        scenario = manifest.scenario
        pattern = Pattern(scenario["arrivals"], scenario["burstiness"], scenario["shape"])
        for step in steps:
            for seq, at_ns in unseen(step, pattern, until_ns, seen.get(step["index"], ())):
                where = (step["index"], step["endpoint"], at_ns)
                batcher.append(RequestRecord(0, seq, *where, status=LOST, error=WHY, rows=None))
                if batcher.is_due():
                    batcher.flush()
        batcher.flush()
        segment.close()
        totals = dict.fromkeys(KINDS, 0) | {"lost": segment.rows}
        for status, count in statuses.items():
            totals[kind_of(status)] += count
        rows = sum(totals.values())
        chapter = {"steps": [step["index"] for step in steps], "segments": [first, number], "end_ns": until_ns}
        chapters.append(chapter | {"rows": rows, "totals": {"scheduled": rows} | totals})
    for step in manifest.scenario["steps"]:
        if step["end_ns"] > until_ns:
            step["end_ns"], step["cut"] = max(until_ns, step["start_ns"]), True
            step["seconds"] = (step["end_ns"] - step["start_ns"]) / 1e9
    manifest.extra["segments_from"] = number + 1 if steps else number
    manifest.release()
    manifest.status, manifest.finished_ns = "aborted", until_ns
    manifest.totals = {kind: sum(chapter["totals"][kind] for chapter in chapters) for kind in ("scheduled", *KINDS)}
    manifest.write(folder)
    return segment.rows if steps else 0


def unseen(step: Mapping[str, Any], pattern: Pattern, until_ns: int, seen: Sequence[int]) -> list[tuple[int, int]]:
    """(number, instant) of each arrival of a step that was due by then and has no row."""
    due_ns = step["start_ns"] + LoadStep.of_manifest(step).offsets(pattern)
    numbers = np.setdiff1d(np.flatnonzero(due_ns < until_ns), np.asarray(seen, dtype=np.int64))
    return [(int(number), int(due_ns[number])) for number in numbers]
