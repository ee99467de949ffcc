"""`campaign.md` and `campaign.html`: the same tables, on the page with what batches bring drawn beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tailrate.analysis import load, plot
from tailrate.analysis.pages.html.document import THEME, columns, document
from tailrate.analysis.pages.html.figure import Readout, figure, legend
from tailrate.analysis.pages.html.markup import Html, tag
from tailrate.analysis.pages.html.svg import Panel, Scale, linear
from tailrate.analysis.pages.html.table import table
from tailrate.analysis.records.folder import RunError
from tailrate.analysis.text import markdown as md
from tailrate.analysis.text import words
from tailrate.analysis.text.markdown import text
from tailrate.analysis.text.table import Table
from tailrate.cli.campaign.matrix import Cell, Size, Subject
from tailrate.cli.campaign.tables import Results, headline

COLOURS = 8
"""That the styles know."""


def sentences(facts: Mapping[str, Any], done: tuple[int, int]) -> list[str]:
    """What was measured on, and how to measure it again."""
    where = ", ".join(f"{facts[key]}" for key in ("device", "cpu", "driver") if facts.get(key))
    software = f"torch {facts['torch']}, Python {facts['python']}, tailrate {facts['tailrate']}"
    left = [] if done[0] == done[1] else [f"{done[0]} of {done[1]} cells are measured: the same command goes on."]
    return [f"{where}; {software}; {facts['date']}.", f"Again: {facts['command']}", *left]


def markdown(
    facts: Mapping[str, Any], done: tuple[int, int], size: Size, results: Results, found: Iterable[Table]
) -> str:
    out = [f"# Campaign on {text(facts['device'])}", "", text(headline(size, results)), ""]
    out += [*(f"{text(line)}  " for line in sentences(facts, done)), ""]
    for one in found:
        out += [f"## {text(one.title)}", "", text(one.about), ""]
        if one.rows:
            out += md.table(one.heads, one.rows)
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
        f"{subject.label}, bare": _batches(number, subject, size, results)
        for number, subject in enumerate(size.subjects)
    }
    for subject in size.subjects:
        if name := results.get(Cell("ramp", subject).name, {}).get("run"):
            two = tuple(
                (f"{subject.model}/{variant}", colour(size, subject, variant)) for variant in size.pair(subject)
            )
            drawn[f"{subject.label}, served"] = _rates(runs / name, two)
    title = f"Campaign on {facts['device']}"
    first, *rest = sentences(facts, done)
    top = tag("div", tag("h1", title), THEME, class_="top")
    said = (tag("p", headline(size, results), class_="conclusion"), tag("p", first), (tag("p", line) for line in rest))
    links = [(f"s{number}", one.title) for number, one in enumerate(found) if "profile" not in one.title]
    body = (
        tag("a", "Skip to the tables", href="#main", class_="skip"),
        tag("header", top, said),
        columns(links, (_section(n, one, drawn.get(one.title)) for n, one in enumerate(found))),
    )
    return document(title, body)


def _section(number: int, one: Table, drawn: Html | None) -> Html:
    return tag(
        "section",
        tag("h2", one.title),
        tag("p", one.about),
        drawn,
        table(one.heads, one.rows, one.title) if one.rows else None,
        tag("ul", (tag("li", note) for note in one.notes)) if one.notes else None,
        id=f"s{number}",
    )


def colour(size: Size, subject: Subject, variant: str) -> int:
    """The same in all charts of a subject."""
    return size.of(subject).index(variant) % COLOURS


@cache
def _rates(folder: Path, two: tuple[tuple[str, int], ...]) -> Html:
    """The hockey stick of a run, and the way to its whole report."""
    whole = tag("a", "the whole report", href=f"{folder.parent.name}/{folder.name}/report.html")
    try:
        run = load(folder)
    except RunError as why:
        return tag("p", f"Not drawn: {why}")
    return tag("div", plot.hockey_stick(run, id_=f"rates-{folder.name}", series=dict(two)).body, tag("p", whole))


def _batches(number: int, subject: Subject, size: Size, results: Results) -> Html | None:
    """Rows per second over the size of a batch, a line for each variant."""
    prefix = f"{Cell('bare', subject).name}--"
    known: dict[str, dict[int, float]] = {}
    for name, found in results.items():
        if name.startswith(prefix):
            rates = {int(b): row["rows_s"] for b, row in found.get("batches", {}).items() if "rows_s" in row}
            known |= {name.removeprefix(prefix): rates} if rates else {}
    if not known:
        return None
    series = {variant: colour(size, subject, variant) for variant in known}
    largest = max(max(rates) for rates in known.values())
    panel = Panel(Scale(0, largest * 1.04), linear(rate for rates in known.values() for rate in rates.values()), 240)
    panel.grid(panel.y.labels(5))
    panel.x_ticks(panel.x.labels(8, whole=True))
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
