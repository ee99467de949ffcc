"""A plan of variants that were made by hand: what it chooses, what it costs, and when it says that it is no good."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from plans import question, service, sizing, variant

from tailrate.analysis.planning.plan import plan_text, what_if
from tailrate.analysis.planning.plan.plan import Plan, as_text, plan
from tailrate.analysis.planning.plan.prices import Prices
from tailrate.analysis.planning.plan.question import DemandGrowth
from tailrate.analysis.planning.plan.sized_fleet import SizedFleet, answered
from tailrate.analysis.planning.plan.sizing import QuestionError
from tailrate.analysis.planning.simulator.simulate import Routing, Rule, Service

pytestmark = pytest.mark.computes

SLOW = Service.steady(np.array([0.0, 0.06]))
EAGER, COMPILED = variant("m/eager", service(0.008, 0.001)), variant("m/compiled")


def answer(*args: object, **more: object) -> SizedFleet:
    found = answered(*args, **more)  # type: ignore[arg-type]
    assert isinstance(found, SizedFleet), found
    return found


@pytest.fixture(scope="module")
def both() -> Plan:
    prices = Prices(gpu_hour=2.5, currency="€")
    return plan(
        ["a", "b"], [EAGER, COMPILED], question(prices=prices, n_plus=1, growth=DemandGrowth.parse("20%/quarter"))
    )


# ---- one variant


def test_costs_by_hand() -> None:
    """40 W of each device, and 160 W more while a batch occupies it."""
    asked = question(prices=Prices(gpu_hour=2.0, kwh=0.3, co2_kg_per_kwh=0.5))
    found = answer(variant(idle_w=40.0, active_w=200.0), asked)
    power_w = found.replicas * (40 + 160 * found.utilisation)
    assert found.gpus == found.replicas
    assert found.cost_per_hour == pytest.approx(2 * found.gpus + 0.3 * power_w / 1000, rel=1e-3)
    assert found.cost_per_million == pytest.approx((found.cost_per_hour or 0) / 18)
    assert found.joules_per_request == pytest.approx(power_w / 5000, rel=1e-3)
    assert found.co2_g_per_million == pytest.approx(power_w / 5000 * 1e6 / 3.6e6 * 500, rel=1e-3)


def test_replicas_that_share_a_device_share_its_idle_power() -> None:
    alone, shared = variant(idle_w=40.0, active_w=200.0), variant(idle_w=40.0, active_w=200.0, per_gpu=4)
    assert (alone.gpus(10), shared.gpus(10)) == (10, 3)
    assert shared.power_w(10, 0.5) == pytest.approx(3 * 40 + 10 * 160 * 0.5)
    said = answer(shared, question()).warnings
    assert any("4 replicas are to share a device, and 1 did when it was measured" in one for one in said)


@pytest.mark.parametrize("slo", ["p99<12ms", "p99<20ms", "p90<50ms"])
def test_no_answer_beats_theory(slo: str) -> None:
    for one in (EAGER, COMPILED):
        if isinstance(found := answered(one, question(slo=slo)), SizedFleet):
            assert found.least_replicas <= found.replicas
            assert found.p99_bound_ms <= found.p99_ms <= question(slo=slo).sizing.objective.latency_s * 1e3


def test_a_curve_is_sized_for_its_peak_and_paid_for_by_its_mean() -> None:
    prices = Prices(gpu_hour=1.0)
    flat = answer(COMPILED, question(7500, prices=prices))
    curved = answer(COMPILED, question(5000, prices=prices, shape="sine:0.5:86400", peak=1.5))
    assert (curved.replicas, curved.rate_rps) == (flat.replicas, 7500)
    assert curved.cost_per_million == pytest.approx(1.5 * (flat.cost_per_million or 0))


def test_what_is_lost_is_counted_for() -> None:
    alone, spare = answer(COMPILED, question()), answer(COMPILED, question(n_plus=2))
    assert spare.replicas == alone.replicas + 2
    assert alone.p99_after_loss_ms is None
    assert spare.p99_ms < (spare.p99_after_loss_ms or 0) <= 50


def test_the_interval_is_as_wide_as_the_model_is_wrong() -> None:
    widths = []
    for error in (0.0, 0.02, 0.05):
        found = answer(replace_error(COMPILED, error), question(slo="p99<20ms"))
        assert found.p99_low_ms is not None
        assert found.p99_high_ms is not None
        assert found.p99_low_ms <= found.p99_ms <= found.p99_high_ms
        widths.append(found.p99_high_ms / found.p99_low_ms)
    assert widths == sorted(widths)
    assert widths[-1] > 1.05


def replace_error(one, error):
    return replace(one, validation=replace(one.validation, rate_at_slo_error=error))


def test_a_plan_at_the_edge_names_the_number_that_holds_in_any_case() -> None:
    knee = sizing("p99<20ms").knee_rps(replace(COMPILED.fleet, replicas=5))
    found = answer(replace_error(COMPILED, -0.04), question(0.99 * knee, "p99<20ms"))
    assert (found.replicas, found.replicas_sure) == (5, 6)
    assert found.headroom_pct == pytest.approx(1.0, abs=1.0)
    assert found.trusted
    assert "the model's error alone can miss the objective with 5 replicas; 6 hold it even then" in found.warnings


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (variant(error=None), "is unknown, as no other rate was there to predict"),
        (variant(error=0.07), "the model is off by 7.0%, and 5 % is the most at which a plan can be trusted"),
        (variant(highest_rps=0.0), "it was driven in closed loops only"),
        (variant(highest_rps=300), "none was measured above 300/s: measure up to there, or take 17 replicas"),
    ],
)
def test_plans_that_cannot_be_trusted_say_so_first(one, said) -> None:
    made = plan(["r"], [one], question())
    assert made.exit_code == 3
    assert made.best is not None
    assert not made.best[1].trusted
    first = plan_text.warnings(made)[0]
    assert first.startswith("This plan cannot be trusted: ")
    assert said in first
    assert plan_text.markdown(made).index("cannot be trusted") < plan_text.markdown(made).index("## Variants")


def test_those_that_are_left_take_no_more_than_was_measured_either() -> None:
    found = answer(variant(highest_rps=1100), question(n_plus=1))
    per_replica = 5000 / found.replicas
    assert per_replica < 1100 < 5000 / (found.replicas - 1)
    assert not found.trusted


@pytest.mark.parametrize(
    ("one", "slo", "said"),
    [
        (variant(made=SLOW), "p99<50ms", "no number of replicas helps: a request that is alone takes 60"),
        (variant(rule=Rule.OPPORTUNISTIC, batch_wait_s=0.1), "p99<50ms", "100 ms are the batch wait"),
        (variant(failed=0.02), "p99<50ms", "2 % of its arrivals failed although it was not overloaded"),
        (variant(failed=0.002), "p99<50ms,errors<0.1%", "allows 0.10 %"),
    ],
)  # fmt: skip
def test_where_no_number_of_replicas_helps_the_plan_says_why(one, slo, said) -> None:
    made = plan(["r"], [one], question(20, slo))
    assert made.exit_code == 1
    assert made.best is None
    assert said.replace(" ", "\u00a0") in plan_text.conclusion(made).replace(" ", "\u00a0")
    assert made.as_json()["variants"][0]["answer"].keys() == {"refused"}
    assert not made.what_if


def test_a_refusal_by_a_model_that_does_not_hold_is_no_refusal() -> None:
    doubtful = variant(made=service(0.020, 0.001), error=None)
    for slo, code in (("p99<20.5ms", 3), ("p99<15ms", 1)):  # half of the requests that were alone took 21 ms
        found = replace(doubtful, calibration=replace(doubtful.calibration, lone_ms=20.0))
        made = plan(["r"], [found], question(slo=slo))
        assert made.best is None
        assert made.exit_code == code
        trusted = [one for one in plan_text.warnings(made) if one.startswith("This plan cannot be trusted: ")]
        assert len(trusted) == (code == 3)
    assert plan_text.variants_table(made).heads == ("endpoint", "replicas")


def test_a_tail_that_was_hardly_measured_is_said() -> None:
    said = answer(variant(arrivals=1000), question(slo="p99.9<50ms")).warnings
    assert any(one.startswith("P99.9 takes 4,603 measured arrivals at least, and there were 1,000") for one in said)


# ---- the choice


def test_the_cheapest_is_chosen_of_those_that_can_be_trusted() -> None:
    asked = question(prices=Prices(gpu_hour=1.0))
    chosen = plan(["r"], [EAGER, COMPILED], asked).best
    assert chosen is not None
    assert chosen[0].endpoint == "m/compiled"
    doubted = plan(["r"], [EAGER, replace_error(COMPILED, 0.2)], asked)
    assert doubted.best is not None
    assert doubted.best[0].endpoint == "m/eager"
    assert doubted.exit_code == 0
    assert "by a plan that cannot be trusted" in plan_text.conclusion(doubted)


def test_what_is_known_of_one_alone_decides_nothing() -> None:
    """A variant whose power nobody measured would be the cheaper one for having no electricity on its bill."""
    known, unknown = variant("m/known", idle_w=400.0, active_w=700.0), variant("m/unknown", service(0.0065, 0.0005))
    asked = question(prices=Prices(gpu_hour=0.1, kwh=3.0))
    found = plan(["r"], [known, unknown], asked)
    by_name = {one.endpoint: answer for one, answer in found.answered}
    assert by_name["m/known"].cost_per_hour > by_name["m/unknown"].cost_per_hour  # not of one kind
    fewest = min(found.answered, key=lambda one: (one[1].gpus, one[1].replicas, one[0].endpoint == "m/unknown"))
    assert found.best is not None
    assert found.best[0].endpoint == fewest[0].endpoint
    (said,) = [one for one in plan_text.warnings(found) if "is not known" in one]
    assert said.startswith("The power of m/unknown is not known, so variants are ranked by the devices that they take")
    both_known = plan(["r"], [known, replace(known, endpoint="m/other")], asked)
    assert not any("is not known" in one for one in plan_text.warnings(both_known))


def test_the_conclusion_can_be_read_out(both: Plan) -> None:
    best = both.best
    assert best is not None
    said = plan_text.conclusion(both).replace("\u00a0", " ")
    assert said.startswith(
        f"{'Five' if best[1].replicas == 5 else best[1].replicas} replicas of m/compiled on five GPUs hold 5,000 "
        f"requests/s at P99 ≤ 50 ms, also with one of them lost: P99 "
    )
    assert "12.5 € an hour, 0.694 € per million requests" in said
    assert "m/eager takes nine replicas" in said
    assert "On rates that it had not seen the model's rate at the objective was 1 % off" in said


def test_what_if_follows_from_the_circumstances(both: Plan) -> None:
    assert both.best is not None
    planned = both.best[1].replicas
    found = {one.change: one for one in both.what_if}
    assert (found["20 % less traffic"].replicas or 0) <= planned <= (found["20 % more traffic"].replicas or 0)
    assert (found["twice the traffic"].replicas or 0) > planned
    assert (found["P99 ≤ 40 ms"].replicas or 0) >= planned >= (found["P99 ≤ 75 ms"].replicas or 0)
    assert (found["twice the burstiness"].replicas or 0) >= planned
    assert found["2 replicas lost"].replicas == planned + 1
    less, more = found["one replica less"], found["one replica more"]
    assert (less.replicas, more.replicas) == (planned - 1, planned + 1)
    assert (less.p99_ms or 0) > both.best[1].p99_ms > (more.p99_ms or 0)
    assert all(one.cost_per_hour == pytest.approx(2.5 * (one.replicas or 0)) for one in both.what_if)


def test_sensitivity_has_the_sign_that_physics_has(both: Plan) -> None:
    found = {(one.assumption, one.change): one for one in both.sensitivity}
    assert found["service time", "+5 %"].share > 0.05 > 0 > found["service time", "−5 %"].share
    assert found["arrivals", "twice as bursty"].share > 0 > found["arrivals", "evenly spaced"].share
    assert found["routing", "random"].share > 0
    assert ("routing", "least") not in found
    # batches that close at once while the replica is busy hold one request each: 4.5 ms, against 0.75 in full batches
    assert (found["batching", "awaiting"].replicas or 0) >= 5000 * 0.0045


def test_growth_by_the_quarter(both: Plan) -> None:
    assert both.best is not None
    assert both.growth[0].replicas == both.best[1].replicas
    assert [one.rate_rps for one in both.growth] == pytest.approx([5000 * 1.2**n for n in range(9)])
    counts = [one.replicas or 0 for one in both.growth]
    assert counts == sorted(counts)
    year, quarter = both.made.year, (both.made.month - 1) // 3 + 1
    assert both.growth[0].when == f"{year} Q{quarter}"
    assert both.growth[4].when == f"{year + 1} Q{quarter}"


@pytest.mark.parametrize(
    ("text", "factor"),
    [("20%/quarter", 1.2), ("-5 % / quarter", 0.95), ("21%/year", 1.21**0.25), ("1%/month", 1.01**3)],
)
def test_growth_in_words(text: str, factor: float) -> None:
    assert DemandGrowth.parse(text).per_quarter == pytest.approx(factor)


@pytest.mark.parametrize("text", ["", "20", "20%", "20/quarter", "20%/day", "-100%/year", "a%/year", "20%/quarterly"])
def test_growth_that_is_none(text: str) -> None:
    with pytest.raises(QuestionError, match="is not understood; write for instance 20%/quarter"):
        DemandGrowth.parse(text)


@pytest.mark.parametrize("rate", [0.0, -5.0, math.inf, math.nan, 1e9])
def test_rates_that_are_none(rate: float) -> None:
    with pytest.raises(QuestionError, match="must be requests per second"):
        question(rate)


# ---- as JSON


def test_the_form_of_the_json_is_kept(both: Plan) -> None:
    found = json.loads(as_text(both.as_json()))
    assert set(found) == {
        "schema", "made", "verdict", "conclusion", "warnings", "runs", "demand", "prices", "variants", "best",
        "what_if", "sensitivity", "growth", "left_out",
    }  # fmt: skip
    assert found["schema"] == 1
    assert datetime.fromisoformat(found["made"]).tzinfo == UTC
    assert set(found["demand"]) == {
        "rate_rps", "peak_rps", "mean_rps", "slo", "percentile", "latency_ms", "burstiness", "shape", "growth",
        "n_plus",
    }  # fmt: skip
    assert set(found["prices"]) == {"gpu_hour", "kwh", "co2_kg_per_kwh", "currency"}
    (first, _) = found["variants"]
    assert set(first) == {
        "endpoint", "per_gpu", "measured_per_gpu", "fleet", "calibration", "validation", "answer",
    }  # fmt: skip
    assert first["fleet"]["replicas"] == first["answer"]["replicas"]
    assert set(first["answer"]) == {
        "replicas", "gpus", "rate_rps", "p99_ms", "p99_low_ms", "p99_high_ms", "p99_after_loss_ms", "replicas_sure",
        "least_replicas", "p99_bound_ms", "utilisation", "mean_batch", "knee_rps", "headroom_pct", "cost_per_hour",
        "cost_per_million",
        "energy_cost_per_hour", "joules_per_request", "co2_g_per_million", "trusted", "warnings",
    }  # fmt: skip
    assert set(found["what_if"][0]) == {"change", "replicas", "cost_per_hour", "p99_ms"}
    assert set(found["sensitivity"][0]) == {"assumption", "change", "replicas", "p99_ms", "share"}
    assert set(found["growth"][0]) == {"when", "rate_rps", "replicas", "gpus", "cost_per_hour"}
    assert found["best"] == "m/compiled"


def test_numbers_stand_in_lines_and_infinity_is_null(both: Plan) -> None:
    text = as_text(both.as_json())
    assert re.search(r'^ +"mean_s": \[0.004,0.0045,.*\],?$', text, re.M)
    assert "Infinity" not in text
    assert "NaN" not in text


def test_markdown_says_all_of_it_and_signs_in_names_have_no_effect(both: Plan) -> None:
    said = plan_text.markdown(both, "tailrate plan a b")
    for head in ("Variants", "What if", "Growth", "If an assumption were wrong", "How well the model predicts"):
        assert f"## {head}" in said
    assert "    tailrate plan a b\n" in said
    evil = plan_text.markdown(plan(["<b>*x*"], [variant("m/<i>|x")], question(), ["left | out"]))
    assert "<i>" not in evil
    assert "&lt;b&gt;\\*x\\*" in evil
    assert "Left \\| out." in evil


def test_columns_of_which_nothing_is_known_are_left_out() -> None:
    heads = plan_text.variants_table(plan(["r"], [variant()], question())).heads
    assert "J/request" not in heads
    assert "an hour" not in heads
    assert "P99 ms" in heads
    priced = plan(["r"], [variant(idle_w=1.0, active_w=2.0)], question(prices=Prices(1.0, co2_kg_per_kwh=0.3)))
    assert {"J/request", "g CO2e/million", "an hour", "per million"} <= set(plan_text.variants_table(priced).heads)
    assert variant().fleet.routing == Routing.LEAST


def test_machines_where_the_cpu_serves() -> None:
    made = plan(["r"], [variant(device="cpu")], question(500, growth=DemandGrowth.parse("10%/quarter")))
    assert "on one machine holds 500 requests/s" in plan_text.conclusion(made)
    for block in (plan_text.variants_table(made), plan_text.growth_table(made)):
        assert "machines" in block.heads
        assert "GPUs" not in block.heads


def test_growth_ends_where_nothing_can_be_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "MOST_RPS", 12_000)
    made = plan(["r"], [variant()], question(5000, growth=DemandGrowth.parse("100%/quarter")))
    assert [one.rate_rps for one in made.growth] == [5000, 10_000]
