"""`report.html` in chromium: no error, no request, no overflow; legend, hover, arrow keys, sorting and theme work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM, Tab, tabbed
from folders import Load
from test_report_page import EVIL, run_of, shown, two_variants

from tailrate.analysis.text import words

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with tabbed() as found:
        yield found


@pytest.fixture(scope="module")
def normal(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    run = run_of(tmp_path_factory.mktemp("runs") / "normal")
    return shown(run)[0], run.folder / "report.html"


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1600, "dark")])
def test_opens_without_errors_requests_or_overflow(
    tab: Tab, normal: tuple[dict[str, Any], Path], width: int, scheme: Any
) -> None:
    page = tab.open(normal[1].as_uri(), width=width, height=900, scheme=scheme)
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth") <= page.evaluate(f"{root}.clientWidth")
    # text that overflows to the right of its figure would be cut off
    ends = page.evaluate("[...document.querySelectorAll('.plot text')].map(t => t.getBoundingClientRect().right)")
    assert max(ends) <= width
    assert page.locator("main section").count() == 13
    tab.leave()


@pytest.mark.parametrize(
    "options",
    [
        {"loads": [Load("bert/eager", 20)], "devices": [], "foreign": True},
        {"stopped_s": 0.0, "status": "aborted"},
        {"loads": two_variants([20], failed=1.0)},
        {"loads": [Load(f"m/{EVIL}", 20), Load("a-model-with-a-rather-long-name/and-a-variant-with-one", 20)]},
    ],
    ids=["one endpoint", "no arrivals", "all failed", "hostile"],
)
def test_odd_runs_open_cleanly(tab: Tab, tmp_path: Path, options: dict[str, Any]) -> None:
    run = run_of(tmp_path / "run", **options)
    shown(run)
    page = tab.open((run.folder / "report.html").as_uri(), width=390, height=800)
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth") <= page.evaluate(f"{root}.clientWidth")
    assert page.locator("img").count() == 0
    tab.leave()


def test_the_legend_switches_a_variant_everywhere(tab: Tab, normal: tuple[dict[str, Any], Path]) -> None:
    page = tab.open(normal[1].as_uri())

    def drawn(series: int) -> int:
        """Marks of the series that are not switched off; a vertical line has no area, so `:visible` cannot tell."""
        marks = f"[...document.querySelectorAll('#hockey [data-series=\"{series}\"]')]"
        return int(page.evaluate(f"{marks}.filter(mark => getComputedStyle(mark).display !== 'none').length"))

    eager, compiled = drawn(0), drawn(1)
    assert eager > 0
    assert compiled > 0
    button = page.locator("#hockey [data-switch='0']")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert (drawn(0), drawn(1)) == (0, compiled)
    page.locator("#hockey .probe").hover()
    page.locator(".tip", has_text="compiled", has_not_text="eager").wait_for()
    page.locator("#timeline [data-switch='0']").click()  # any figure's button brings it back
    assert (drawn(0), drawn(1)) == (eager, compiled)
    tab.leave()


def test_hover_and_arrow_keys_show_the_values_of_the_report(tab: Tab, normal: tuple[dict[str, Any], Path]) -> None:
    report, path = normal
    page = tab.open(path.as_uri(), width=1280, height=900)
    tip, probe = page.locator(".tip"), page.locator("#hockey .probe")
    probe.scroll_into_view_if_needed()
    box = probe.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 60)  # the highest rate is at the right end
    assert tip.is_visible()
    values = {row.split("\t")[0]: row.split("\t")[1] for row in tip.locator("table").inner_text().splitlines()}
    last = report["steps"][-1]
    assert values["compiled P50"] == words.ms(last["p50_ms"])
    assert values["compiled achieved"] == words.rate(last["achieved_rps"])
    page.mouse.move(0, 0)
    assert not tip.is_visible()
    probe.focus()
    page.keyboard.press("Home")
    assert f"eager P50 {words.ms(report['steps'][0]['p50_ms'])}" in str(probe.get_attribute("aria-valuetext"))
    page.keyboard.press("ArrowRight")
    assert tip.is_visible()
    assert f"eager P50 {words.ms(report['steps'][2]['p50_ms'])}" in str(probe.get_attribute("aria-valuetext"))
    assert probe.get_attribute("aria-valuenow") == "1"
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    tab.leave()


def test_the_table_sorts_by_click_and_by_key(tab: Tab, normal: tuple[dict[str, Any], Path]) -> None:
    report, path = normal
    page = tab.open(path.as_uri())
    head = page.locator(".steps.sortable thead tr").nth(1).locator("th")
    column = head.all_inner_texts().index("P50")
    button = head.nth(column).locator("button")

    def order() -> list[str]:
        return page.locator(f".steps.sortable tbody tr > :nth-child({column + 1})").all_inner_texts()

    expected = [words.significant(value) for value in sorted(step["p50_ms"] for step in report["steps"])]
    button.click()
    assert order() == expected
    assert head.nth(column).get_attribute("aria-sort") == "ascending"
    button.press("Enter")
    assert order() == expected[::-1]
    assert page.locator("[aria-sort]").count() == 1
    button.focus()
    assert "half of all arrivals" in page.locator(".tip").inner_text().lower()
    tab.leave()


def test_any_table_of_more_than_a_few_rows_sorts_by_its_numbers(tab: Tab, normal: tuple[dict[str, Any], Path]) -> None:
    report, path = normal
    page = tab.open(path.as_uri())
    table = page.locator("#trust table.sortable")
    heads = table.locator("thead th")
    column = heads.all_inner_texts().index("scheduled")
    heads.nth(column).locator("button").click()
    shown = table.locator(f"tbody tr > :nth-child({column + 1})").all_inner_texts()
    assert shown == [words.count(n) for n in sorted(row["scheduled"] for row in report["ledger"])]
    assert page.locator("#capacity table.sortable").count() == 0  # it has two rows
    tab.leave()


@pytest.mark.parametrize("clipboard", ["as it is", "refused", "absent"])
def test_a_table_is_copied_as_text_with_tabs(tab: Tab, normal: tuple[dict[str, Any], Path], clipboard: str) -> None:
    report, path = normal
    page = tab.open(path.as_uri())
    page.evaluate("navigator.clipboard.writeText('nothing yet')")
    if clipboard == "refused":
        page.evaluate("navigator.clipboard.writeText = () => Promise.reject(new Error('no')), 0")
    elif clipboard == "absent":
        page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined}), 0")
    button = page.locator("#steps .copy")
    button.click()
    page.locator("#steps .copying [role=status]", has_text=f"{len(report['steps'])} rows copied").wait_for()
    page.evaluate("document.querySelector('.top').append(document.createElement('textarea'))")
    page.locator(".top textarea").press("ControlOrMeta+v")
    groups, heads, *rows = page.locator(".top textarea").input_value().removesuffix("\n").split("\n")
    cells = [row.split("\t") for row in rows]
    column = heads.split("\t").index("P50")
    assert [row[column] for row in cells] == [words.significant(step["p50_ms"]) for step in report["steps"]]
    assert len({len(row) for row in [groups.split("\t"), heads.split("\t"), *cells]}) == 1
    assert page.locator("textarea").count() == 1  # the one for copying is gone
    tab.leave()


def test_a_rate_is_chosen_by_click_and_by_key(tab: Tab, normal: tuple[dict[str, Any], Path]) -> None:
    page = tab.open(normal[1].as_uri())
    buttons, figures = page.locator("#percentiles [data-choose]"), page.locator("#percentiles figure:visible")
    assert buttons.all_inner_texts() == ["20/s", "40/s", "60/s"]
    assert figures.count() == 1
    buttons.nth(0).click()
    assert "at 20/s" in figures.inner_text()
    buttons.nth(0).press("ArrowRight")
    assert "at 40/s" in figures.inner_text()
    assert page.locator("#percentiles [aria-pressed=true][data-choose]").inner_text() == "40/s"
    tab.leave()


def test_without_script_the_page_shows_one_rate_and_no_button(tab: Tab, normal: tuple[dict[str, Any], Path]) -> None:
    page = tab.open(normal[1].as_uri(), script=False)
    assert page.locator("#percentiles figure:visible").count() == 1
    assert page.locator(".copy, [data-choose]:visible").count() == 0
    tab.leave()


def test_the_theme_follows_the_system_and_the_button(tab: Tab, normal: tuple[dict[str, Any], Path]) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        page = tab.open(normal[1].as_uri(), scheme=scheme)
        background = "getComputedStyle(document.body).backgroundColor"
        colours[scheme] = page.evaluate(background)
        page.locator(".theme").click()
        colours[f"{scheme}, switched"] = page.evaluate(background)
        tab.leave()
    assert colours["light"] != colours["dark"]
    assert colours["light, switched"] == colours["dark"]
    assert colours["dark, switched"] == colours["light"]
