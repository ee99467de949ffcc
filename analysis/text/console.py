"""What the commands print: tables and sentences as wide as the terminal, or wide where nobody sees its edge.

The only file of the analysis that knows `rich`; imported by the command that prints, not by those that compute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrate.analysis.text.block import Block
from tailrate.analysis.text.words import VERDICTS

STYLES = {"worse": "bold red", "better": "bold green", "differs": "bold"}
QUIET_S = 10.0


def console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold")


def grid(title: str, about: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Any table; what its first column says is a name."""
    out, table = console(), _table()
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    out.print(f"{title}: {about}", markup=False)
    out.print(table)


def report(found: Mapping[str, Any], path: Path) -> None:
    """The table of steps, the conclusion and the verdict of a `report.json`; where its page lies."""
    out, table = console(), _table()
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
    out.print(found["conclusion"], markup=False, soft_wrap=True)
    colour = {"pass": "green", "fail": "red", "inconclusive": "yellow"}.get(found["verdict"], "default")
    out.print(f"verdict: [{colour}]{VERDICTS[found['verdict']]}[/]")
    for reason in found["reasons"]:
        out.print(f"  {reason}", markup=False)
    out.print(f"report: {path.resolve()}", markup=False)


def blocks(shown: Iterable[Block]) -> None:
    """Tables with a title each; a word that calls a change stands out."""
    out = console()
    for block in shown:
        _block(out, block)


def found(before: Iterable[str], shown: Iterable[Block], after: Iterable[str]) -> None:
    """Sentences that stand above all else, tables, and sentences below them."""
    out = console()
    for sentence in before:
        out.print(Text(sentence, "yellow"), soft_wrap=True)
    blocks(shown)
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


def _block(out: Console, block: Block) -> None:
    table = _table()
    for n, name in enumerate(block.heads):
        table.add_column(Text(name), justify="left" if n < block.texts or not name else "right")
    for row in block.rows:
        table.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
    out.print(Text(block.title, "bold"), soft_wrap=True)
    out.print(table)
    out.print()
