"""`plan.html` in chromium: its simulator has the latencies of `simulator.simulate`, its controls what a plan says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
from chromium import CHROMIUM, Tab, findings, tabbed
from planned import COMMAND, compiled, eager, fleet_of, planned, service
from plans import draw, sizing, traffic
from playwright.sync_api import Page
from test_report_page import EVIL

from tailrate.analysis.pages.plan import page as plan_page
from tailrate.analysis.planning.plan.prices import Prices
from tailrate.analysis.planning.simulator.fleet import Waking
from tailrate.analysis.planning.simulator.simulate import Fleet, Outage, Routing, Rule, simulate
from tailrate.analysis.text import words

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"),
]

SIMULATOR = (files("tailrate.analysis.pages.plan") / "script" / "simulator.js").read_text(encoding="utf-8")
ROUTINGS = (Routing.TWO_CHOICES, Routing.LEAST, Routing.ROUND_ROBIN, Routing.RANDOM)
"""Those that endpoints have."""
LOADS = (0.15, 0.7, 0.98)
OTHER = "#rate=7000&replicas=6&variant=bert/eager"
PATIENCE_MS = 120_000
"""The machine may be busy with other things; nothing here is about time."""


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with tabbed() as found:
        yield found


# ---- the simulator


@pytest.fixture(scope="module")
def bench(tab: Tab) -> Iterator[Page]:
    page = tab.page.context.new_page()
    page.add_script_tag(content=SIMULATOR)
    yield page
    page.close()


def in_page(bench: Page, arrivals_s: Any, fleet: Fleet, seed: int) -> dict[str, Any]:
    """As text both ways, which takes a tenth of what playwright's own way with thousands of numbers does."""
    simulated = """(text) => {
        const [arrivals, fleet, seed] = JSON.parse(text);
        const found = simulator().simulate(Float64Array.from(arrivals), fleet, seed);
        return { ...found, latency: found.latency.join(" "), batches: [...found.batches] };
    }"""
    found: dict[str, Any] = bench.evaluate(simulated, json.dumps([arrivals_s.tolist(), fleet.as_json(), seed]))
    return found | {"latency": np.array(found["latency"].split(), float)}


def same(bench: Page, arrivals_s: Any, fleet: Fleet, seed: int = 3) -> dict[str, Any]:
    """Request by request; what the page found."""
    expected, found = simulate(arrivals_s, fleet, seed), in_page(bench, arrivals_s, fleet, seed)
    np.testing.assert_allclose(found["latency"], expected.latency_s, rtol=0, atol=1e-9)
    assert found["batches"][: len(expected.batches)] == expected.batches.tolist()
    assert (found["refused"], found["lost"]) == (expected.refused, expected.lost)
    if not fleet.outages:
        assert found["utilisation"] == pytest.approx(expected.utilisation, rel=1e-9)
    return found


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("rule", list(Rule))
def test_latencies_are_those_of_the_simulator(bench: Page, rule: Rule, routing: Routing) -> None:
    usual = service(4.0, 0.7)
    sleepy = replace(
        usual,
        waking=Waking(0.002, 0.05, 0.003),
        after_s=0.2 * usual.mean_s,
        telling_s=0.1 * usual.mean_s,
        wake_s=0.0009,
    )
    turn = list(Rule).index(rule) + ROUTINGS.index(routing)  # so each load meets each of the others
    for n, replicas in enumerate((1, 2, 7)):
        fleet = fleet_of(sleepy, replicas, rule=rule, routing=routing, queue=0)
        same(bench, draw(3000, 5, 1.0) / (LOADS[(turn + n) % 3] * fleet.limit_rps), fleet)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 2])
def test_any_seed_draws_the_same(bench: Page, seed: int) -> None:
    fleet = fleet_of(service(4.0, 0.7), 5, routing=Routing.TWO_CHOICES)
    same(bench, draw(2000, 1, 0.5) / (0.8 * fleet.limit_rps), fleet, seed)


