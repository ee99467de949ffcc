"""`index.html` in chromium: clean, and sorting, filters, the choice of two runs and their comparison work."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from chromium import CHROMIUM, Tab, findings, tabbed
from folders import Load, queue
from playwright.sync_api import Page
from test_index import run_in
from test_report_page import EVIL

from tailrate.analysis.pages import index
from tailrate.analysis.text import words

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"),
]

STRANGE = "two, <b>it's & #1"
"""A folder's name that needs quoting in HTML, in an address and in a shell."""


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with tabbed() as found:
        yield found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """The index over three runs with reports and one without, and the reports."""
    folder, found = tmp_path_factory.mktemp("gallery"), {}
    for day, (name, ms) in enumerate({"one": 8.0, STRANGE: 5.0}.items()):
        loads = [Load(f"m/{v}", rate, queue(ms + k), seconds=20) for k, v in enumerate("ab") for rate in (50, 90, 150)]
        found[name] = run_in(folder, name, loads, day=day, seed=day, versions={"torch": f"2.{day}"}, page=True)
    infinite = [Load("m/b", 50), Load("m/b", 90, failed=0.3), Load(f"m/{EVIL}", 20)]
    found["infinite"] = run_in(folder, "infinite", infinite, day=2, scenario={"name": EVIL})
    run_in(folder, "bare", [Load("m/a", 20)], day=3, scenario={"name": "other"})
    (folder / "bare" / "report.json").unlink()
    return index.write(folder)[0], found


def fragment(a: str, b: str) -> str:
    return f"#compare={quote(a, safe='')},{quote(b, safe='')}"


def at(tab: Tab, path: Path, hash_: str = "", **options: Any) -> Page:
    return tab.open(path.as_uri() + hash_, **options)


def listed(page: Page) -> list[str]:
    """Folders of the rows that can be seen, in order."""
    rows = page.locator(".runs tbody tr").all()
    return [row.locator("th small").first.inner_text() for row in rows if row.is_visible()]


@pytest.mark.parametrize(
    ("hash_", "width", "scheme"),  # each of what there is to see at the width that is hard for it, and in both schemes
    [
        ("", 390, "light"),
        ("", 1600, "dark"),
        (fragment("one", STRANGE), 390, "dark"),
        (fragment("one", STRANGE), 1600, "light"),
        (fragment("infinite", "one"), 390, "light"),
        ("#compare=none,one", 1600, "dark"),
    ],
)
def test_opens_without_errors_requests_or_overflow(
    tab: Tab,
    runs: tuple[Path, Any],
    hash_: str,
    width: int,
    scheme: Any,
) -> None:
    page = at(tab, runs[0], hash_, width=width, height=900, scheme=scheme)
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth") <= page.evaluate(f"{root}.clientWidth")
    assert page.locator("main > section:visible").count() == (1 if hash_ else 2)
    assert page.locator("img").count() == 0
    assert findings(page) == []
    tab.leave()


def test_rows_sort_by_click_and_absent_figures_are_last(tab: Tab, runs: tuple[Path, Any]) -> None:
    page = at(tab, runs[0])
    assert listed(page) == ["bare", "infinite", STRANGE, "one"]
    page.get_by_role("button", name="when").click()
    assert listed(page) == ["one", STRANGE, "infinite", "bare"]
    page.get_by_role("button", name="kept at").click()
    by_rate = listed(page)
    assert by_rate[-1] == "bare"
    kept = {name: max(row["low_rps"] or 0 for row in report["capacity"]) for name, report in runs[1].items()}
    assert [kept[name] for name in by_rate[:-1]] == sorted(kept.values())
    tab.leave()


def test_filters_work_together(tab: Tab, runs: tuple[Path, Any]) -> None:
    page = at(tab, runs[0])
    page.get_by_label("Filter by scenario").select_option("custom_cnn")
    assert listed(page) == [STRANGE, "one"]
    page.get_by_label("Filter by text").fill("RAMP it's")
    assert listed(page) == [STRANGE]
    assert page.locator(".count").inner_text() == "1 of 4 shown"
    page.get_by_label("Filter by scenario").select_option("")
    page.get_by_label("Filter by text").fill("")
    page.get_by_label("Filter by verdict").select_option("no report yet")
    assert listed(page) == ["bare"]
    page.get_by_label("Filter by verdict").select_option("")
    page.get_by_label("Filter by endpoint").select_option("m/b")
    assert listed(page) == ["infinite", STRANGE, "one"]
    tab.leave()


def test_two_runs_are_chosen_by_clicks_and_compared(tab: Tab, runs: tuple[Path, Any]) -> None:
    path, reports = runs
    page = at(tab, path)
    button = page.locator(".go")
    assert button.is_disabled()
    for name in ("infinite", STRANGE, "one"):  # the third takes the place of the first
        page.get_by_label(f"Compare {name}", exact=True).check()
    assert not page.get_by_label("Compare infinite").is_checked()
    button.click()
    page.wait_for_selector("#compare h2")
    assert page.url.endswith(fragment("one", STRANGE).replace("%27", "'"))  # the older one is the base
    cards = page.locator(".card").all_inner_texts()
    for text, side, name in zip(cards, "AB", ("one", STRANGE), strict=True):
        assert text.startswith(f"{side}: {name}")
        assert reports[name]["conclusion"] in text
    facts = page.locator(".differences tbody tr").all_inner_texts()
    assert facts == ["setting seed\t0\t1", "version torch\t2.0\t2.1"]
    command = shlex.split(page.locator("#compare pre").inner_text())
    assert command == ["tailrate", "compare", f"{path.parent}/one", f"{path.parent}/{STRANGE}"]
    assert page.evaluate("document.activeElement.textContent") == "Two runs side by side"
    page.get_by_role("link", name="← all runs").click()
    page.wait_for_selector("#runs")
    assert page.locator("#compare").is_hidden()
    tab.leave()


