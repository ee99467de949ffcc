"""Where the time went: one stacked bar for the usual and one for the slow requests of each step.

All endpoints share one scale of time; a bar that would leave the others no height is cut, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailrate.analysis.pages.html.figure import Readout, figure
from tailrate.analysis.pages.html.markup import Html, join, tag
from tailrate.analysis.pages.html.svg import Panel, Scale, linear
from tailrate.analysis.pages.html.table import folded, table
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import STAGE_NAMES, Stages, View
from tailrate.analysis.steps.latency_breakdown import STAGES
from tailrate.analysis.text import words

_CUT = 4.0
"""Times the bar in the middle: what is longer is cut."""
_LONG = 10
"""Rows of a table that is folded away."""
_WIDE = 14
"""Rates from which on a chart takes the whole width."""
_ARROW = "M-5 0L0-8L5 0Z"


def _html(view: View) -> Html | None:
    found = view.stages()
    if not found:
        return None
    totals = sorted(stages.total for stages in found)
    longest = min(totals[-1], _CUT * totals[(len(totals) - 1) // 2])
    names = [name for name in STAGE_NAMES if any(stages.parts.get(name) for stages in found)]
    rates = {row["asked"]: float(row["rate"]) for row in view.steps}
    key = (tag("li", tag("i", class_=f"chip {name}"), tag("b", name), f" {STAGES[f'{name}_ms']}") for name in names)
    note = "Of each two bars the left one is P50, the right one P99."
    if totals[-1] > longest:
        note += " A bar with an arrow goes on above."
    drawn = [
        _chart(endpoint, n, mine, names, rates, linear([longest]))
        for endpoint, n in view.series.items()
        if (mine := [stages for stages in found if stages.endpoint == endpoint])
    ]
    wide = "multiples wide" if len({stages.asked for stages in found}) < _WIDE else None
    return join(
        [
            tag("p", note),
            tag("ul", key, class_="stages"),
            tag("div", drawn, class_=wide),
            folded(found, "These times as a table", _table(found, names), most=_LONG),
        ]
    )


def _table(found: Sequence[Stages], names: Sequence[str]) -> Html:
    rows = [
        (
            stages.endpoint,
            stages.asked,
            f"P{stages.percentile:g}",
            *(words.significant(stages.parts.get(name)) for name in names),
            words.significant(stages.total),
            stages.grew or words.ABSENT,
        )
        for stages in found
    ]
    caption = "Mean times, in milliseconds, of the requests that took as long as the percentile says"
    heads = ("requests to", "at", "around", *names, "total", "grew most since the lower rate")
    return table(heads, rows, caption, numbers_from=3)


def _chart(
    endpoint: str, n: int, found: Sequence[Stages], names: Sequence[str], rates: Mapping[str, float], y: Scale
) -> Html:
    asked = sorted({stages.asked for stages in found}, key=lambda name: rates[name])
    panel = Panel(Scale(0, len(asked)), y, 220)
    panel.grid(panel.y.labels(6, words.latency_tick))
    every = -(-len(asked) // 12)
    panel.x_ticks([(k + 0.5, name) for k, name in enumerate(asked) if k % every == 0])
    readout = Readout()
    labels = {name: readout.row(None, name) for name in (*reversed(names), "total")}
    told = []
    for k, name in enumerate(asked):
        for percentile, start in ((50, k + 0.12), (99, k + 0.52)):
            same = sorted((s for s in found if (s.asked, s.percentile) == (name, percentile)), key=lambda s: s.total)
            if not same:
                continue
            stages, end, low = same[len(same) // 2], start + 0.36, 0.0
            for part in names:
                high = min(y.high, low + stages.parts.get(part, 0.0))
                if high > low:
                    panel.column(start, end, low, high, f"stage {part}")
                low = high
            if stages.total > y.high:
                panel.stripe(start, end, 5, 4, "torn")
                panel.glyph((start + end) / 2, -2, _ARROW, "onward")
            said = {labels[part]: words.ms(stages.parts[part]) for part in names if part in stages.parts}
            readout.place(
                panel.x((start + end) / 2), f"P{percentile} at {name}", said | {labels["total"]: words.ms(stages.total)}
            )
            if part := max(stages.parts, key=lambda part: stages.parts[part], default=""):
                told.append(f"P{percentile} at {name}: {words.ms(stages.total)}, most of it {part}")
    label = f"Chart of {endpoint}. {'; '.join(told)}."
    drawn = panel.svg(label, above=12, below=26)
    return figure(f"stages-{n}", endpoint, "", Html(""), drawn, readout, series=n)


STAGES_SECTION = Section("stages", "Where the time goes", _html)