@pytest.mark.parametrize("routing", [Routing.LEAST, Routing.TWO_CHOICES])
def test_refusals_and_losses_are_the_same(bench: Page, routing: Routing) -> None:
    fleet = fleet_of(service(4.0, 0.7), 3, routing=routing, queue=20, batch_wait_s=0.0, max_batch=8)
    outages = (Outage(0, 0.3), Outage(1, 0.5, 0.9), Outage(2, 0.5, 0.6))
    found = same(bench, draw(4000, 2, 1.0) / (1.3 * fleet.limit_rps), replace(fleet, outages=outages))
    assert found["refused"] > 0
    assert found["lost"] > 0


def test_a_thousand_replicas_are_the_same(bench: Page) -> None:
    for routing in (Routing.LEAST, Routing.TWO_CHOICES):
        fleet = fleet_of(service(4.0, 0.7), 1000, routing=routing)
        same(bench, draw(30_000, 4, 1.0) / (0.9 * fleet.limit_rps), fleet)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0, None])
def test_arrivals_drawn_in_the_page_have_the_spread_that_is_asked_for(bench: Page, burstiness: float | None) -> None:
    """Seen through latencies: those that the same service gives on arrivals of numpy's, at the same burstiness."""
    fleet, count = fleet_of(service(4.0, 0.7), 4), 1 << 17
    rate = 0.85 * fleet.limit_rps
    job = {"fleet": fleet.as_json(), "rate": rate, "count": count, "seed": 1, "burstiness": burstiness, "lost": 0}
    job |= {"slo": {"latency": 0.05, "percentile": 99, "errors": 1, "goodput": 0}, "percentiles": [50, 99]}
    found = bench.evaluate("(job) => simulator().read(job)", job)
    arrivals_s = draw(count, 9, float("inf") if burstiness is None else burstiness) / rate
    expected = simulate(arrivals_s, fleet)
    assert found["at"][0] == pytest.approx(expected.quantile(50), rel=0.03)
    assert found["at"][1] == pytest.approx(expected.quantile(99), rel=0.10)
    assert found["batch"] == pytest.approx(expected.mean_batch, rel=0.03)
    assert found["kept"] == (found["at"][1] <= 0.05)


# ---- the page


def written(folder: Path, found: dict[str, Any], **constants: str) -> Path:
    """The page, with other constants in its scripts."""
    own, changed = plan_page._own, []

    def part(name: str) -> str:
        text = own(name)
        for constant, value in constants.items():
            text, count = re.subn(rf"\b{constant} = [\d /]+", f"{constant} = {value}", text)
            changed.extend([constant] * count)
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_page, "_own", part)
        (folder / "plan.html").write_text(plan_page.page(found), encoding="utf-8")
    assert sorted(changed) == sorted(constants)
    return folder / "plan.html"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """For what isn't about its figures: made, and simulated in the page, by a tenth as many requests as usual."""
    traffic.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailrate.analysis.planning.plan.sizing.LEAST_BEYOND", 100)
        found = planned()
    traffic.cache_clear()
    return found, written(tmp_path_factory.mktemp("rough"), found, BEYOND="100")