def test_the_figures_compared_are_those_of_the_reports(tab: Tab, runs: tuple[Path, Any]) -> None:
    path, reports = runs
    page = at(tab, path, fragment("one", STRANGE))
    rows = [row.split("\t") for row in page.locator(".figures tbody tr").all_inner_texts()]
    pairs = list(zip(*(reports[name]["steps"] for name in ("one", STRANGE)), strict=True))
    assert len(rows) == len(pairs) == 6
    said = set()
    for row, (a, b) in zip(rows, pairs, strict=True):
        assert row[0].startswith(a["endpoint"])
        assert row[1:3] == [words.ms(step["p50_ms"]) for step in (a, b)]
        assert row[3] == f"{words.significant(b['p50_ms'] / a['p50_ms'])}×"
        for cell, step in zip(row[4:6], (a, b), strict=True):
            known = step["p99_low_ms"] is not None
            between = f" ({words.interval(step['p99_low_ms'], step['p99_high_ms'])})" if known else ""
            assert cell == words.ms(step["p99_ms"]) + between
        assert row[8:10] == [words.rate(step["achieved_rps"]) for step in (a, b)]
        assert row[10:12] == [words.significant(step["joules_per_request"]) for step in (a, b)]
        if a["p99_low_ms"] is not None and b["p99_low_ms"] is not None and "overloaded" not in row[7]:
            highs = [math.inf if step["p99_high_ms"] is None else step["p99_high_ms"] for step in (a, b)]
            apart = a["p99_low_ms"] > highs[1] or b["p99_low_ms"] > highs[0]
            assert row[7] == ("intervals apart" if apart else "intervals overlap")
        said.add(row[7])
    assert len(said) > 1
    tab.leave()


def test_what_is_infinite_or_in_one_run_alone_is_said(tab: Tab, runs: tuple[Path, Any]) -> None:
    page = at(tab, runs[0], fragment("infinite", "one"))
    rows = {row.split("\t")[0]: row.split("\t") for row in page.locator(".figures tbody tr").all_inner_texts()}
    assert list(rows) == ["m/b at 50/s", "m/b at 90/s"]
    assert rows["m/b at 90/s"][4].startswith("∞")
    assert rows["m/b at 90/s"][6] == "–"
    text = page.locator("#compare").inner_text()
    assert f"Only in A: m/{EVIL} at 20/s." in text
    assert "Only in B: m/a at 50/s, m/a at 90/s, m/a at 150/s, m/b at 150/s." in text
    tab.leave()


def test_legend_and_arrow_keys_of_the_overlaid_chart(tab: Tab, runs: tuple[Path, Any]) -> None:
    path, reports = runs
    page = at(tab, path, fragment("one", STRANGE), width=1200, height=1000)

    def drawn(series: int) -> int:
        marks = f"[...document.querySelectorAll('#overlaid [data-series=\"{series}\"]')]"
        return int(page.evaluate(f"{marks}.filter(mark => getComputedStyle(mark).display !== 'none').length"))

    buttons = page.locator("#overlaid .legend button")
    assert buttons.all_inner_texts() == ["A m/a", "A m/b", "B m/a", "B m/b"]
    assert all(drawn(series) >= 4 for series in range(4))  # a line and three points
    probe, tip = page.locator("#overlaid .probe"), page.locator(".tip")
    probe.focus()
    page.keyboard.press("Home")
    values = dict(row.split("\t") for row in tip.locator("table").inner_text().splitlines())
    first = reports["one"]["steps"][0]
    assert values["A m/a"].startswith(f"P99 {words.ms(first['p99_ms'])}")
    assert values["A m/a"].endswith(f"P50 {words.ms(first['p50_ms'])}")
    buttons.nth(0).click()
    assert (drawn(0), drawn(1) > 0) == (0, True)
    assert buttons.nth(0).get_attribute("aria-pressed") == "false"
    probe.hover()
    tip.filter(has_text="A m/b", has_not_text="A m/a").wait_for()
    tab.leave()


def test_a_point_of_a_trend_shows_its_values_and_leads_to_its_report(
    tab: Tab,
    runs: tuple[Path, Any],
) -> None:
    path, reports = runs
    beyond = (path.parent / "one" / "report.html").as_uri()
    page = tab.open(path.as_uri(), beyond)
    chart = page.locator(".trend", has=page.get_by_text("m/a", exact=True))
    points = chart.locator("a")
    assert points.count() == 2
    points.nth(0).focus()
    limit = next(row for row in reports["one"]["capacity"] if row["endpoint"] == "m/a")
    tip = page.locator(".tip").inner_text()
    assert f"kept at {words.rate(limit['low_rps'])}, missed at {words.rate(limit['high_rps'])}" in tip
    page.keyboard.press("Enter")
    page.wait_for_url(beyond)
    tab.leave()
