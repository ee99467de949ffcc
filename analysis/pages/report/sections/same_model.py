"""Whether each endpoint is still its model, and how it started: one row of what its server says, before and after.

The names are those of `GET /v2/models/M/versions/V`; figures that stand in a mapping (`parity: {cosine}`) count as
`parity_cosine`. A column that no server tells is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tailrate.analysis.pages.html.markup import Html, join, tag
from tailrate.analysis.pages.html.table import TableCell, table
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.records.manifest import endpoint_name
from tailrate.analysis.text import markdown, words


def _word(value: Any) -> str:
    return {True: "yes ✓", False: "no ✕"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _error(value: Any) -> str:
    """Of any size, where three digits without an exponent would be many zeros."""
    number = words.finite(value)
    return "∞" if number is None else f"{number:.2g}"


def _likeness(value: Any) -> str:
    """Cut and never rounded up: only what is 1 shows as 1."""
    number = words.finite(value)
    return words.ABSENT if number is None else "1" if number >= 1 - 1e-9 else f"{int(number * 1e6) / 1e6:.6f}"


@dataclass(frozen=True, slots=True)
class _Column:
    key: str
    head: str
    show: Callable[[Any], str] = words.significant


_WORDS = (
    _Column("parity_ok", "same as eager fp32", _word),
    _Column("precision", "precision", str),
    _Column("compile_mode", "compile mode", str),
    _Column("start", "start", str),
)
_NUMBERS = (
    _Column("parity_relative_error", "relative error", _error),
    _Column("parity_cosine", "cosine", _likeness),
    _Column("parity_top1_agreement", "same top 1", _likeness),
    _Column("sampled_failures", "answers that differed", words.count),
    _Column("sampled_responses", "of compared", words.count),
    _Column("load_s", "loading, s"),
    _Column("compile_s", "compiling, s"),
    _Column("warmup_s", "warm-up, s"),
    _Column("graph_breaks", "graph breaks", words.count),
    _Column("recompiles", "recompiles", words.count),
    _Column("first_hits", "first hits", words.count),
    _Column("fallbacks", "fallbacks", words.count),
    _Column("peak_memory_bytes", "peak memory", words.size),
    _Column("reserved_memory_bytes", "reserved memory", words.size),
    _Column("artefact_bytes", "kept artefacts", words.size),
)


@dataclass(frozen=True, slots=True)
class Sameness:
    heads: list[str]
    rows: list[list[TableCell]]
    """One per endpoint; none where the servers tell none of it."""
    numbers_from: int
    """The first column that is no word."""


def sameness(view: View) -> Sameness:
    said = {
        endpoint_name(entry): (
            _flat(entry.get("parameters")),
            _flat(entry.get("parameters_after")),
        )
        for entry in view.run.manifest.endpoints
    }
    keys = {key for both in said.values() for known in both for key in known}
    shown = [column for column in (*_WORDS, *_NUMBERS) if column.key in keys]
    rows = [[TableCell(name, name), *(_cell(column, *both) for column in shown)] for name, both in said.items()]
    heads = ["endpoint", *(column.head for column in shown)]
    return Sameness(heads, rows if shown else [], 1 + sum(column in _WORDS for column in shown))


def _flat(said: Any) -> dict[str, Any]:
    found = words.flat(said) if isinstance(said, Mapping) else {}
    return {key.replace(" ", "_"): value for key, value in found.items() if value not in (None, "")}


def _cell(column: _Column, before: Mapping[str, Any], after: Mapping[str, Any]) -> TableCell:
    """What it was all along, or `0 → 3` where it changed in the run."""
    first, last = (column.show(said[column.key]) if column.key in said else "" for said in (before, after))
    shown = " → ".join(dict.fromkeys(text for text in (first, last) if text)) or words.ABSENT
    value = after.get(column.key, before.get(column.key))
    return TableCell(shown, float(value) if isinstance(value, int | float) else value)


def _html(view: View) -> Html | None:
    names, said = _all_said(view)
    if not said:
        return None
    whole = table(("said of", *names), said, "As the server describes itself", class_="narrow", sorts=False)
    same = sameness(view)
    if not same.rows:
        return join([tag("p", "The server tells nothing of likeness, start or recompiles."), whole])
    caption = "As the server says; warm-up includes compiling; an arrow leads from before the run to after it"
    summary = tag("summary", "Everything that the server says")
    return join(
        [
            table(same.heads, same.rows, caption, numbers_from=same.numbers_from, class_="same"),
            tag("details", summary, whole),
        ]
    )


def _lines(view: View) -> list[str]:
    same = sameness(view)
    rows = [[cell.shown for cell in row] for row in same.rows]
    return markdown.table(same.heads, rows, texts=same.numbers_from) if rows else []


def _all_said(view: View) -> tuple[list[str], list[list[str]]]:
    """What the server said of each endpoint: the names of the endpoints, then one row per parameter."""
    said = [
        (
            endpoint_name(e),
            words.flat({k: v for k, v in e.items() if k in ("max_batch", "parameters")}),
            words.flat({"parameters": e.get("parameters_after") or {}}),
        )
        for e in view.run.manifest.endpoints
    ]
    keys = dict.fromkeys(key for _, before, after in said for key in (*before, *after))
    rows = []
    for key in keys:
        name = words.fact(key.removeprefix("parameters "), None)[0]
        rows.append([name, *(_then(key, before.get(key), after.get(key)) for _, before, after in said)])
    return [name for name, *_ in said], rows


def _then(key: str, before: Any, after: Any) -> str:
    """`0, after the run 3`, or the one value that it had all along."""
    first, then = (words.ABSENT if value == "" else words.fact(key, value)[1] for value in (before, after))
    return first if after in (None, before) else f"{first}, after the run {then}"


SAME_MODEL = Section("endpoints", "Is it still the same model?", _html, _lines)
