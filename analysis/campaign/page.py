"""`campaign.md` and `campaign.html`: the same tables, on the page with what batches bring drawn beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from analysis import plot, words
from analysis.campaign.cells import Cell, Size, Subject
from analysis.campaign.tables import Results, Table
from analysis.report.axes import Panel, Scale, linear
from analysis.report.document import THEME, document, parts
from analysis.report.figure import Readout, figure, legend
from analysis.report.markdown import text
from analysis.report.markup import Html, tag
from analysis.report.table import table
from analysis.store import load

COLOURS = 8
"""That the styles know."""


def sentences(facts: Mapping[str, Any], done: tuple[int, int]) -> list[str]:
    """What was measured on, and how to measure it again."""
    where = ", ".join(f"{facts[key]}" for key in ("device", "cpu", "driver") if facts.get(key))
    software = f"torch {facts['torch']}, Python {facts['python']}, headroom {facts['headroom']}"
    left = [] if done[0] == done[1] else [f"{done[0]} of {done[1]} cells are measured: the same command goes on."]
    return [f"{where}; {software}; {facts['date']}.", f"Again: {facts['command']}", *left]


def markdown(facts: Mapping[str, Any], done: tuple[int, int], found: Iterable[Table]) -> str:
    out = [f"# Campaign on {text(facts['device'])}", "", *(f"{text(line)}  " for line in sentences(facts, done)), ""]
    for one in found:
        out += [f"## {text(one.title)}", "", text(one.about), ""]
        if one.rows:
            lines = [[text(head) for head in one.head], ["---", *["---:"] * (len(one.head) - 1)]]
            lines += [[text(cell) for cell in row] for row in one.rows]
            out += [*(f"| {' | '.join(line)} |" for line in lines), ""]
        out += [*(f"- {text(note)}" for note in one.notes), ""]
    return "\n".join(out).rstrip() + "\n"


def page(
    facts: Mapping[str, Any],
    done: tuple[int, int],
    size: Size,
    results: Results,
    found: Sequence[Table],
    runs: Path,
) -> str:
    """`runs`: the folder of run folders, beside the page's own folder."""
    drawn = {
        f"{subject.label}, bare": _batches(number, subject, results) for number, subject in enumerate(size.subjects)
    }
    for subject in size.subjects:
        if name := results.get(Cell("ramp", subject).name, {}).get("run"):
            drawn[f"{subject.label}, served"] = _rates(runs / name)
    sections = [
        tag(
            "section",
            tag("h2", one.title),
            tag("p", one.about),
            drawn.get(one.title),
            table(one.head, one.rows, one.title) if one.rows else None,
            tag("ul", (tag("li", note) for note in one.notes)) if one.notes else None,
        )
        for one in found
    ]
    head = tag(
        "header", tag("h1", f"Campaign on {facts['device']}"), THEME, (tag("p", s) for s in sentences(facts, done))
    )
    return document(
        f"Campaign on {facts['device']}", tag("main", head, sections), style=parts("css"), script=parts("js")
    )


@cache
def _rates(folder: Path) -> Html:
    """The hockey stick of a run, and the way to its whole report."""
    whole = tag("a", "the whole report", href=f"{folder.parent.name}/{folder.name}/report.html")
    return tag("div", plot.hockey_stick(load(folder), id_=f"rates-{folder.name}").body, tag("p", whole))


def _batches(number: int, subject: Subject, results: Results) -> Html | None:
    """Rows per second over the size of a batch, a line for each variant."""
    prefix = f"{Cell('bare', subject).name}--"
    known: dict[str, dict[int, float]] = {}
    for name, found in results.items():
        if name.startswith(prefix):
            rates = {int(b): row["rows_s"] for b, row in found.get("batches", {}).items() if "rows_s" in row}
            known |= {name.removeprefix(prefix): rates} if rates else {}
    if not known:
        return None
    series = {variant: place % COLOURS for place, variant in enumerate(known)}
    largest = max(max(rates) for rates in known.values())
    panel = Panel(Scale(0, largest * 1.04), linear(rate for rates in known.values() for rate in rates.values()), 240)
    panel.grid((v, words.tick(v)) for v in panel.y.ticks(5))
    panel.x_ticks([(v, words.tick(v)) for v in panel.x.ticks(8) if v.is_integer()])
    readout = Readout()
    for variant, rates in known.items():
        n = series[variant]
        panel.line(sorted(rates.items()), f"p99 s{n}", n)
        for batch, rate in rates.items():
            panel.dot(batch, rate, f"dot s{n}", n, radius=3)
    for batch in sorted({batch for rates in known.values() for batch in rates}):
        said = {
            readout.row(series[variant], variant): f"{words.significant(rates[batch])}/s"
            for variant, rates in known.items()
            if batch in rates
        }
        readout.place(panel.x(batch), f"batches of {batch}", said)
    told = (f"{variant} at most {words.significant(max(rates.values()))}" for variant, rates in known.items())
    svg = panel.svg(f"Chart of rows per second. {', '.join(told)}.", above=8, below=26)
    what = "steps" if subject.step else "rows"
    return figure(
        f"batches-{number}", f"{what.capitalize()} per second by size of batch", "", legend(series), svg, readout
    )