@pytest.fixture(scope="module")
def exact(plan: tuple[dict[str, Any], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its answers are as exact as they come; only its drawings, in which nobody looks for figures, are rough."""
    return written(tmp_path_factory.mktemp("exact"), plan[0], DRAFT="1 / 16")


def at(tab: Tab, path: Path, hash_: str = "", **options: Any) -> Page:
    """The page; it may ask for itself and its worker."""
    return settled(tab.open(path.as_uri() + hash_, "blob:null/", **options))


def settled(page: Page) -> Page:
    page.locator(".desk[data-state=done], .desk[data-state=planned]").wait_for(timeout=PATIENCE_MS)
    return page


def tiles(page: Page) -> dict[str, str]:
    keys = ("replicas", "tail", "after_loss", "headroom", "hour", "joules")
    return {key: page.locator(f".tiles dd[data-fill={key}]").inner_text() for key in keys}


def number(text: str) -> float:
    found = re.match(r"[\d.,]+", text)
    assert found, text
    return float(found[0].replace(",", ""))


@pytest.mark.parametrize(
    ("hash_", "width", "scheme"),  # each pair of them
    [("", 390, "light"), ("", 1600, "dark"), (OTHER, 390, "dark"), (OTHER, 1600, "light")],
)
def test_opens_without_errors_requests_or_overflow(
    tab: Tab, plan: tuple[Any, Path], hash_: str, width: int, scheme: Any
) -> None:
    page = at(tab, plan[1], hash_, width=width, height=900, scheme=scheme)
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth") <= page.evaluate(f"{root}.clientWidth")
    ends = page.evaluate("[...document.querySelectorAll('.plot text')].map(t => t.getBoundingClientRect().right)")
    assert max(ends) <= width
    if (hash_, scheme) != (OTHER, "light"):  # it takes long, and has seen each of the two already
        assert findings(page) == []
    tab.leave()


def test_what_was_planned_stands_until_a_control_is_moved_and_again_after_reset(
    tab: Tab, plan: tuple[dict[str, Any], Path]
) -> None:
    found, path = plan
    answer = next(one["answer"] for one in found["variants"] if one["endpoint"] == found["best"])
    page = at(tab, path)
    before = page.locator("main").inner_text(), page.locator("header").inner_text()
    assert tiles(page)["tail"] == words.ms(answer["p99_ms"])
    assert page.locator(".plots.now").count() == 0
    page.get_by_label("Rate", exact=True).fill("9000")
    page.locator(".desk[data-state=done]").wait_for(timeout=PATIENCE_MS)
    assert page.locator(".plots.now").count() == 3
    assert page.locator(".as-made:visible").count() == 2
    page.get_by_role("button", name="Reset").click()
    page.locator(".desk[data-state=planned]").wait_for()
    assert (page.locator("main").inner_text(), page.locator("header").inner_text()) == before
    assert page.evaluate("location.hash") == ""
    tab.leave()


@pytest.mark.parametrize(
    ("rate", "slo_ms", "n_plus", "burstiness"), [(900, 50, 0, 1.0), (9000, 30, 2, 1.0), (2500, 80, 1, 0.25)]
)
def test_moving_controls_gives_the_answer_of_the_planner(
    tab: Tab, exact: Path, rate: float, slo_ms: float, n_plus: int, burstiness: float
) -> None:
    """On other arrivals, so within one replica, 7 % of P99 and of energy, and 4 % of the knee."""
    page = at(tab, exact)
    controls = {
        "Rate": rate,
        "Objective": slo_ms,
        "Replicas that may be lost": n_plus,
        "Evenness of arrivals": burstiness,
    }
    for label, value in controls.items():
        page.get_by_label(label, exact=True).fill(f"{value:g}")
    page.locator(".desk[data-state=done]").wait_for(timeout=PATIENCE_MS)
    asked, fleet = sizing(f"p99<{slo_ms}ms", burstiness), compiled().fleet
    expected = asked.fewest_after_loss(fleet, rate, n_plus)
    shown = tiles(page)
    replicas = int(number(shown["replicas"]))
    assert expected is not None
    assert abs(replicas - expected) <= 1
    fleet = replace(fleet, replicas=replicas)
    readings = asked.readings(fleet, rate)
    assert number(shown["tail"]) == pytest.approx(1e3 * sorted(one.latency_s for one in readings)[1], rel=0.07)
    assert number(shown["headroom"]) == pytest.approx(100 * (asked.knee_rps(fleet) / rate - 1), abs=4)
    variant = replace(compiled(), fleet=fleet)
    bill = Prices(2.5, 0.3, 0.38).bill(replicas, rate, variant.power_w(replicas, readings[0].utilisation))
    assert bill.cost_per_hour is not None
    assert bill.joules_per_request is not None
    assert number(shown["hour"]) == pytest.approx(bill.cost_per_hour, rel=0.01)
    assert number(shown["joules"]) == pytest.approx(bill.joules_per_request, rel=0.07)
    if n_plus:
        lost = asked.after_loss(fleet, rate, n_plus, 1).latency_s
        assert number(shown["after_loss"]) == pytest.approx(1e3 * lost, rel=0.15)
    row = page.locator("tr[data-variant='0'] td").first.inner_text()
    others = asked.fewest_after_loss(eager().fleet, rate, n_plus)
    assert others is not None
    assert abs(int(number(row)) - others) <= 1
    tab.leave()


def test_a_fleet_that_is_too_small_is_called_so_and_one_beyond_what_was_measured_warned_of(
    tab: Tab, plan: tuple[Any, Path]
) -> None:
    page = at(tab, plan[1], "#replicas=5")
    assert "but not with 1 of them lost" in page.locator(".conclusion").inner_text()
    page.get_by_label("Rate", exact=True).fill("5300")
    page.locator(".bars li", has_text="none was measured above 1,010/s").wait_for(timeout=PATIENCE_MS)
    page.get_by_label("Replicas", exact=True).fill("4")
    page.locator(".conclusion", has_text="do not hold 5,300").wait_for(timeout=PATIENCE_MS)
    page.get_by_label("Replicas: as many as it takes").click()
    page.locator(".conclusion", has_text="also with 1 of them lost").wait_for(timeout=PATIENCE_MS)
    page.get_by_label("Objective", exact=True).fill("3")
    page.locator(".conclusion", has_text="No number of replicas").wait_for(timeout=PATIENCE_MS)
    settled(page)
    tab.leave()


def test_the_address_holds_what_differs_and_brings_it_back(tab: Tab, plan: tuple[Any, Path]) -> None:
    page = at(tab, plan[1])
    page.get_by_label("Variant", exact=True).select_option("bert/eager")
    page.get_by_label("Batch wait", exact=True).fill("5")
    page.get_by_label("GPU hour", exact=True).fill("")
    page.locator(".desk[data-state=done]").wait_for(timeout=PATIENCE_MS)
    hash_ = page.evaluate("location.hash")
    assert parse_qs(hash_[1:], keep_blank_values=True) == {"variant": ["bert/eager"], "wait": ["5"], "gpu_hour": [""]}
    said = page.locator(".conclusion strong").inner_text()
    assert "of bert/eager" in said
    tab.leave()
    page = at(tab, plan[1], hash_)
    assert page.locator(".conclusion strong").inner_text() == said
    assert page.get_by_label("Batch wait", exact=True).input_value() == "5"
    page.evaluate("location.hash = 'n_plus=0&nonsense=1&rate=x'")
    page.locator(".conclusion:not(:has-text('lost'))").wait_for(timeout=PATIENCE_MS)
    assert page.get_by_label("Variant", exact=True).input_value() == "1"
    assert page.get_by_label("Rate", exact=True).input_value() == "5000"
    settled(page)
    tab.leave()


def test_a_slider_is_moved_by_keys(tab: Tab, plan: tuple[Any, Path]) -> None:
    page = at(tab, plan[1])
    slider, field = (
        page.get_by_label("Replicas that may be lost, as a slider"),
        page.get_by_label("Replicas that may be lost", exact=True),
    )
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert field.input_value() == "2"
    assert slider.get_attribute("aria-valuetext") == "2"
    page.locator(".conclusion", has_text="with 2 of them lost").wait_for(timeout=PATIENCE_MS)
    rate = page.get_by_label("Rate, as a slider")
    rate.focus()
    page.keyboard.press("End")
    assert float(page.get_by_label("Rate", exact=True).input_value()) == 100_000
    page.keyboard.press("Home")
    page.locator(".conclusion", has_text="1 replica of").or_(
        page.locator(".conclusion", has_text="3 replicas of")
    ).wait_for(timeout=PATIENCE_MS)
    settled(page)
    probe = page.locator("#latency .now .probe")
    probe.focus()
    page.keyboard.press("ArrowRight")
    assert "P99" in str(probe.get_attribute("aria-valuetext"))
    tab.leave()


def test_the_legend_switches_what_is_drawn_now(tab: Tab, plan: tuple[Any, Path]) -> None:
    page = at(tab, plan[1])
    page.locator("#latency [data-switch='0']").click()
    page.get_by_label("Rate", exact=True).fill("6000")
    page.locator(".desk[data-state=done]").wait_for(timeout=PATIENCE_MS)

    def on(series: int) -> int:
        marks = f"[...document.querySelectorAll('#latency .now [data-series=\"{series}\"]')]"
        return int(page.evaluate(f"{marks}.filter(mark => !mark.classList.contains('off')).length"))

    assert on(0) == 0
    assert on(1) > 0
    tab.leave()


def test_the_command_of_what_is_asked_is_copied(tab: Tab, plan: tuple[Any, Path]) -> None:
    page = at(tab, plan[1], "#rate=7000&max_batch=8&burstiness=0.5&variant=bert/eager")
    page.get_by_role("button", name="Copy the command").click()
    page.locator(".said", has_text="Copied").wait_for()
    kept = COMMAND.replace(" --rate 5000 --slo p99<50ms --n-plus 1", "")
    assert page.evaluate("navigator.clipboard.readText()") == (
        f"{kept} --rate 7000 --slo 'p99<50ms' --n-plus 1 --burst gamma:0.5 --max-batch 8 --gpu-hour 2.5 --kwh 0.3 "
        "--co2 0.38 --endpoint bert/eager"
    )
    tab.leave()


def test_names_that_are_markup_are_shown_as_text(tab: Tab, plan: tuple[Any, Path], tmp_path: Path) -> None:
    long = "m/a-variant-with-a-rather-long-name-that-does-not-fit-anywhere"
    text = (
        json.dumps(plan[0]).replace(eager().endpoint, json.dumps(f"m/{EVIL}")[1:-1]).replace(compiled().endpoint, long)
    )
    found = json.loads(text)
    path = written(tmp_path, found | {"runs": [EVIL], "left_out": [EVIL], "warnings": [EVIL]}, BEYOND="100")
    page = at(tab, path, "#rate=6000&variant=m/" + "%3Cx%3E", width=390, height=800)
    page.get_by_label("Variant", exact=True).select_option(f"m/{EVIL}")
    page.locator(".desk[data-state=done]").wait_for(timeout=PATIENCE_MS)
    assert EVIL in page.locator(".conclusion").inner_text()
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth") <= page.evaluate(f"{root}.clientWidth")
    assert page.locator("img").count() == 0
    tab.leave()


def test_without_script_the_plan_is_there_and_no_control(tab: Tab, plan: tuple[dict[str, Any], Path]) -> None:
    found, path = plan
    page = tab.open(path.as_uri(), script=False)
    assert page.locator(".controls:visible, .copy, .as-made:visible").count() == 0
    assert page.locator("figure .plot:visible").count() == 4
    assert page.locator("#growth tbody tr").count() == len(found["growth"])
    answer = next(one["answer"] for one in found["variants"] if one["endpoint"] == found["best"])
    assert tiles(page)["replicas"] == str(answer["replicas"])
    tab.leave()


def test_on_paper_there_are_no_controls(tab: Tab, plan: tuple[Any, Path]) -> None:
    page = at(tab, plan[1])
    page.emulate_media(media="print")
    assert page.locator(".controls").is_hidden()
    assert page.locator("#latency .plot").is_visible()
    tab.leave()
