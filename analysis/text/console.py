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

from tailrate.analysis.text.table import Table, plain
from tailrate.analysis.text.tokens import HEADS as TOKEN_HEADS
from tailrate.analysis.text.tokens import token_rows
from tailrate.analysis.text.words import VERDICTS, count, interval, significant

HEADS = (
    "endpoint", "offered/s", "achieved/s", "P50 ms", "P90 ms", "P99 ms", "P99 95 % interval", "errors", "util %",
)  # fmt: skip
STYLES = {"worse": "bold red", "better": "bold green", "differs": "bold"}
QUIET_S = 10.0


def console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def report(found: Mapping[str, Any], path: Path) -> None:
    """The table of steps, the conclusion and the verdict of a `report.json`, its infinities restored; where it lies."""
    out, steps = console(), found["steps"]
    out.print(_grid(Table("", HEADS, [[*map(str, _cells(step))] for step in steps])))
    out.print()
    if streamed := token_rows(steps):
        out.print(_grid(Table("", TOKEN_HEADS, streamed)))
        out.print()
    out.print(Text(plain(found["conclusion"])), soft_wrap=True)
    colour = {"pass": "green", "fail": "red", "inconclusive": "yellow"}.get(found["verdict"], "default")
    out.print(f"verdict: [{colour}]{VERDICTS[found['verdict']]}[/]")
    for reason in found["reasons"]:
        out.print(Text(plain(f"  {reason}")))
    out.print(Text(plain(f"report: {path.resolve()}")))


def _cells(step: Mapping[str, Any]) -> Iterator[Any]:
    yield step["endpoint"]
    for name in ("offered_rps", "achieved_rps", "p50_ms", "p90_ms", "p99_ms"):
        yield significant(step[name])
    yield interval(step["p99_low_ms"], step["p99_high_ms"])
    yield count(step["errors"])
    yield significant(step["util_pct"])


def tables(shown: Iterable[Table]) -> None:
    """With a title each; a word that calls a change stands out."""
    out = console()
    for table in shown:
        out.print(Text(plain(table.title), "bold"), soft_wrap=True)
        if table.about:
            out.print(Text(plain(table.about)), soft_wrap=True)
        out.print(_grid(table))
        for note in table.notes:
            out.print(Text(plain(note)), soft_wrap=True)
        out.print()


def _grid(table: Table) -> Grid:
    """Its cells; what is in them is text, whatever an endpoint is called."""
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for n, name in enumerate(table.heads):
        grid.add_column(Text(name), justify="left" if n < table.texts or not name else "right")
    for row in table.rows:
        grid.add_row(*(Text(plain(cell), STYLES.get(cell, "")) for cell in row))
    return grid


def found(before: Iterable[str], shown: Iterable[Table], after: Iterable[str]) -> None:
    """Sentences that stand above all else, tables, and sentences below them."""
    out = console()
    for sentence in before:
        out.print(Text(plain(sentence), "yellow"), soft_wrap=True)
    tables(shown)
    for sentence in after:
        out.print(Text(plain(sentence)), soft_wrap=True)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Says what is being done: on a terminal at once, into a log every ten seconds."""
    out = Console(stderr=True, highlight=False)
    if out.is_terminal:
        with out.status("") as status:
            yield lambda what: status.update(Text(plain(what)))
        return
    told_s = time.monotonic()

    def tell(what: str) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > QUIET_S:
            told_s = time.monotonic()
            out.print(f"… {what}", markup=False)

    yield tell
