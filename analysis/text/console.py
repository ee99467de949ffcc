"""What the commands print: tables and sentences as wide as the terminal, or wide where nobody sees its edge.

The only file of the analysis that knows `rich`; imported by the command that prints, not by those that compute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from tailrate.analysis.text.table import Table
from tailrate.analysis.text.tokens import HEADS, token_rows
from tailrate.analysis.text.words import VERDICTS

STYLES = {"worse": "bold red", "better": "bold green", "differs": "bold"}
QUIET_S = 10.0


def console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def _grid() -> Grid:
    return Grid(box=None, pad_edge=False, header_style="bold")


def report(found: Mapping[str, Any], path: Path) -> None:
    """The table of steps, the conclusion and the verdict of a `report.json`; where its page lies."""
    out, table = console(), _grid()
    columns = (
        "endpoint",
        "offered/s",
        "achieved/s",
        "P50 ms",
        "P90 ms",
        "P99 ms",
        "P99 95 % interval",
        "errors",
        "util %",
    )
    for name in columns:
        table.add_column(name, justify="left" if name == "endpoint" else "right")

    def number(value: float | None, none: str = "–") -> str:
        return none if value is None else f"{value:,.1f}"

    for step in found["steps"]:
        infinite = "∞" if step["errors"] else "–"
        low, high = step["p99_low_ms"], step["p99_high_ms"]
        between = f"≥ {number(low)}" if high is None else f"{number(low)} – {number(high)}"
        row = [
            step["endpoint"],
            number(step["offered_rps"]),
            number(step["achieved_rps"]),
            *(number(step[key], infinite) for key in ("p50_ms", "p90_ms", "p99_ms")),
            between if low is not None else "sample too small",
            str(step["errors"]),
            number(step["util_pct"]),
        ]
        table.add_row(*row)
    out.print(table)
    out.print()
    if streamed := token_rows(found["steps"]):
        tokens = _grid()
        for name in HEADS:
            tokens.add_column(name, justify="left" if name == "endpoint" else "right")
        for cells in streamed:
            tokens.add_row(*cells)
        out.print(tokens)
        out.print()
    out.print(found["conclusion"], markup=False, soft_wrap=True)
    colour = {"pass": "green", "fail": "red", "inconclusive": "yellow"}.get(found["verdict"], "default")
    out.print(f"verdict: [{colour}]{VERDICTS[found['verdict']]}[/]")
    for reason in found["reasons"]:
        out.print(f"  {reason}", markup=False)
    out.print(f"report: {path.resolve()}", markup=False)


def tables(shown: Iterable[Table]) -> None:
    """With a title each; a word that calls a change stands out."""
    out = console()
    for table in shown:
        grid = _grid()
        for n, name in enumerate(table.heads):
            grid.add_column(Text(name), justify="left" if n < table.texts or not name else "right")
        for row in table.rows:
            grid.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
        out.print(Text(table.title, "bold"), soft_wrap=True)
        if table.about:
            out.print(table.about, markup=False, soft_wrap=True)
        out.print(grid)
        for note in table.notes:
            out.print(note, markup=False, soft_wrap=True)
        out.print()


def found(before: Iterable[str], shown: Iterable[Table], after: Iterable[str]) -> None:
    """Sentences that stand above all else, tables, and sentences below them."""
    out = console()
    for sentence in before:
        out.print(Text(sentence, "yellow"), soft_wrap=True)
    tables(shown)
    for sentence in after:
        out.print(sentence, markup=False, soft_wrap=True)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Says what is being done: on a terminal at once, into a log every ten seconds."""
    out = Console(stderr=True, highlight=False)
    if out.is_terminal:
        with out.status("") as status:
            yield lambda what: status.update(Text(what))
        return
    told_s = time.monotonic()

    def tell(what: str) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > QUIET_S:
            told_s = time.monotonic()
            out.print(f"… {what}", markup=False)

    yield tell
