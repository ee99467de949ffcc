"""The sections of the page, each a function from a `View` to its body.

A section is None where the run has nothing to show for it: what is absent from the data is absent from the
page. Drawing is `charts`, wording is `words`, the columns of a step are `columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from tailrate.analysis.pages.html.markup import Child, Html, join, tag
from tailrate.analysis.pages.html.table import boxed, folded, table
from tailrate.analysis.pages.report import columns, facts
from tailrate.analysis.pages.report.charts import by_rate
from tailrate.analysis.pages.report.charts.batches import HEADS, batch_charts, batch_rows
from tailrate.analysis.pages.report.charts.energy import energy_charts
from tailrate.analysis.pages.report.charts.percentiles import percentile_charts
from tailrate.analysis.pages.report.charts.time_chart import moment, time_line
from tailrate.analysis.pages.report.charts.time_slices import device_slices, slices
from tailrate.analysis.pages.report.faults import fault_section
from tailrate.analysis.pages.report.model_identity import sameness
from tailrate.analysis.pages.report.soak import soak_section
from tailrate.analysis.pages.report.stage_bars import stage_charts
from tailrate.analysis.pages.report.view import View
from tailrate.analysis.text import words


def _facts(pairs: Sequence[tuple[str, Child]]) -> Html:
    return tag("dl", (tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs), class_="facts")


# ---- the sections


def _ran(view: View) -> Html:
    return _facts(facts.environment(view))


def _rates(view: View) -> Html | None:
    if not view.drawn:
        return tag("p", "No step of this run has an arrival, so there is nothing to draw.")
    drawn: list[Html] = [by_rate.hockey_stick(view.drawn, view.series, view.run.manifest.slos)]
    hollow = [
        tag("li", f"{row['endpoint']} at {row['asked']}: {words.sentence_list(why)}")
        for row in view.drawn
        if (why := by_rate.doubts(row))
    ]
    if hollow:
        summary = "Why a step is drawn hollow" if len(hollow) == 1 else f"Why {len(hollow)} steps are drawn hollow"
        drawn.append(tag("details", tag("summary", summary), tag("ul", hollow)))
    return join([*drawn, by_rate.achieved(view.drawn, view.series)])


def _capacity(view: View) -> Html | None:
    rows = facts.capacity_rows(view)
    caption = "The limit lies between the two rates"
    return table(facts.CAPACITY_HEADS, rows, caption, numbers_from=9, class_="narrow") if rows else None


def _time(view: View) -> Html | None:
    line = view.line()
    if line is None:
        return None
    devices = device_slices(line, ((track.device, track.time_ns, track.state) for track in view.tracks()))
    kind, events = "GPU" if view.has_gpu() else "CPU", view.events()
    drawn = [time_line(line, slices(view.run, line), devices, kind, view.begun(line), events, view.series)]
    if devices.empty:
        drawn.append(tag("p", "The server sent no device samples, so utilisation, memory and power are not shown."))
    if events:
        said = (
            tag("li", tag("b", moment(line.at(event["time_ns"]))), f" {facts.event_text(event)}") for event in events
        )
        drawn.append(tag("ol", said, class_="events"))
    return join(drawn)


def _pairs(view: View) -> Html | None:
    rows = view.report["pairs"]
    if not rows:
        return None
    heads = (
        "pair", "at", "in words", "P50 ratio", "interval", "P99 ratio", "interval", "smallest visible", "J/request",
        "rounds",
    )  # fmt: skip
    cells = [
        (
            f"{pair['a']} against {pair['b']}",
            words.load(pair["rate"], pair["concurrency"]),
            words.pair_sentence(pair),
            words.significant(pair["p50_ratio"]),
            words.interval(pair["p50_low"], pair["p50_high"]),
            words.significant(pair["p99_ratio"]),
            words.interval(pair["ratio_low"], pair["ratio_high"]),
            words.ABSENT
            if pair["smallest_visible"] is None
            else f"{words.significant(100 * pair['smallest_visible'])} %",
            words.significant(pair["joules_ratio"]),
            words.count(pair["rounds"]),
        )
        for pair in rows
    ]
    note = "Ratios are the first one's latency over the second one's: above 1 the second is faster."
    return join([tag("p", note), table(heads, cells, "Pairs at the same offered rate", numbers_from=3, class_="pairs")])


def _steps(view: View) -> Html | None:
    if not view.steps:
        return None
    groups = [(name, list(found)) for name, found in groupby(columns.present(view.steps), key=lambda c: c.group)]
    shown = [(column, column is found[0]) for _, found in groups for column in found]
    head = tag(
        "thead",
        tag("tr", (tag("th", name, scope="colgroup", colspan=len(found), class_="first") for name, found in groups)),
        tag("tr", (_sorting_head(*one) for one in shown)),
    )
    body = tag("tbody", (tag("tr", (_step_cell(row, *one) for one in shown)) for row in view.steps))
    caption = tag("caption", "A heading sorts by its column and says what it means")
    return boxed("Every step", tag("table", caption, head, body, class_="steps sortable"))


def _sorting_head(column: columns.Column, first: bool) -> Html:
    button = tag("button", column.head, type="button", data_tip=column.meaning, aria_description=column.meaning)
    return tag("th", button, scope="col", class_=_classes(column, first))


def _classes(column: columns.Column, first: bool) -> str:
    """On paper there is room for the main columns."""
    return " ".join(["num", *(["first"] if first else []), *([] if column.brief else ["more"])])


def _step_cell(row: dict[str, Any], column: columns.Column, first: bool) -> Html:
    value = row.get(column.key)
    if column.key == "endpoint":
        return tag("th", value, scope="row", data_value=value)
    sort = float(value) if isinstance(value, (bool, int, float)) else "" if value is None else str(value)
    return tag(
        "td",
        column.show(value),
        class_=_classes(column, first),
        data_value=str(sort).replace("inf", "Infinity"),
    )


def _batches(view: View) -> Html | None:
    drawn = batch_charts(view.drawn, view.report["batches"], view.series)
    rows = batch_rows(view.report["batches"])
    if drawn is None or len(rows) <= len(view.series):
        return drawn
    return join([drawn, folded(rows, "These sizes as a table", table(HEADS, rows, "Over all steps"), most=10)])


def _energy(view: View) -> Html | None:
    return energy_charts(view.drawn, view.series)


def _percentiles(view: View) -> Html | None:
    return percentile_charts(view.drawn, view.report["curves"], view.series, view.run.manifest.slos)


def _endpoints(view: View) -> Html | None:
    names, said = facts.endpoint_facts(view)
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


def _risks(view: View) -> Html | None:
    found = facts.risks(view)
    if not found:
        return None
    lines = []
    for severity, sentence in found:
        known = facts.SEVERITIES[severity]
        name = tag("b", tag("span", known.mark, aria_hidden="true"), f" {known.word}", title=known.meaning)
        lines.append(tag("li", name, tag("span", sentence), class_=severity))
    return tag("ul", lines, class_="risks")


def _trust(view: View) -> Html:
    known = facts.trust_facts(view)
    ledger = facts.ledger_rows(view)
    why = facts.exceptions(view)
    return join(
        [
            _facts(known) if known else None,
            tag("h3", "Steps with a reservation") if why else None,
            tag("ul", (tag("li", line) for line in why)) if why else None,
            tag("h3", "What became of every arrival") if ledger else None,
            table(facts.LEDGER_HEADS, ledger, "Settle time included", numbers_from=2) if ledger else None,
            tag("h3", "How to read the numbers"),
            tag("ul", (tag("li", line) for line in facts.pitfalls(view))),
        ]
    )


def _again(view: View) -> Html:
    run_id, said = view.run.manifest.id, facts.command(view)
    return join(
        [
            tag("pre", tag("code", said), tabindex=0) if said else None,
            tag(
                "p",
                "Every request is a row: ",
                tag("code", f"tailrate rows {run_id}"),
                " prints them as CSV, and in a notebook ",
                tag("code", f'analysis.load("runs/{run_id}").requests()'),
                " is a pandas frame. ",
                tag("code", "report.json"),
                " and ",
                tag("code", "steps.csv"),
                " beside this page hold its numbers.",
            ),
        ]
    )


SECTIONS: tuple[tuple[str, str, Callable[[View], Html | None]], ...] = (
    ("rates", "Latency and rate", _rates),
    ("capacity", "How much it can take", _capacity),
    ("percentiles", "Latency by percentile", _percentiles),
    ("time", "Over time", _time),
    ("soak", "What hours brought to light", soak_section),
    ("faults", "Faults", fault_section),
    ("pairs", "One variant against another", _pairs),
    ("stages", "Where the time goes", stage_charts),
    ("batches", "Batches", _batches),
    ("energy", "Memory and energy", _energy),
    ("endpoints", "Is it still the same model?", _endpoints),
    ("steps", "Every step", _steps),
    ("risks", "Risks and limits", _risks),
    ("trust", "Can this be trusted?", _trust),
    ("ran", "What ran", _ran),
    ("again", "How to repeat it", _again),
)
