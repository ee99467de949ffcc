"""What the servers counted and gauged themselves, step by step, and what each of it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailrate.analysis.pages.html.markup import Html, join, tag
from tailrate.analysis.pages.html.table import TableCell, folded, table
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.records.folder import METRICS
from tailrate.analysis.text import markdown, words

Row = Mapping[str, Any]

NOTE = (
    "Of what is counted: how much in the step, and each second. Of what is gauged: the mean of the looks, each second "
    "one, and the highest. Of times and batches: the mean."
)
ORDER = ("requests", "errors", "queue", "running", "batch", "cache")
"""Of columns, by what they are to the report; those without a role come behind."""
_LONG = 12
"""Rows of a table that is folded away."""


def _sources(view: View) -> dict[str, list[Row]]:
    """The report's rows by the page that they are from."""
    found: dict[str, list[Row]] = {}
    for row in view.report.get("metrics") or ():
        found.setdefault(str(row["source"]), []).append(row)
    return found


def _name(view: View, source: str) -> str:
    """`localhost:8002 (Triton)`"""
    entries = {str(entry["source"]): entry for entry in view.run.manifest.extra.get(METRICS) or ()}
    presets = ", ".join(entries.get(source, {}).get("presets") or ())
    return f"{source} ({presets})" if presets else source


def _figure(row: Row | None) -> tuple[str, float | None]:
    """How it is written, and what it is sorted by."""
    if row is None:
        return words.ABSENT, None
    if row["mean"] is not None:
        highest = row["highest"]
        most = f" (≤ {words.significant(highest)})" if highest is not None and highest > row["mean"] else ""
        return f"{words.significant(row['mean'])}{most}", float(row["mean"])
    if row["delta"] is None:
        return words.ABSENT, None
    rate = f" ({words.significant(row['rate'])}/s)" if row["delta"] else ""
    return f"{words.significant(float(round(row['delta'], 1)))}{rate}", float(row["delta"])


def _rows(view: View, found: Sequence[Row]) -> tuple[list[str], list[list[tuple[str, float | str | None]]]]:
    """Heads and cells: a line for each step, a column for each metric that says something in one of them."""
    said = [row for row in found if row["mean"] is not None or row["delta"] is not None]
    said.sort(key=lambda row: ORDER.index(row["role"]) if row["role"] in ORDER else len(ORDER))
    names = list(dict.fromkeys(str(row["metric"]) for row in said))
    first = {name: next(row for row in said if row["metric"] == name) for name in names}
    heads = [_head(first[name]) for name in names]
    by_step = {(row["index"], row["endpoint"], row["metric"]): row for row in said}
    cells: list[list[tuple[str, float | str | None]]] = [
        [
            (str(step["endpoint"]), str(step["endpoint"])),
            (str(step["asked"]), float(step["rate"])),
            *(_figure(by_step.get((step["index"], step["endpoint"], name))) for name in names),
        ]
        for step in view.steps
        if any((step["index"], step["endpoint"], name) in by_step for name in names)
    ]
    return ["requests to", "at", *heads], cells


def _head(row: Row) -> str:
    return f"{row['title']}, {row['unit']}" if row["unit"] and row["unit"] not in row["title"] else str(row["title"])


def _meanings(view: View, source: str) -> list[tuple[str, str]]:
    """Title and meaning of each metric of a page, with its name there."""
    found = {
        track.name: (track.title, f"{track.says.get('meaning') or 'No meaning is known.'} ({track.name})")
        for track in view.run.metric_tracks
        if track.source == source
    }
    return list(found.values())


def _html(view: View) -> Html | None:
    drawn: list[Html] = []
    for source, found in _sources(view).items():
        heads, rows = _rows(view, found)
        cells = [[TableCell(shown, value) for shown, value in row] for row in rows]
        if not rows:
            continue
        caption = f"By the metrics of {_name(view, source)}"
        drawn.append(folded(rows, caption, table(heads, cells, caption, numbers_from=2), most=_LONG))
        said = (tag("li", tag("b", title), f" {meaning}") for title, meaning in _meanings(view, source))
        drawn.append(tag("ul", said, class_="meanings"))
    return join([tag("p", NOTE), *drawn]) if drawn else None


def _lines(view: View) -> list[str]:
    lines: list[str] = []
    for source, found in _sources(view).items():
        heads, rows = _rows(view, found)
        if rows:
            lines += [f"By the metrics of {markdown.text(_name(view, source))}:", ""]
            lines += markdown.table(heads, [[shown for shown, _ in row] for row in rows], texts=2)
    return lines


SERVER_METRICS = Section("server", "What the server counted", _html, _lines)
