"""The table of runs: a row each, newest first, with a small hockey stick and the figures that a review asks for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

from tailrate.analysis.history.log import Key, key_of
from tailrate.analysis.history.run_summary import STATES, Entry, SustainedRate, thinned
from tailrate.analysis.pages.html.markup import Html, tag
from tailrate.analysis.pages.html.svg import Scale, fitting
from tailrate.analysis.text import words

MOST_ENDPOINTS = 6
"""In one row."""
MOST_SAID = 260
MOST_PLACES = 24
"""Of one line of a small drawing."""

_WIDE, _HIGH = 132, 44

Remarks = dict[Key, list[str]]
"""What the history says of a run."""

_HEADS = {
    "A, B": "choose two runs to compare them",
    "when": "start of the run, UTC",
    "run": "scenario and mode; its folder and reports",
    "verdict": "of the report, or why there is none",
    "conclusion": "its first sentence",
    "P99 over rate": "dashed: the objective; sorts by the highest P99",
    "endpoint": "model and variant, in the colours of the drawing",
    "kept at": "the highest rate tried that kept the objective",
    "P99 there": "at that rate",
    "J/request": "energy of the device for each success at that rate",
}
"""Heading and what it means."""


def table(entries: Sequence[Entry], remarks: Remarks) -> Html:
    """The rows in the order of the entries, which is also that of the embedded runs."""
    body = tag(
        "table",
        tag("caption", "A heading sorts by its column and says what it means"),
        tag("thead", tag("tr", (_head(*head) for head in _HEADS.items()))),
        tag("tbody", (_row(number, entry, remarks) for number, entry in enumerate(entries))),
        class_="runs sortable",
    )
    return tag("div", body, class_="box", tabindex=0, role="group", aria_label="Runs")


def _head(text: str, meaning: str) -> Html:
    return tag("th", tag("button", text, type="button", data_tip=meaning, aria_description=meaning), scope="col")


def _row(number: int, entry: Entry, remarks: Remarks) -> Html:
    shown = entry.endpoints[:MOST_ENDPOINTS]
    more = len(entry.endpoints) - len(shown)
    found = [entry.kept.get(endpoint) for endpoint in shown] if entry.levels else []
    best = max((kept for kept in found if kept), key=lambda kept: kept.low_rps or 0.0, default=None)
    highest = [p99 for level in entry.levels if (p99 := level.figures["p99_ms"]) is not None]
    box = tag("input", type="checkbox", aria_label=f"Compare {entry.name}") if entry.levels else None
    swatches = (tag("i", class_=f"swatch s{n}") for n in range(len(shown)))
    names = [tag("span", swatch, name, title=name) for swatch, name in zip(swatches, shown, strict=True)]
    files = (name for name, there in (("report.html", entry.page), ("report.json", entry.reported)) if there)
    links = [tag("a", name, href=f"{entry.url}/{name}") for name in files]
    return tag(
        "tr",
        tag("td", box, data_value=1),
        tag("td", entry.when.removesuffix(":00 UTC").removesuffix(" UTC"), data_value=entry.time_ns),
        tag("th", tag("b", entry.scenario), " ", entry.mode, tag("small", entry.name), tag("small", links), scope="row",
            data_value=entry.scenario),
        tag("td", tag("span", STATES[entry.state], class_=f"state {entry.state}"), data_value=STATES[entry.state]),
        tag("td", tag("div", _first_sentence(entry.said), class_="said"),
            (tag("div", tag("b", remark), class_="said") for remark in remarks.get(key_of(entry), ()))),
        tag("td", sparkline(entry), data_value=_sort_value(max(highest, default=None))),
        tag("td", names, tag("small", f"and {more} more") if more else None, data_value=", ".join(shown)),
        tag("td", (tag("span", kept.asked if kept else words.ABSENT) for kept in found), class_="num",
            data_value=_sort_value(best.low_rps if best else None)),
        *(_figure(key, found, best, write) for key, write in _AT_IT),
        data_run=number,
    )  # fmt: skip


_AT_IT = (("p99_ms", words.ms), ("joules_per_request", words.significant))


def _figure(
    key: str, found: Iterable[SustainedRate | None], best: SustainedRate | None, write: Callable[[float | None], str]
) -> Html:
    def of(kept: SustainedRate | None) -> float | None:
        return kept.level.figures[key] if kept and kept.level else None

    return tag("td", (tag("span", write(of(kept))) for kept in found), class_="num", data_value=_sort_value(of(best)))


def _sort_value(value: float | None) -> str:
    return "" if value is None else f"{value:.9g}".replace("inf", "Infinity")


def _first_sentence(said: str) -> str:
    first = re.split(r"(?<=\.)\s+(?=[A-Z])", said, maxsplit=1)[0]
    return first if len(first) <= MOST_SAID else f"{first[: MOST_SAID - 1]}…"


def sparkline(entry: Entry) -> Html | None:
    """P99 over offered rate, a line per endpoint; what is infinite leaves at the top."""
    known = [level for level in entry.levels if level.figures["p99_ms"] is not None]
    if not known:
        return None
    x = Scale(0.0, max(level.figures["offered_rps"] or 0.0 for level in known) * 1.03 or 1.0)
    y = fitting([*(level.figures["p99_ms"] or 0.0 for level in known), *entry.limits_ms])
    drawn = [tag("path", d=f"M0 {_HIGH * (1 - y(limit)):.1f}H{_WIDE}", class_="slo") for limit in entry.limits_ms]
    said = []
    for n, endpoint in enumerate(entry.endpoints[:MOST_ENDPOINTS]):
        mine = thinned([level for level in known if level.endpoint == endpoint], MOST_PLACES)
        places = []
        for level in mine:
            p99 = level.figures["p99_ms"] or 0.0
            height = _HIGH * (1 - y(p99)) if math.isfinite(p99) else -3.0
            places.append(f"{_WIDE * x(level.figures['offered_rps'] or 0.0):.0f} {height:.1f}")
        if mine:
            line = f"M{'L'.join(places)}" + ("h0" if len(places) == 1 else "")
            drawn.append(tag("path", d=line, class_=f"s{n} lone" if len(places) == 1 else f"s{n}"))
            ends = " to ".join(f"{words.ms(level.figures['p99_ms'])} at {level.asked}" for level in (mine[0], mine[-1]))
            said.append(f"{endpoint} {ends}")
    label = f"P99: {'; '.join(said)}"
    return tag("svg", drawn, viewBox=f"0 -4 {_WIDE} {_HIGH + 6}", class_="spark", role="img", aria_label=label)
