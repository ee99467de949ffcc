"""Closed segments of a run that is still going, made into Parquet files one by one: a tenth of their size.

    python -m tailrate.analysis.run.compact FOLDER 12        segments of every table whose number is below 12

A program of its own, since writing Parquet in a load process would stall it: it runs with the least priority on one
core and ends when it is done. A segment is removed when its Parquet file is on the disk and holds every row of it;
killed or out of space in between, it leaves what was there, and the next call does the rest. One that holds more than
can be read stays.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from tailrate.analysis.records.folder import part_path, read_events, segment_number, segments
from tailrate.analysis.run.announced import unread
from tailrate.analysis.run.columns import COLUMNS
from tailrate.analysis.run.tables import VanishedError, metadata_of, segment

LEAST = 19


def at_leisure() -> None:
    """Of this process from here on: it stands in nobody's way."""
    os.nice(LEAST)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def compact(folder: Path, until: int = 1 << 30) -> None:
    for table in COLUMNS:
        for path in segments(folder, table):
            if segment_number(path) < until:
                with suppress(FileNotFoundError, VanishedError):  # another program was faster
                    move(path, table)


def move(path: Path, table: str) -> None:
    """One segment's rows into its Parquet file; whoever reads the folder finds them once, at any instant."""
    stored = segment(path, table)
    if stored.torn and unread(list(read_events(path.parent)), stored):
        return
    target = part_path(path)
    stored.write(target)
    if (there := metadata_of(target).num_rows) != len(stored):
        raise OSError(f"{target} holds {there} of {len(stored)} rows")
    path.unlink()


if __name__ == "__main__":
    at_leisure()
    compact(Path(sys.argv[1]), int(sys.argv[2]))
