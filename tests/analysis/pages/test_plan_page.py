"""`plan.html` as text: what it says is what `plan.json` holds, whatever that lacks, and it asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from planned import PRICES, RUN, compiled, eager, planned, variant
from plans import draw, sizing
from plans import roughly as roughly
from test_report_page import EVIL

from tailrate.analysis.pages.plan import curves as plan_curves
from tailrate.analysis.pages.plan import page as plan_page
from tailrate.analysis.pages.plan.curves import curves, needed, rates, sizes
from tailrate.analysis.planning.plan.prices import Prices
from tailrate.analysis.text import words

pytestmark = pytest.mark.computes


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    return planned()


def text(page: str) -> str:
    """What can be read, as one line."""
    body = re.sub(r"<(script|style)\b.*?</\1>", "", page[page.index("<body") :], flags=re.S)
    return plain(html.unescape(re.sub(r"<[^>]+>", " ", body)))


def plain(said: str) -> str:
    return re.sub(r"\s+", " ", said)


def embedded(page: str) -> dict[str, Any]:
    found = re.search(r'id="plan" hidden><script type="application/json">(.*?)</script>', page, flags=re.S)
    assert found
    return dict(json.loads(found[1]))


def test_the_answer_its_error_and_every_table_are_in_the_markup(plan: dict[str, Any]) -> None:
    page = plan_page.page(plan)
    said = text(page)
    assert plain(plan["conclusion"].split(". ")[0]) in said
    for one in plan["variants"]:
        answer = one["answer"]
        for key in ("p99_ms", "p99_after_loss_ms"):
            assert plain(words.ms(answer[key])) in said
        assert words.rate(answer["knee_rps"]) in said
        assert words.significant(answer["cost_per_million"]) + " EUR" in said
        assert f"{words.significant(100 * one['validation']['rate_at_slo_error'], 2)} % off" in said
    for one in plan["what_if"]:
        assert plain(one["change"]) in said
    for one in plan["sensitivity"]:
        assert plain(f"{one['assumption']}: {one['change']}") in said
    for one in plan["growth"]:
        assert f"{one['when']} {words.rate(one['rate_rps'])} {words.count(one['replicas'])}" in said
    assert RUN in said


def test_nothing_is_fetched_and_no_other_script_may_run(plan: dict[str, Any]) -> None:
    page = plan_page.page(plan)
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)""", page)
    assert "url(" not in page
    script = re.search(r"<script>(.*)</script></body>", page, flags=re.S)
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    parts = dict(part.split(" ", 1) for part in html.unescape(policy[1]).split("; "))
    assert parts["default-src"] == "'none'"
    assert parts["worker-src"] == "blob:"
    assert parts["script-src"] == f"'sha256-{digest}'"


def test_the_other_pages_do_not_carry_its_scripts() -> None:
    from tailrate.analysis.pages.html.document import document

    assert "simulator" not in document("", "")


def test_a_variant_that_cannot_is_told_with_why() -> None:
    found = planned(slo="p99<10.5ms", rate_rps=400, growth=None)
    refused = [one for one in found["variants"] if "refused" in one["answer"]]
    assert [one["endpoint"] for one in refused] == ["bert/eager"]
    said = text(plan_page.page(found))
    assert plain(f"bert/eager: {refused[0]['answer']['refused']}") in said
    assert "Growth" not in said


def test_a_plan_that_nothing_can_hold_has_a_page() -> None:
    found = planned(slo="p99<3ms", growth=None)
    assert found["best"] is None
    said = text(plan_page.page(found))
    assert "Nothing that was measured can hold" in said
    assert "Latency against rate" not in said


