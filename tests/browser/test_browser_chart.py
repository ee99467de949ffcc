"""Numbers, times, scales and marks that the script draws in a page are those that Python draws."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from chromium import CHROMIUM, tabbed
from playwright.sync_api import Page

from tailrate.analysis.pages import assets
from tailrate.analysis.pages.html import svg
from tailrate.analysis.pages.html.document import panel_script
from tailrate.analysis.pages.report.charts.time_chart import moment
from tailrate.analysis.text import words

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"),
]

RNG = random.Random(1)
VALUES = [0, 5.0, 4.5, -2.5, 0.0304, 78.94, 1234.5, 0.1, 999.5, 44.95, 1e6, 1e-13, 12.5, 0.125, 2.675, 99.95, 1e9]
VALUES += [10 ** RNG.uniform(-4, 7) for _ in range(500)] + [round(10 ** RNG.uniform(-2, 5), 1) for _ in range(200)]
SECONDS = [0, 1, 59, 60, 61, 119, 120, 3599, 3600, 3661, 86399, 86400, 90061, 1e6]
SECONDS += [RNG.randrange(10**6) + 0.25 for _ in range(200)]
INF = math.inf


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with tabbed() as tab:
        tab.page.add_script_tag(content=assets.texts("tailrate.analysis.pages.assets", "chart.js") + panel_script())
        yield tab.page


def asked(page: Page, what: str, given: list[Any]) -> Any:
    """`what` of each in the page; JSON has no infinity, so that is a text on its way."""
    text = json.dumps(given).replace("Infinity", '"∞"')
    read = 'JSON.parse(text, (key, value) => (value === "∞" ? Infinity : value))'
    return page.evaluate(f"(text) => {read}.map((given) => ({what})(given))", text)


@pytest.mark.parametrize(
    ("script", "python"),
    [
        ("chart.significant", words.significant),
        ("(value) => chart.significant(value, 2)", lambda value: words.significant(value, 2)),
        ("chart.ms", words.ms),
        ("chart.rate", words.rate),
    ],
)
def test_numbers_are_written_as_in_the_reports(page: Page, script: str, python: Any) -> None:
    given = [*VALUES, INF, None]
    assert asked(page, script, given) == [python(value) for value in given]


def test_counts_and_ticks_and_loads_are_written_the_same(page: Page) -> None:
    assert asked(page, "chart.count", [*VALUES, None]) == [words.count(value) for value in [*VALUES, None]]
    ticks = [m * 10.0**e for e in range(-7, 9) for m in (1, 1.5, 2, 3, 5)]
    for name, python in (("tick", words.tick), ("rateTick", words.rate_tick), ("latencyTick", words.latency_tick)):
        assert asked(page, f"chart.{name}", ticks) == [python(value) for value in ticks]
    loads = [{"rate": 12.5, "concurrency": 0}, {"rate": 0.0, "concurrency": 16}]
    assert asked(page, "chart.load", loads) == [words.load(one["rate"], one["concurrency"]) for one in loads]


def test_times_are_written_the_same(page: Page) -> None:
    assert asked(page, "chart.duration", SECONDS) == [words.duration(s) for s in SECONDS]
    assert asked(page, "chart.moment", SECONDS) == [moment(s) for s in SECONDS]
    axes = [(s, most) for s in SECONDS if s >= 1 for most in (4, 10)]
    steps = [found[1] if len(found := svg.time_ticks(*axis)) > 1 else None for axis in axes]
    shown = asked(page, "([seconds, most]) => chart.timeStep(seconds, most)", axes)
    assert [step for step, known in zip(shown, steps, strict=True) if known] == [known for known in steps if known]


def scales() -> list[svg.Scale]:
    found = [svg.Scale(0, 63), svg.Scale(-0.5, 8.5), svg.Scale(3.5, 12.5), svg.Scale(12, 1900, log=True)]
    for _ in range(200):
        low = 10 ** RNG.uniform(-3, 3)
        found += [svg.Scale(0, low), svg.Scale(low, low * 10 ** RNG.uniform(0.3, 5), log=True)]
    return found


def test_scales_have_the_same_places_and_ticks(page: Page) -> None:
    for most in (2.5, 4, 8):
        given = [[one.low, one.high, one.log, most] for one in scales()]
        shown = asked(page, "([low, high, log, most]) => chart.ticks(chart.scale(low, high, log), most)", given)
        for ticks, (low, high, log, _) in zip(shown, given, strict=True):
            assert ticks == pytest.approx(svg.Scale(low, high, log=log).ticks(most), abs=1e-12), (low, high, log, most)
    places = [[one.low, one.high, one.log, RNG.uniform(0, 1.2 * one.high)] for one in scales()]
    shown = asked(page, "([low, high, log, value]) => chart.scale(low, high, log)(value)", places)
    assert shown == pytest.approx([svg.Scale(low, high, log=log)(value) for low, high, log, value in places])


def test_an_axis_fits_its_values_in_the_same_way(page: Page) -> None:
    several = [[], [0.0], [INF], [3, 30], [3, 300], [3, 36], [3, 36.1, INF, 0]]
    several += [[10 ** RNG.uniform(-2, 4) for _ in range(RNG.randrange(1, 9))] for _ in range(100)]
    for name, python in (("linear", svg.linear), ("fitting", svg.fitting)):
        shown = asked(page, f"(values) => {{ const found = chart.{name}(values); return {{ ...found }}; }}", several)
        for found, values in zip(shown, several, strict=True):
            expected = python(values)
            assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high))
            assert found["log"] == expected.log


MARKS: list[list[Any]] = [
    ["rule", 40, "slo"],
    ["upright", 0.1, "demand"],
    ["upright", 7, "demand"],
    ["text", 0.1, -8, "at the left", "demand"],
    ["text", 5, -8, "between", "demand"],
    ["text", 9.95, -8, "at the right", "demand"],
    ["line", [[0, 1], [1, 5], [2, INF], [3, INF], [4, INF], [5, 5], [6, None], [7, 5], [8, 50]], "p99 s0"],
    ["line", [[3, 7]], "p50 s1"],
    ["line", [[3, None]], "p50 s1"],
    ["whisker", 4, 20, 60, "whisker s1"],
    ["whisker", 4, 20, INF, "whisker s1"],
    ["dot", 4, 30, "dot s0"],
    ["dot", 4, INF, "dot s0 hollow"],
]
ENDS = [[30, "eager P99", "s0"], [31, "a-name-that-is-too-long-for-it P99", "s1"], [60, "objective", "slo"]]


@pytest.mark.parametrize("y", [svg.Scale(0, 80), svg.Scale(0.8, 80, log=True)], ids=["linear", "log"])
def test_a_panel_has_the_same_marks(page: Page, y: svg.Scale) -> None:
    x = svg.Scale(0, 10)
    panel = svg.Panel(x, y, 240)
    panel.grid(y.labels(6, words.latency_tick))
    panel.x_ticks(x.labels(8, words.rate_tick))
    for name, *given in MARKS:
        series = re.findall(r"\bs(\d)", given[-1]) if name in ("line", "whisker", "dot") else []
        getattr(panel, name)(*given, *map(int, series))
    panel.end_labels([(value, text, kind, int(kind[1]) if kind != "slo" else None) for value, text, kind in ENDS])
    drawn = f"""([low, high, log, marks, ends]) => {{
        const {{ labels, scale, latencyTick, rateTick }} = chart;
        const area = panel.area(scale(0, 10), scale(low, high, log), 240);
        area.grid(labels(area.y, 6, latencyTick));
        area.xTicks(labels(area.x, 8, rateTick));
        for (const [name, ...given] of marks) area[name](...given);
        area.endLabels(ends);
        return ({NODES})(area.svg("Chart.", 8, 26));
    }}"""
    shown = asked(page, drawn, [[y.low, y.high, y.log, MARKS, ENDS]])[0]
    parsed = f"""(text) => {{
        const box = document.createElement("div");
        box.innerHTML = text;
        return ({NODES})(box.firstChild);
    }}"""
    made = page.evaluate(parsed, panel.svg("Chart.", above=8, below=26))
    assert len(shown) > 40
    assert shown == made


NODES = """(svg) => [svg, ...svg.querySelectorAll("*")].filter((node) => node.tagName !== "g").map((node) => [
    node.tagName, node.children.length ? "" : node.textContent, ...[...node.attributes].map(({ name, value }) =>
        `${name}=${/^-?[\\d.]+$/.test(value) ? Number(value) : value}`).sort()])"""
"""Each element of a drawing: tag, text, attributes; Python's groups are for the zoom alone, and it writes 3 as 3.0."""
