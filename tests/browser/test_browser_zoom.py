"""The time line in chromium: its lanes zoom together by drag, buttons and keys, and a hover stays true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM, Tab, findings, tabbed
from folders import Waveform
from playwright.sync_api import Locator, Page
from test_report_page import run_of, shown, two_variants

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"),
]
SECONDS = 40


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with tabbed() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = run_of(tmp_path_factory.mktemp("zoom") / "run", two_variants([20, 40]), devices=[Waveform()])
    shown(run)
    return run.folder / "report.html"


@pytest.fixture
def page(tab: Tab, report: Path) -> Iterator[Page]:
    found = tab.open(report.as_uri(), height=1600)
    found.locator("#timeline .probe").scroll_into_view_if_needed()
    yield found
    tab.leave()


def shown_s(page: Page) -> tuple[float, float]:
    """The part of the time that every lane shows, from where its drawing was moved to."""
    places = page.evaluate("""() => [...document.querySelectorAll("#timeline svg.moving")]
        .map(part => [parseFloat(part.getAttribute("x")), parseFloat(part.getAttribute("width"))])""")
    assert len(places) >= 5
    assert all(place == places[0] for place in places)
    x, width = places[0]
    return -x / width * SECONDS, (100 - x) / width * SECONDS


def ticks(page: Page) -> list[str]:
    return page.locator("#timeline .ticks text").all_text_contents()


def drag(page: Page, start: float, end: float) -> None:
    box = page.locator("#timeline .probe").bounding_box()
    assert box is not None
    y = box["y"] + 120
    page.mouse.move(box["x"] + start * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], y, steps=4)
    assert page.locator("#timeline .brush").is_visible()
    page.mouse.up()


def test_dragging_shows_a_part_in_all_lanes_and_a_double_click_all_of_it(page: Page) -> None:
    assert shown_s(page) == (0, SECONDS)
    whole = ticks(page)
    assert whole[0] == "0:00"
    drag(page, 0.25, 0.5)
    assert shown_s(page) == pytest.approx((10, 20), abs=0.2)
    assert not page.locator("#timeline .brush").is_visible()
    assert page.locator("#timeline .range").inner_text() in ("0:10–0:20", "0:09–0:19", "0:10–0:19", "0:09–0:20")
    assert {"0:11", "0:15", "0:19"} <= set(ticks(page))
    drag(page, 0.5, 0.8)
    assert shown_s(page) == pytest.approx((14.5, 18.5), abs=0.2)  # no closer than four slices
    box = page.locator("#timeline .probe").bounding_box()
    assert box is not None
    page.mouse.dblclick(box["x"] + 300, box["y"] + 100)
    assert shown_s(page) == (0, SECONDS)
    assert ticks(page) == whole


def test_buttons_and_keys_zoom(page: Page) -> None:
    def button(name: str) -> Locator:
        return page.locator(f"#timeline [data-zoom={name}]")

    assert [button(name).is_disabled() for name in ("in", "out", "all")] == [False, True, True]
    button("in").click()
    assert shown_s(page) == pytest.approx((10, 30))
    button("in").press("Enter")
    assert shown_s(page) == pytest.approx((15, 25))
    button("out").click()
    assert shown_s(page) == pytest.approx((10, 30))
    page.locator("#timeline .probe").focus()
    page.keyboard.press(">")
    assert shown_s(page) == pytest.approx((20, 40))
    page.keyboard.press(">")  # no further than the end
    assert shown_s(page) == pytest.approx((20, 40))
    page.keyboard.press("<")
    page.keyboard.press("+")
    assert shown_s(page) == pytest.approx((15, 25))
    page.keyboard.press("0")
    assert shown_s(page) == (0, SECONDS)


def test_a_hover_reads_the_slice_under_the_pointer_at_every_zoom(page: Page) -> None:
    places = json.loads(page.locator("#timeline script").inner_text())["places"]
    box = page.locator("#timeline .probe").bounding_box()
    assert box is not None

    def read(share: float) -> str:
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 60)
        return str(page.locator(".tip b").inner_text())

    def title(second: float) -> Any:
        return min(places, key=lambda place: abs(place[0] - 100 * second / SECONDS))[1]

    assert read(0.2614) == title(0.2614 * SECONDS)
    drag(page, 0.25, 0.5)
    start, end = shown_s(page)
    for share in (0.02, 0.33, 0.97):
        second = start + share * (end - start)
        assert read(share) == title(second)
        cross = page.evaluate("document.querySelector('#timeline .cross').style.left")
        middle = int(second) + 0.5
        assert float(cross.removesuffix("%")) == pytest.approx(100 * (middle - start) / (end - start), abs=6)


def test_nothing_sticks_out_of_a_zoomed_lane(page: Page) -> None:
    drag(page, 0.4, 0.6)
    clips = page.evaluate(
        "[...document.querySelectorAll('#timeline svg.cut')].map(cut => getComputedStyle(cut).overflow)"
    )
    assert set(clips) == {"hidden"}
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth") <= page.evaluate(f"{root}.clientWidth")


def test_the_legend_switches_the_heat_of_a_variant(page: Page) -> None:
    heat = page.locator("#timeline rect.heat[data-series='1']")
    assert heat.count() == 1
    assert "off" not in str(heat.get_attribute("class"))
    page.locator("#timeline [data-switch='1']").click()
    assert "off" in str(heat.get_attribute("class")).split()


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1600, "dark")])
def test_the_page_can_be_read_without_eyes_or_mouse(tab: Tab, report: Path, width: int, scheme: Any) -> None:
    page = tab.open(report.as_uri(), width=width, height=900, scheme=scheme)
    for folded in page.locator("details").all():
        folded.evaluate("found => { found.open = true }")
    assert findings(page) == []
    tab.leave()
