"""The live page in chromium: of a real run from its start to its report, and of states that are hard to bring about."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from chromium import CHROMIUM, Tab, findings, tabbed
from endpoint import endpoint
from playwright.sync_api import Page, Route, expect
from test_board import at, even, samples, step
from test_report_page import EVIL
from test_step_stats import START, batch
from test_web import locust

from tailrate.analysis.records.objective import Slo
from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.live import web
from tailrate.loadtest.engine.live.board import Board

pytestmark = [
    pytest.mark.browser,
    pytest.mark.live,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"),
]

HOME = "http://tailrate.test/tailrate"
FIGURES = (
    "[...document.querySelectorAll('#variants tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
)
SERIES = (
    "[...document.querySelectorAll('.plot path')].map(path => `${path.getAttribute('class')} ${path.dataset.series}`)"
)


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with tabbed() as found:
        yield found


class Server:
    """Answers as the routes do, for a board that a test holds; `up` is whether anybody answers."""

    def __init__(self, board: Board, now_s: float) -> None:
        self.board, self.now_s, self.up = board, now_s, True
        self.report: dict[str, str] = {"state": "none"}
        self.posted = 0
        self.page, self.policy = web._page()

    def answer(self, route: Route) -> None:
        url = urlsplit(route.request.url)
        if not self.up:
            route.abort("connectionrefused")
        elif url.path == "/tailrate/now":
            cursor = parse_qs(url.query).get("after", [""])[0]
            text = self.board.answer(cursor, at(self.now_s), report=self.report)
            route.fulfill(body=text, content_type="application/json")
        elif url.path == "/tailrate/report" and route.request.method == "POST":
            self.posted += 1
            route.fulfill(status=202)
        else:
            headers = {"Content-Security-Policy": self.policy, "Content-Type": "text/html; charset=utf-8"}
            route.fulfill(body=self.page, headers=headers)


def opened(tab: Tab, url: str, server: Server | None = None, **options: Any) -> Page:
    page = tab.open(url, answer=server.answer if server else None, **options)
    page.locator("#status:not(:text-is('…'))").wait_for()
    return page


def fits(page: Page) -> bool:
    root = "document.documentElement"
    return bool(page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth"))


def running(names: tuple[str, ...] = ("m/eager", "m/compiled")) -> Board:
    """Eight seconds of two steps at once, a GPU and a CPU, failures, drops, and a lost load process."""
    board = Board(Base(0))
    facts = {"run": "it", "folder": "/runs/it", "name": names[0], "mode": "mixed", "url": "http://x", "slo_ms": [50.0]}
    board.open(facts, names, [Slo.parse("p99<50ms")], START)
    board.plan(4, [20.3, 20.3], 0.0, at(0))
    due = even(seconds=7.5)
    for index, name in enumerate(names):
        live = board.begin(replace(step(index, name, seconds=20.0), block=0), at(0.3), even(seconds=20.0))
        statuses = np.array(["200"] * len(due), dtype=object)
        statuses[::50], statuses[7::60] = "500", "dropped"
        live.see(batch(due + 0.3, 10 + 5 * index + due, statuses.tolist()))
        told = {"event": "step_start", "time_ns": at(0.3), "step": index, "of": 4, "endpoint": name}
        board.event(told | {"rate": 100.0, "seconds": 20.0})
    for second in range(9):
        board.samples(samples(("h", "GPU-1", 0, 60.0 + second, 2**30), ("h", "cpu", 0, 10.0, None)), at(second))
    board.event({"event": "worker_lost", "time_ns": at(4), "worker": 1, "steps": [0]})
    return board


def many() -> Board:
    return running(tuple(f"a-model-with-a-rather-long-name/variant-{n}-of-many" for n in range(9)))


def hostile() -> Board:
    board = running((f"m/{EVIL}", "m/b"))
    board.event({"event": "warning", "time_ns": at(5), "sentence": EVIL})
    board.event({"event": "step_end", "time_ns": at(7), "step": 9, "endpoint": EVIL, "rate": 5.0, "achieved_rps": 5.0,
                 "p50_ms": None, "p99_ms": None, "late_p99_ms": None, "errors": 5})  # fmt: skip
    live = board.begin(replace(step(9, "m/b"), block=1), at(8), even())
    live.see(batch([8.1], [1.0], [EVIL]))
    board.samples(samples((EVIL, EVIL, 0, 1.0, 1)), at(8))
    board.facts |= {"name": EVIL, "url": EVIL}
    return board


def looped() -> Board:
    board = Board(Base(0))
    board.open({"name": "m", "mode": "closed", "url": "http://x"}, ["m/eager"], [], START)
    live = board.begin(step(0, "m/eager", 0.0, concurrency=8), at(0), np.empty(0))
    live.see(batch(np.arange(0, 7, 0.1), np.full(70, 80.0)))
    return board


def broken() -> Board:
    board = Board(Base(0))
    board.fail(f"nothing answers at {EVIL}")
    return board


def soaking() -> Board:
    """In its third chapter, with a fault that is over and one that is under way."""
    board = running()
    board.facts |= {"mode": "soak", "total_s": 28800.0}
    board.plan(6, [10.3, 10.3, 28000.0], 2.0, at(0.0))
    board.event({"event": "disk", "time_ns": at(1), "used_bytes": 12_345_678, "free_bytes": 43_000_000_000})
    known = {"event": "fault", "fault": "cpu_taken", "target": "4", "id": 0}
    board.event(known | {"time_ns": at(3), "phase": "begin", "sentence": "4 busy processes"})
    board.event(known | {"time_ns": at(5), "phase": "end", "sentence": "it is over"})
    return board


BOARDS = {
    "soak": soaking,
    "waiting": lambda: Board(Base(0)),
    "running": running,
    "many": many,
    "hostile": hostile,
    "closed loop": looped,
    "failed": broken,
}


@pytest.mark.parametrize("name", BOARDS)
def test_every_state_is_clean_at_any_width_light_and_dark(tab: Tab, name: str) -> None:
    schemes = ("light", "dark") if list(BOARDS).index(name) % 2 else ("dark", "light")
    for width, scheme in zip((390, 1600), schemes, strict=True):
        page = opened(tab, HOME, Server(BOARDS[name](), 8.9), width=width, height=900, scheme=scheme)
        assert fits(page)
        assert page.locator("img").count() == 0
        ends = page.evaluate(
            "[...document.querySelectorAll('.plot text')].map(text => text.getBoundingClientRect().right)"
        )
        assert max(ends, default=0) <= width
        if width == 1600:  # it takes long: every second state in the dark
            assert findings(page) == []
        tab.leave()


def test_what_is_hostile_is_text(tab: Tab) -> None:
    page = opened(tab, HOME, Server(hostile(), 8.9))
    for place in ("#name", "#past-doubts", "#variants", "#devices", "#steps"):
        assert EVIL in str(page.locator(place).text_content())
    tab.leave()


def test_the_page_shows_the_figures_of_the_board(tab: Tab) -> None:
    server = Server(running(), 8.9)
    page = opened(tab, HOME, server, width=1280, height=900)
    state = json.loads(server.board.answer("", at(8.9)))["state"]
    assert page.locator("#headline").inner_text() == "Step 1 of 4, m/eager at 100/s; step 2 of 4, m/compiled at 100/s"
    assert page.locator("#subline").inner_text() == "11 s left in this step, 32 s left in all"
    assert page.locator("#status").inner_text() == "● running"
    for cells, row in zip(page.evaluate(FIGURES), state["endpoints"], strict=True):
        assert cells[0] == row["endpoint"]
        assert cells[2] == "100/s"
        assert [float(cells[k].rstrip("/s")) for k in (3, 4)] == pytest.approx(
            [row["offered_rps"], row["achieved_rps"]], rel=0.005
        )
        assert float(cells[5].removesuffix("\u00a0ms")) == pytest.approx(row["p50_ms"], rel=0.005)
        assert (cells[6], row["p99_ms"]) == ("∞", None)
        assert cells[10] == str(row["dropped"])
        assert cells[11] == f"{row['failed']['500']} (500: {row['failed']['500']})"
    assert "a load process was lost" in page.locator("#past-doubts").inner_text()
    assert "arrivals were dropped" in page.locator("#now-doubts").inner_text()
    assert "GPU 0" in page.locator("#devices").inner_text()
    # both variants in three lanes, two of them with two lines each; failures and lateness; two lanes of devices
    series = page.evaluate(SERIES)
    assert len(series) == 2 * (2 + 2 + 1) + 2 + 2 + 1
    assert series.count("full s0 m/eager") == series.count("full s1 m/compiled") == 3
    assert series.count("dots s1 m/compiled") == 2
    tab.leave()


def test_a_soak_shows_its_chapter_its_disk_and_its_faults(tab: Tab) -> None:
    page = opened(tab, HOME, Server(soaking(), 8.9), width=1280, height=900)
    assert page.locator("#headline").inner_text() == "Chapter 1 of 3, m/eager at 100/s, m/compiled at 100/s"
    subline = page.locator("#subline").inner_text()
    assert "left in this chapter, 7 h 46 min left of 8 h 0 min, 12.3 MB on disk, 43 GB free" in subline
    told = page.locator("#past-doubts").inner_text()
    assert "cpu_taken 4 is injected: 4 busy processes" in told
    assert "cpu_taken 4 is over" in told
    tab.leave()


def test_pointer_and_arrow_keys_show_the_values_of_a_second(tab: Tab) -> None:
    server = Server(running(), 8.9)
    page = opened(tab, HOME, server, width=1280, height=900)
    point = json.loads(server.board.answer("", at(8.9)))["points"][3]
    probe, tip = page.locator(".probe"), page.locator(".tip")
    probe.focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    said = str(probe.get_attribute("aria-valuetext"))
    assert said.startswith("0:03 to 0:04: m/eager")
    assert f"achieved {point['e']['0'][1]}/s" in said
    assert "GPU 0 64 %, 1 GiB" in said
    assert probe.get_attribute("aria-valuenow") == "3"
    assert tip.is_visible()
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    box = probe.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 60)
    tip.filter(has_text="m/compiled").wait_for()
    tab.leave()


def test_a_server_that_is_gone_is_said_and_found_again(tab: Tab) -> None:
    server = Server(running(), 7.9)
    page = opened(tab, HOME, server)
    server.up = False
    expect(page.locator("#connection")).to_contain_text("No connection to the load generator since")
    assert page.locator("#variants tbody tr").count() == 2  # what was known stays
    before = page.evaluate("document.querySelector('path.full').getAttribute('d').split(/[ML]/).length")
    server.up, server.now_s = True, 9.9
    expect(page.locator("#connection")).to_be_hidden()
    after = page.evaluate("document.querySelector('path.full').getAttribute('d').split(/[ML]/).length")
    assert after == before + 1
    refusals = [each for each in tab.wrong if "ERR_CONNECTION_REFUSED" in each]  # chromium notes each, maybe late
    assert refusals
    tab.wrong = [each for each in tab.wrong if each not in refusals]
    tab.leave()


def test_another_run_takes_the_place_of_the_last_one(tab: Tab) -> None:
    server = Server(running(), 8.9)
    page = opened(tab, HOME, server)
    server.board = Board(Base(0))
    expect(page.locator("#headline")).to_have_text("No test has been started.")
    assert page.locator("#time").is_hidden()
    assert page.locator("#variants").is_hidden()
    tab.leave()


def test_the_report_is_made_at_a_press_and_linked(tab: Tab) -> None:
    board = running()
    board.close("complete", at(9))
    server = Server(board, 20.0)
    server.report = {"state": "absent", "command": "tailrate report /runs/it", "said": ""}
    page = opened(tab, HOME, server)
    assert page.locator("#making code").inner_text() == "tailrate report /runs/it"
    page.locator("#make").click()
    server.report |= {"state": "making", "said": "reading"}
    expect(page.locator("#making")).to_have_text("Making the report … reading")
    assert server.posted == 1
    server.report |= {"state": "failed", "said": "no such run"}
    expect(page.locator("#making")).to_contain_text("There is no report: no such run")
    server.report |= {"state": "ready"}
    expect(page.locator("#report")).to_be_visible()
    assert page.locator("#make").is_hidden()
    tab.leave()


def test_the_theme_follows_the_system_and_the_button(tab: Tab) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        page = opened(tab, HOME, Server(running(), 8.9), scheme=scheme)
        background = "getComputedStyle(document.body).backgroundColor"
        colours[scheme] = page.evaluate(background)
        page.locator("button[aria-label*='light']").click()
        colours[f"{scheme}, switched"] = page.evaluate(background)
        tab.leave()
    assert colours["light"] == colours["dark, switched"] != colours["dark"] == colours["light, switched"]


def test_a_real_run_from_its_start_to_its_report(tab: Tab, tmp_path: Path) -> None:
    with endpoint(fail_every=40) as url, locust(tmp_path, "--rates=50,100", "--slo=p50<90ms") as test:
        page = opened(tab, f"{test.page}/tailrate", width=1200, height=900)
        expect(page.locator("#headline")).to_have_text("No test has been started.")
        assert page.get_by_role("link", name="Start or stop").get_attribute("href") == "./"
        test.get("/swarm", host=url)
        expect(page.locator("#headline")).to_contain_text("Step 2 of 4, null/compiled at 50/s", timeout=20_000)
        page.reload()  # opened late, it shows all of it
        expect(page.locator("#status")).to_have_text("✓ complete", timeout=30_000)
        found = test.over()
        for cells, row in zip(page.evaluate(FIGURES), found["state"]["endpoints"], strict=True):
            assert cells[0] == row["endpoint"]
            assert float(cells[4].removesuffix("/s")) == pytest.approx(row["achieved_rps"], rel=0.005)
            assert float(cells[5].removesuffix("\u00a0ms")) == pytest.approx(row["p50_ms"], rel=0.005)
        assert {"full s0 null/eager", "full s1 null/compiled"} <= set(page.evaluate(SERIES))
        assert page.locator("#steps tbody tr").count() == 4
        assert findings(page) == []
        page.locator("#make").click()
        expect(page.locator("#report")).to_be_visible(timeout=60_000)
        page.locator("#report").click()
        page.wait_for_url("**/tailrate/report")
        assert "Load test of null" in page.content()
        tab.leave()
