"""The sections of the page, each a function from a `View` to its body.

A section is None where the run has nothing to show for it: what is absent from the data is absent from the
page. Drawing is `charts`, wording is `words`, the columns of a step are `columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from analysis import words
from analysis.breakdown import STAGES
from analysis.report import charts, columns, facts
from analysis.report.markup import Child, Html, join, tag
from analysis.report.timechart import moment, time_line
from analysis.report.timeline import device_slices, slices
from analysis.report.view import STAGE_NAMES, Stages, View


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[Child]], caption: str, *, numbers_from: int = 1, class_: str = ""
) -> Html:
    """A plain table in its own scrolling box; the first cell of a row is its header."""

    def cell(number: int, child: Child) -> Html:
        kind = "num" if number >= numbers_from else None
        return tag("td", child, class_=kind) if number else tag("th", child, scope="row")

    return _boxed(
        caption,
        tag(
            "table",
            tag("caption", caption),
            tag(
                "thead",
                tag(
                    "tr",
                    (
                        tag("th", h, scope="col", class_="num" if k >= numbers_from else None)
                        for k, h in enumerate(heads)
                    ),
                ),
            ),
            tag("tbody", (tag("tr", (cell(k, child) for k, child in enumerate(row))) for row in rows)),
            class_=class_ or None,
        ),
    )


def _boxed(label: str, table: Html) -> Html:
    return tag("div", table, class_="box", tabindex=0, role="group", aria_label=label)


def _facts(pairs: Sequence[tuple[str, Child]]) -> Html:
    return tag("dl", (tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs), class_="facts")


# ---- the sections


def _ran(view: View) -> Html:
    return _facts(facts.environment(view))


def _rates(view: View) -> Html | None:
    if not view.drawn:
        return tag("p", "No step of this run has an arrival, so there is nothing to draw.")
    drawn: list[Html] = [charts.hockey_stick(view.drawn, view.series, view.run.manifest.slos)]
    hollow = [
        tag("li", f"{row['endpoint']} at {row['asked']}: {words.sentence_list(why)}")
        for row in view.drawn
        if (why := charts.doubts(row))
    ]
    if hollow:
        summary = "Why a step is drawn hollow" if len(hollow) == 1 else f"Why {len(hollow)} steps are drawn hollow"
        drawn.append(tag("details", tag("summary", summary), tag("ul", hollow)))
    return join([*drawn, charts.achieved(view.drawn, view.series)])


def _capacity(view: View) -> Html | None:
    rows = facts.capacity_rows(view)
    caption = "The limit lies between the two rates"
    return _table(facts.CAPACITY_HEADS, rows, caption, numbers_from=9, class_="narrow") if rows else None


def _time(view: View) -> Html | None:
    line = view.line()
    if line is None:
        return None
    devices = device_slices(line, view.tracks())
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
    return join(
        [tag("p", note), _table(heads, cells, "Pairs at the same offered rate", numbers_from=3, class_="pairs")]
    )


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
    return _boxed("Every step", tag("table", caption, head, body, class_="steps sortable"))


def _sorting_head(column: columns.Column, first: bool) -> Html:
    button = tag("button", column.head, type="button", data_tip=column.meaning, aria_description=column.meaning)
    return tag("th", button, scope="col", class_="num first" if first else "num")


def _step_cell(row: dict[str, Any], column: columns.Column, first: bool) -> Html:
    value = row.get(column.key)
    if column.key == "endpoint":
        return tag("th", value, scope="row", data_value=value)
    sort = float(value) if isinstance(value, (bool, int, float)) else "" if value is None else str(value)
    return tag(
        "td",
        column.show(value),
        class_="num first" if first else "num",
        data_value=str(sort).replace("inf", "Infinity"),
    )


def _stages(view: View) -> Html | None:
    found = view.stages()
    if not found:
        return None
    # One overloaded step would leave the others no width: its bar is cut.
    longest = min(max(s.total for s in found), 4 * sorted(s.total for s in found)[(len(found) - 1) // 2])
    names = [name for name in STAGE_NAMES if any(stages.parts.get(name) for stages in found)]

    def bar(stages: Stages) -> Html:
        widths = ((name, 100 * ms / longest) for name, ms in stages.parts.items())
        parts = (tag("i", class_=name, style=f"width:{width:.2f}%") for name, width in widths)
        return tag("div", parts, class_="bar cut" if stages.total > longest else "bar", aria_hidden="true")

    rows = [
        (
            f"{stages.endpoint} at {stages.asked}, P{stages.percentile:g}",
            bar(stages),
            *(words.significant(stages.parts.get(name)) for name in names),
            words.significant(stages.total),
            stages.grew or words.ABSENT,
        )
        for stages in found
    ]
    key = (tag("li", tag("i", class_=f"chip {name}"), tag("b", name), f" {STAGES[f'{name}_ms']}") for name in names)
    caption = "Mean times, in milliseconds, of the requests that took as long as the percentile says"
    if any(stages.total > longest for stages in found):
        caption += "; a bar that fades out is longer than its row"
    heads = ("requests", "drawn", *names, "total", "grew most since the lower rate")
    return join([tag("ul", key, class_="stages"), _table(heads, rows, caption, numbers_from=2, class_="stagetable")])


def _endpoints(view: View) -> Html | None:
    names, rows = facts.endpoint_facts(view)
    return _table(("said of", *names), rows, "As the server describes itself", class_="narrow") if rows else None


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
            _table(facts.LEDGER_HEADS, ledger, "Settle time included", numbers_from=2) if ledger else None,
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
                tag("code", f"headroom rows {run_id}"),
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
    ("ran", "What ran", _ran),
    ("rates", "Latency and rate", _rates),
    ("capacity", "How much it can take", _capacity),
    ("time", "Over time", _time),
    ("pairs", "One variant against another", _pairs),
    ("stages", "Where the time goes", _stages),
    ("steps", "Every step", _steps),
    ("endpoints", "What the server says", _endpoints),
    ("trust", "Can this be trusted?", _trust),
    ("again", "How to repeat it", _again),
)
