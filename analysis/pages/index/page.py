"""`index.html`: one self-contained page over all runs of a folder, their trends, and any two of them side by side.

Theme, hover and sorting are those of a run's report. The comparison is drawn by a script of its own from what is
embedded here, since any two runs may be chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tailrate.analysis.history.run_summary import STATES, Entry, Level, thinned
from tailrate.analysis.pages.assets import texts
from tailrate.analysis.pages.html.document import THEME, document, panel_script, section
from tailrate.analysis.pages.html.markup import Child, Html, embedded, tag
from tailrate.analysis.pages.index.runs_table import Remarks, table
from tailrate.analysis.pages.index.trends import MOST_TRENDS, Trend, chart, trends
from tailrate.analysis.text import words

GENERATOR = "tailrate report --index"
"""Marks the page as one that may be overwritten."""

MOST_LEVELS = 20_000
"""Embedded for comparisons, over all runs, so that the page of a thousand stays under 5 MB."""
FEWEST_LEVELS = 4
MOST_TEXT = 1000


def html(entries: Sequence[Entry], folder: str, remarks: Remarks) -> str:
    """The whole page; `folder` is how a command names the runs' folder."""
    script = "\n".join([panel_script(), texts(__package__, "comparison.js", "index.js")])
    over_time = trends(entries)
    body = (
        tag("a", "Skip to the runs", href="#main", class_="skip"),
        tag("header", tag("div", tag("h1", f"Runs in {folder}"), THEME, class_="top"), tag("p", _summary(entries))),
        tag(
            "main",
            tag("section", id="compare", aria_label="Two runs side by side", hidden=True),
            section("runs", "Runs", (_filters(entries), table(entries, remarks))),
            section("trends", "Over time", _over_time(over_time)) if over_time else None,
            id="main",
            class_="gallery",
        ),
        tag("footer", tag("p", "Written by ", tag("code", f"{GENERATOR} {folder}"), " from what its runs report.")),
        tag("div", embedded(_embedded(entries, folder)), id="embedded", hidden=True),
    )
    style = texts(__package__, "index.css")
    return document(f"Runs in {folder} · tailrate", body, style=style, script=script, generator=GENERATOR)


def _summary(entries: Sequence[Entry]) -> str:
    """`12 runs from 2026-11-02 to 2026-11-21: 8 pass, 3 fail, 1 running`."""
    states = [entry.state for entry in entries]
    counts = ", ".join(f"{words.count(states.count(key))} {said}" for key, said in STATES.items() if key in states)
    days = sorted(entry.when[:10] for entry in entries if entry.state != "broken" and entry.when != words.ABSENT)
    between = f" from {days[0]} to {days[-1]}" if days else ""
    return f"{words.count(len(entries))} {'run' if len(entries) == 1 else 'runs'}{between}: {counts}"


def _filters(entries: Sequence[Entry]) -> Html:
    states = {entry.state for entry in entries}
    choices = (
        ("scenario", "all scenarios", [(name, name) for name in sorted({e.scenario for e in entries if e.scenario})]),
        ("endpoint", "all endpoints", [(name, name) for name in sorted({n for e in entries for n in e.endpoints})]),
        ("state", "all verdicts", [(key, said) for key, said in STATES.items() if key in states]),
    )
    return tag(
        "form",
        tag("input", type="search", name="text", placeholder="filter by text", aria_label="Filter by text"),
        (_select(*choice) for choice in choices),
        tag("button", "Compare", type="submit", class_="go", disabled=True),
        tag("span", class_="count", role="status"),
        class_="filters",
        aria_label="Choose runs",
    )


def _select(name: str, every: str, choices: Iterable[tuple[str, str]]) -> Html:
    options = (tag("option", said, value=value) for value, said in choices)
    label = f"Filter by {'verdict' if name == 'state' else name}"
    return tag("select", tag("option", every, value=""), options, name=name, aria_label=label)


def _over_time(found: Sequence[Trend]) -> Child:
    note = (
        "Runs of the same mode and objective in order of time, evenly spaced. Above: the limit lies in the bar, from "
        "the highest rate that kept the objective (dot) to the lowest that missed it, or open. Below: P99 at a rate "
        "that most runs have, with its interval. A point shows its values and leads to its report."
    )
    left = len(found) - MOST_TRENDS
    return (
        tag("p", note),
        tag("div", (chart(trend) for trend in found[:MOST_TRENDS]), class_="trends"),
        tag("p", f"{words.count(left)} more are not drawn; they have fewer runs.") if left > 0 else None,
    )


# ---- for the comparison


def _embedded(entries: Sequence[Entry], folder: str) -> dict[str, Any]:
    """Texts that runs share are kept once, under a number."""
    facts: dict[tuple[str, str], int] = {}
    series = sum(len({level.endpoint for level in entry.levels}) for entry in entries)
    most = max(FEWEST_LEVELS, MOST_LEVELS // max(1, series))
    runs = [
        {
            "name": entry.name,
            "when": entry.when,
            "scenario": entry.scenario,
            "mode": entry.mode,
            "state": entry.state,
            "said": _short(entry.said),
            "reasons": [*map(_short, entry.reasons[:3])],
            "page": entry.page,
            "limits": entry.limits_ms,
            "endpoints": entry.endpoints,
            "facts": [
                facts.setdefault((f"{group} {name}", _short(said)), len(facts))
                for (group, name), said in sorted(entry.origin.items())
            ],
            "levels": [
                row for n, endpoint in enumerate(entry.endpoints) for row in _rows(n, entry.of_endpoint(endpoint), most)
            ],
        }
        for entry in entries
    ]
    return {"folder": folder, "states": STATES, "facts": list(facts), "runs": runs, "most": most}


_FIGURES = (
    "offered_rps", "achieved_rps", "p50_ms", "p99_ms", "p99_low_ms", "p99_high_ms", "joules_per_request", "ttft_p99_ms",
    "tpot_p99_ms",
)  # fmt: skip


def _rows(n: int, levels: Sequence[Level], most: int) -> Iterable[list[Any]]:
    """A row per level in the order that `comparison.js` expects."""
    for level in thinned(levels, most):
        figures = (_number(level.figures.get(name)) for name in _FIGURES)
        counts = (level.rounds, level.errors, int(level.doubtful))
        yield [n, _number(level.rate), level.concurrency, *figures, *counts]


def _number(value: float | None) -> float | str | None:
    """Nine digits are more than any figure has; JSON has no infinity."""
    return None if value is None else "∞" if math.isinf(value) else float(f"{value:.9g}")


def _short(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"