def test_without_prices_power_or_errors_no_figure_is_made_up() -> None:
    model = variant("m/one", 4.2, 0.68, 1010.0, None)
    bare = replace(
        model,
        calibration=replace(model.calibration, idle_w=None, active_w=None),
        validation=replace(model.validation, rows=(), median={}, rate_at_slo_error=None, gate="refused"),
    )
    found = planned(among=[bare], prices=Prices(), n_plus=0)
    page = plan_page.page(found)
    said = text(page)
    assert "one: untried" in said.replace(" :", ":")
    assert plain(found["warnings"][0]) in said
    hidden = re.findall(r"<div hidden><dt>([^<]*)", page)
    assert {"Cost an hour", "Energy per request"} <= set(hidden)
    assert "nan" not in said.lower().split()
    known = embedded(page)["variants"][0]
    assert (known["error"], known["idle_w"], known["active_w"]) == (None, None, None)


def test_a_shape_is_planned_for_its_peak(plan: dict[str, Any]) -> None:
    demand = plan["demand"] | {"shape": "sine:0.5:86400", "rate_rps": 4000.0, "peak_rps": 6000.0, "mean_rps": 4000.0}
    page = plan_page.page(plan | {"demand": demand})
    assert "counted for the peak, 1.5 times as much" in text(page)
    assert (embedded(page)["peak"], embedded(page)["mean"]) == (1.5, 1.0)


def test_names_are_text_everywhere(plan: dict[str, Any]) -> None:
    found = json.loads(json.dumps(plan).replace("bert/eager", json.dumps(EVIL)[1:-1]))
    page = plan_page.page(found | {"warnings": [EVIL], "runs": [EVIL], "left_out": [EVIL], "command": EVIL})
    assert "<img" not in page
    assert "alert(2)</script>" not in page
    assert EVIL in html.unescape(page)


def test_a_command_keeps_what_the_controls_do_not_say(plan: dict[str, Any]) -> None:
    made = "tailrate plan 'runs/a b' --rate=5000 --slo p99<50ms --shape sine:0.5:60 --out plans/x --growth 20%/quarter"
    kept = ["tailrate", "plan", "runs/a b", "--shape", "sine:0.5:60", "--growth", "20%/quarter"]
    assert embedded(plan_page.page(plan | {"command": made}))["command"] == kept
    assert embedded(plan_page.page(plan | {"command": ""}))["command"] == ["tailrate", "plan", RUN]


def test_curves_cross_the_objective_at_the_knee() -> None:
    asked, fleet = sizing(), replace(compiled().fleet, replicas=6)
    found = curves(fleet, asked, 5000.0, 1, 8000.0)
    assert [rate for rate, _, _ in found.by_rate] == rates(fleet.limit_rps)
    assert all(p50 <= tail for _, p50, tail in found.by_rate)
    knees = dict(found.knees)
    for rate, _, tail in found.by_rate:
        if abs(rate / knees[6] - 1) > 0.03:
            assert (tail <= 50.0) == (rate < knees[6])
    assert [n for n, _ in found.by_size] == list(sizes(6, 5, 1))
    assert found.knees[-1][1] >= 8000.0
    assert found.knees[-2][1] < 8000.0


def test_replicas_for_a_rate_are_read_from_knees() -> None:
    knees = [(1, 100.0), (2, 210.0), (4, 430.0)]
    assert [needed(knees, rate) for rate in (50, 100, 101, 210, 211, 320, 321, 430, 431)] == [
        1,
        1,
        2,
        2,
        3,
        3,
        4,
        4,
        None,
    ]


def test_the_numbers_of_replicas_grow() -> None:
    firsts = plan_curves.spaced(5)
    assert [next(firsts) for _ in range(9)] == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert next(plan_curves.spaced(1000)) == 32


def test_the_page_draws_as_the_planner_does() -> None:
    assert (plan_curves.draw(50, 3, 0.5) == draw(50, 3, 0.5)).all()
    assert (plan_curves.draw(50, 3, float("inf")) == draw(50, 3, float("inf"))).all()
    assert PRICES.currency == "EUR"
    assert eager().endpoint == "bert/eager"
