"""The gallery: `index.html` over a folder of runs, made from each one's `run.json` and `report.json`.

It reads no rows, so a thousand runs take seconds. Judges nothing: verdicts and figures are those of the reports, and
what is worse or better than before is what the history says of the newest runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tailrate.analysis.history import log
from tailrate.analysis.history.figure_series import lineages
from tailrate.analysis.history.log import key_of
from tailrate.analysis.history.regression import BETTER, WORSE, judge
from tailrate.analysis.history.run_summary import Entry
from tailrate.analysis.pages.index.page import GENERATOR, html
from tailrate.analysis.pages.index.runs_table import Remarks
from tailrate.analysis.records.folder import MANIFEST, RunError, has_manifest, write_atomically
from tailrate.analysis.records.manifest import formerly
from tailrate.analysis.text.words import ABSENT

INDEX = "index.html"


def write(runs: Path) -> tuple[Path, int]:
    """Writes the index into the folder that holds the runs; where it is, and how many runs it lists."""
    if not runs.is_dir():
        raise RunError(f"{runs} is not a folder; give the folder that holds run folders, such as runs")
    if (runs / MANIFEST).exists():
        raise RunError(f"{runs} is a run itself; give the folder that holds it: {runs.resolve().parent}")
    folders = [path for path in runs.iterdir() if path.is_dir() and not path.name.startswith(".")]
    if not any(map(has_manifest, folders)):
        raise RunError(f"{runs} holds no run folder: none of its folders has a {MANIFEST}")
    index = runs / INDEX
    if index.exists() and not is_ours(index):
        raise RunError(f"{index} was not written by {GENERATOR}; move it away first")
    entries = sorted(map(Entry.of, folders), key=lambda entry: (-entry.time_ns, entry.name))
    write_atomically(index, html(entries, str(runs), _remarks(runs, entries)))
    return index, len(entries)


def _remarks(runs: Path, entries: Sequence[Entry]) -> Remarks:
    """By run: what it is pinned as, and what is called of its figures."""
    try:
        held = log.read(runs, entries)
    except RunError:  # which says so itself
        return {}
    found: Remarks = {key_of(entry): [f"pinned as {name}" for name in held.names_of(entry)] for entry in entries}
    for lineage, judged in judge(lineages(held.entries)):
        for call in (WORSE, BETTER):
            figures = [
                f"{one.track.title} {one.change}".removesuffix(f" {ABSENT}") for one in judged if one.call == call
            ]
            if figures:
                said = f"{call}: {', '.join(figures)} ({lineage.endpoint})"
                found.setdefault(key_of(lineage.newest), []).append(said)
    return found


def is_ours(index: Path) -> bool:
    """Whether there is an index, and this package wrote it."""
    if not index.is_file():
        return False
    with index.open(encoding="utf-8", errors="replace") as page:
        head = page.read(1000)
    return any(f'content="{name}"' in head for name in (GENERATOR, formerly(GENERATOR)))
