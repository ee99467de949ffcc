"""The same run by label of the rows that requests carried: each slice's figures, and what its own objective says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrate.analysis.pages.html.markup import Html, join, tag
from tailrate.analysis.pages.html.table import TableCell, folded, table
from tailrate.analysis.pages.report.sections.section import Section, bullets
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.records.infinities import restored
from tailrate.analysis.text import markdown, words

HEADS = ("slice", "endpoint", "at", "n", "failed", "P50, ms", "P99, ms", "from", "to")
STREAM_HEADS = ("TTFT P99, ms", "TPOT P99, ms")
LAST_HEADS = ("goodput, /s", "goodput, %", "within, ms", "objective")
TEXTS = 3
NOTE = (
    "A slice is what the rows of one label showed. Goodput is of its arrivals, within its own objective's latency, or "
    "else within that of all arrivals; the last column is about its own."
)
MOST = 40
"""Rows that stand open on the page."""


def _table(view: View) -> tuple[tuple[str, ...], list[list[TableCell]]]:
    """Heads, and the slices of a step one below the other."""
    asked = {(row["index"], row["endpoint"]): row for row in view.steps}
    streams = any(row.get("tokens_out_rps") is not None for row in view.steps)
    rows = [_row(row, asked[row["index"], row["endpoint"]], streams) for row in view.report.get("slices") or ()]
    return (*HEADS, *(STREAM_HEADS if streams else ()), *LAST_HEADS), rows


def _row(stored: Mapping[str, Any], step: Mapping[str, Any], streams: bool) -> list[TableCell]:
    row = restored({**stored, "tokens_out_rps": step.get("tokens_out_rps")})
    share = None if row["goodput_share"] is None else 100 * row["goodput_share"]
    figures = [row[key] for key in ("p50_ms", "p99_ms", "p99_low_ms", "p99_high_ms")]
    figures += [row["ttft_p99_ms"], row["tpot_p99_ms"]] if streams else []
    figures += [row["goodput_rps"], share, row["limit_ms"]]
    judged = {True: "kept", False: "missed"}.get(row["slo"], "cannot say" if row["reasons"] else words.ABSENT)
    return [
        TableCell(row["label"], row["label"]),
        TableCell(row["endpoint"], row["endpoint"]),
        TableCell(step["asked"], step["rate"]),
        TableCell(words.count(row["n"]), row["n"]),
        TableCell(words.count(row["errors"]), row["errors"]),
        *(TableCell(words.significant(value), value) for value in figures),
        TableCell(judged, judged),
    ]


def _said(view: View) -> list[str]:
    """Why a slice does not keep its objective."""
    asked = {(row["index"], row["endpoint"]): row["asked"] for row in view.steps}
    return [
        f"{row['endpoint']} at {asked[row['index'], row['endpoint']]}: {sentence}"
        for row in view.report.get("slices") or ()
        for sentence in row["reasons"]
    ]


def _html(view: View) -> Html | None:
    """None for a run whose arrivals have no labels."""
    heads, rows = _table(view)
    if not rows:
        return None
    drawn = table(heads, rows, "Each slice at each rate", numbers_from=TEXTS, class_="slices")
    said = _said(view)
    why = tag("ul", (tag("li", sentence) for sentence in said)) if said else None
    summary = "Why a slice does not keep its objective, or why that cannot be said"
    return join(
        [
            tag("p", NOTE),
            folded(rows, f"{len(rows)} rows, each slice at each rate", drawn, most=MOST),
            *([tag("details", tag("summary", summary), why)] if why else []),
        ]
    )


def _lines(view: View) -> list[str]:
    heads, rows = _table(view)
    if not rows:
        return []
    cells = [[cell.shown for cell in row] for row in rows]
    said = _said(view)
    return [NOTE, "", *markdown.table(heads, cells, texts=TEXTS), *(bullets(said) if said else [])]


SLICES = Section("slices", "By slice", _html, _lines)
