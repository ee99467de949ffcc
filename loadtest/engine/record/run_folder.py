"""What a run writes: its tables, events and manifest, on a disk that may be full for a while or for good.

Everything goes through one queue in the order in which it came. It is empty after each call unless the disk refuses:
then what came is held in memory, up to `MOST_BYTES`, and tried again each second. After `PATIENCE_S`, or with more than
that, `lost` says why the run should end; rows that never reached the disk are counted as lost. A little of the disk is
kept back from the start, so that a run which ends on a full one can still say so.

A long run turns to new segments from time to time (`turn`), has the closed ones made into Parquet by a process of its
own (`compact`), and deletes the oldest (`retire`), once that process has written down what they say to the objectives.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tailrate.analysis.records.device_rows import DEVICE_COLUMNS
from tailrate.analysis.records.folder import (
    DEVICES,
    METRICS,
    REQUESTS,
    RESERVE,
    append_event,
    judged_path,
    part_path,
    parts,
    segment_number,
    segment_path,
    segments,
)
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.records.metric_rows import METRIC_COLUMNS
from tailrate.analysis.records.rows import KINDS, REQUEST_COLUMNS, kind_of
from tailrate.loadtest.engine import child_python
from tailrate.loadtest.engine.record.segments import Segment

REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)
PATIENCE_S = 60.0
RETRY_S = 0.25
MOST_BYTES = 64 << 20
LINE_BYTES = 200
"""What an event is taken for; rows are larger."""
RESERVE_BYTES = 256 << 10
COLUMNS = {REQUESTS: REQUEST_COLUMNS, DEVICES: DEVICE_COLUMNS, METRICS: METRIC_COLUMNS}


def next_number(folder: Path, chapters: Iterable[Mapping[str, Any]]) -> int:
    """Of the segments to come: no file had it, deleted ones included; those that were sealed have to be asked for."""
    found = [path for table in COLUMNS for path in (*segments(folder, table), *parts(folder, table))]
    return 1 + max([*map(segment_number, found), *(chapter["segments"][1] for chapter in chapters)], default=-1)


class RunFolder:
    """`tell` gets each event; rows are announced every so often. What a run left here that goes on stays as it is."""

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        now: Callable[[], int],
        tell: Callable[[dict[str, Any]], None],
        every_s: float = 0.0,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.lost: str | None = None
        """Why nothing more can be written, once that is so."""
        self.chapters: list[dict[str, Any]] = manifest.extra.get("chapters") or []
        self._rows = 0
        """Of requests, in this chapter."""
        self._tally: Counter[str] = Counter()
        """What became of them."""
        self._now = now
        self._tell = tell
        self._every_s = every_s
        least = manifest.extra.pop("segments_from", 0)
        self._number = self._first = max(least, next_number(path, self.chapters))
        self._queue: deque[tuple[Callable[[], None], int, Counter[str]]] = deque()
        self._held_bytes = 0
        self._writing = False
        self._refused_s: float | None = None
        self._retry_s = 0.0
        self._unwritten: Counter[str] = Counter()
        self._compactor: subprocess.Popen[bytes] | None = None
        self._asked: set[int] = set()  # first steps of the chapters that it was to judge
        with (path / RESERVE).open("wb") as out:
            out.write(bytes(RESERVE_BYTES))
        self._segments = self._opened()

    # ---- what comes

    def requests(self, batch: Any) -> None:
        kinds: Counter[str] = Counter()
        for found in batch.column("status").value_counts().to_pylist():
            kinds[kind_of(found["values"])] += found["counts"]
        self._tally += kinds
        self._rows += batch.num_rows
        self._put_rows(REQUESTS, batch, kinds)

    def samples(self, batch: Any) -> None:
        self._put_rows(DEVICES, batch)

    def metrics(self, batch: Any) -> None:
        self._put_rows(METRICS, batch)

    def event(self, kind: str, **what: Any) -> None:
        what = {"time_ns": self._now()} | what
        self._put(lambda: append_event(self.path, kind, **what), LINE_BYTES)
        self._tell(what | {"event": kind})

    def write(self) -> None:
        """The manifest as it is when its turn comes."""
        self._put(lambda: self.manifest.write(self.path), 0)

    # ---- chapters

    def end_chapter(self, steps: list[int], end_ns: int, scheduled: int) -> None:
        """Every arrival that was due has its row by now, or will have none."""
        totals = {"scheduled": max(scheduled, self._rows)} | {kind: self._tally[kind] for kind in KINDS}
        # what was due but has no row went down with the process that had it
        totals["lost"] += max(0, scheduled - self._rows)
        chapter = {"steps": steps, "segments": [self._first, self._number - 1], "end_ns": end_ns, "rows": self._rows}
        self.chapters.append(chapter | {"totals": totals})
        self._rows, self._tally = 0, Counter()

    def turn(self) -> None:
        """What comes from now on goes into new segments."""
        self._first = self._number
        self._put(self._turn, 0)

    def totals(self) -> dict[str, int]:
        """Of all chapters; what the disk never took is lost, whatever became of it."""
        found: Counter[str] = Counter()
        for chapter in self.chapters:
            found.update(chapter["totals"])
        for kind, count in self._unwritten.items():
            found[kind] -= count
            found["lost"] += count
        return {kind: found[kind] for kind in ("scheduled", *KINDS)}

    def compact(self, due: Sequence[list[int]] = ()) -> None:
        """Makes closed segments into Parquet, and judges chapters that are due, beside the run; returns at once."""
        if self._busy():
            return
        self._asked |= {steps[0] for steps in due}
        chapters = [",".join(map(str, steps)) for steps in due]
        program = "tailrate.analysis.verdicts.retired_chapters" if chapters else "tailrate.analysis.run.compact"
        self._compactor = subprocess.Popen(
            child_python.command(program, str(self.path), str(self._first), *chapters),
            env=child_python.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def retire(self, keep_s: float, keep_bytes: float, now_ns: int, told_ns: int) -> list[list[int]]:
        """Deletes request rows of the oldest chapters, as far as older than asked for or beyond the size; 0: keep.

        None that ended after `told_ns`. Returns the steps of those that are due, and that `compact` is to judge before.
        """
        if self._busy() or not (keep_s or keep_bytes):
            return []
        due = []
        there = [chapter for chapter in self.chapters if not chapter.get("retired")]
        files = {chapter["end_ns"]: self._files(chapter) for chapter in there}
        size = sum(path.stat().st_size for paths in files.values() for path in paths)
        for chapter in there:
            paths, (first, last) = files[chapter["end_ns"]], chapter["segments"]
            if len(paths) <= last - first:  # somebody sealed the run before it went on
                continue
            old = keep_s and chapter["end_ns"] < now_ns - keep_s * 1e9
            if chapter["end_ns"] > told_ns or not (old or (keep_bytes and size > keep_bytes)):
                break
            size -= sum(path.stat().st_size for path in paths)
            if chapter["steps"][0] not in self._asked:
                due.append(chapter["steps"])
                continue
            names = sorted({path.with_suffix(".arrows").name for path in paths})
            what = {"steps": chapter["steps"], "rows": chapter["rows"], "files": names, "totals": chapter["totals"]}
            record = judged_path(self.path, chapter["steps"][0])
            judged = json.loads(record.read_text(encoding="utf-8")) if record.exists() else None
            self.event("retired", **what, judged=judged)
            if self._queue:  # first the word, then the deed
                break
            chapter["retired"] = True
            for path in (*paths, record):
                path.unlink(missing_ok=True)
        return due

    def disk(self) -> dict[str, int]:
        """What the folder takes of its disk, and what is left there."""
        used = 0
        for path in self.path.iterdir():
            with suppress(FileNotFoundError):  # the compactor moves files meanwhile
                used += path.stat().st_size
        volume = os.statvfs(self.path)
        return {"used_bytes": used, "free_bytes": volume.f_bavail * volume.f_frsize}

    def _busy(self) -> bool:
        return bool(self._queue) or (self._compactor is not None and self._compactor.poll() is None)

    def _files(self, chapter: Mapping[str, Any]) -> list[Path]:
        """Where the requests of a chapter lie by themselves."""
        first, last = chapter["segments"]
        paths = [segment_path(self.path, REQUESTS, number) for number in range(first, last + 1)]
        return [found for path in paths for found in (path, part_path(path)) if found.exists()]

    # ---- the end

    def close(self) -> None:
        """Writes what can be written; rows that cannot are lost, and what was kept back is for the words about it."""
        self._flush()
        for *_, kinds in self._queue:
            self._unwritten += kinds
        self._queue = deque(entry for entry in self._queue if entry[1] <= LINE_BYTES)
        (self.path / RESERVE).unlink(missing_ok=True)
        self._flush()
        for segment in self._segments.values():
            with suppress(OSError):
                segment.close()
        if self._compactor is not None:
            self._compactor.wait()
        for step in self._asked:
            judged_path(self.path, step).unlink(missing_ok=True)

    # ---- the queue

    def _put_rows(self, table: str, batch: Any, kinds: Counter[str] | None = None) -> None:
        self._put(lambda: self._write(table, batch), LINE_BYTES + batch.get_total_buffer_size(), kinds)

    def _put(self, work: Callable[[], None], size: int, kinds: Counter[str] | None = None) -> None:
        if self.lost and self._held_bytes + size > MOST_BYTES:
            self._unwritten += kinds or Counter()
            return
        self._queue.append((work, size, kinds or Counter()))
        self._held_bytes += size
        if time.monotonic() >= self._retry_s:
            self._flush()

    def _flush(self) -> None:
        if self._writing:  # what is written has an event to tell, whose turn comes
            return
        self._writing = True
        try:
            while self._queue:
                work, size, _ = self._queue[0]
                work()
                self._queue.popleft()
                self._held_bytes -= size
        except OSError as problem:
            if problem.errno not in REFUSALS:
                raise
            self._refuse(problem)
            return
        finally:
            self._writing = False
        if self._refused_s is not None:
            lasted_s, self._refused_s, self._retry_s = time.monotonic() - self._refused_s, None, 0.0
            lost = f"{self._unwritten.total()} rows are" if self._unwritten else "nothing is"
            self.event("warning", sentence=f"the run folder could not be written for {lasted_s:.0f} s; {lost} lost")

    def _refuse(self, problem: OSError) -> None:
        now = time.monotonic()
        self._retry_s = now + RETRY_S
        why = f"the run folder cannot be written: {problem.strerror}"
        if self._refused_s is None:
            self._refused_s = now
            self._tell({"event": "warning", "time_ns": self._now(), "sentence": f"{why}; trying again"})
        if now - self._refused_s > PATIENCE_S or self._held_bytes > MOST_BYTES:
            self.lost = why

    def _write(self, table: str, batch: Any) -> None:
        if self._segments[table].torn:
            self._turn()
        self._segments[table].write(batch)

    def _turn(self) -> None:
        for segment in self._segments.values():
            with suppress(OSError):  # it is read without its end, too
                segment.close()
        self._segments = self._opened()

    def _opened(self) -> dict[str, Segment]:
        number, self._number = self._number, self._number + 1  # a file that was begun in vain keeps its name
        return {
            table: Segment(self.path, table, columns, number, self._announce, self._every_s)
            for table, columns in COLUMNS.items()
            if table != METRICS or self.manifest.extra.get(METRICS)
        }

    def _announce(self, kind: str, **what: Any) -> None:
        self._put(lambda: append_event(self.path, kind, **what), LINE_BYTES)
