import re
from argparse import Namespace

import numpy as np
import pytest

from tailrate.analysis.records.objective import Slo
from tailrate.loadtest.engine.modes import OPTIONS, defaults, from_options
from tailrate.loadtest.engine.scenario.arrivals import Pattern
from tailrate.loadtest.engine.scenario.options import parse_rates
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.loadtest.engine.scenario.steps import StepPlan


def scenario(**given):
    usual = defaults({})
    return from_options("bert", "bert", Namespace(**usual | given), usual)


def plan(endpoints, **given):
    resolved = scenario(**given)
    found = resolved.mode.blocks(StepPlan(resolved), endpoints)
    steps = [step for block in found for step in block]
    assert [step.index for step in steps] == list(range(len(steps)))
    assert [{step.block for step in block} for block in found] == [{number} for number in range(len(found))]
    return steps


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("50:200:50", (50, 100, 150, 200)),
        ("0.1:0.5:0.1", (0.1, 0.2, 0.30000000000000004, 0.4, 0.5)),
        ("50,100,75", (50, 100, 75)),
        ("5:5:1", (5,)),
        ("1:10:4", (1, 5, 9)),
        ("12.5", (12.5,)),
    ],
)
def test_rates(text, rates):
    assert parse_rates(text) == pytest.approx(rates)


@pytest.mark.parametrize(
    "text", ["", "x", "1:2", "5:1:1", "1:5:0", "1:5:-1", "0", "-3", "nan", "inf", "1,,2", "1:1e9:1"]
)
def test_rates_that_make_no_sense(text):
    with pytest.raises(ScenarioError, match="--rates"):
        parse_rates(text)


def test_a_ramp_drives_the_variants_one_after_the_other_on_the_same_arrivals():
    found = plan(["bert/eager", "bert/compiled"], rates="10,20")
    assert [(step.endpoint, step.rate, step.block) for step in found] == [
        ("bert/eager", 10, 0),
        ("bert/compiled", 10, 1),
        ("bert/eager", 20, 2),
        ("bert/compiled", 20, 3),
    ]
    assert found[0].seed == found[1].seed != found[2].seed


def test_mixed_drives_both_at_once_at_half_the_rate():
    found = plan(["a/x", "a/y"], rates="10,20", mode="mixed")
    assert [(step.rate, step.block) for step in found] == [(5, 0), (5, 0), (10, 1), (10, 1)]


@pytest.mark.parametrize("arrivals", ["constant", "poisson", "gamma"])
def test_what_is_driven_at_once_is_independent_and_none_is_always_first(arrivals):
    one, other, third = plan(["a/x", "a/y", "a/z"], rates="300", mode="mixed", step_seconds=30.0)
    pattern = Pattern(arrivals)
    at = [step.offsets(pattern) for step in (one, other, third)]
    assert not set(at[0]) & set(at[1])
    assert [len(own) for own in at] == pytest.approx([3000] * 3, abs=250)
    counts = [np.histogram(own, bins=300, range=(0, 30e9))[0] for own in at]
    if arrivals == "constant":  # together as even as each
        gaps = np.diff(np.sort(np.concatenate(at)))
        assert np.abs(gaps - 1e9 / 300).max() <= 1
    else:
        assert abs(np.corrcoef(counts)[0, 1]) < 0.2
        # how often the next arrival after one of the first is that of the second
        order = np.argsort(np.concatenate(at), kind="stable")
        whose = np.repeat([0, 1, 2], [len(own) for own in at])[order]
        after = whose[1:][whose[:-1] == 0]
        assert np.mean(after == 1) == pytest.approx(np.mean(after == 2), abs=0.06)
    again = plan(["a/x", "a/y", "a/z"], rates="300", mode="mixed", step_seconds=30.0)
    assert [step.seed for step in again] == [one.seed, other.seed, third.seed]


def test_a_b_is_balanced_random_and_shows_its_noise():
    names = ["a/x", "a/y"]
    firsts = []
    for seed in range(40):
        found = plan(names, rates="10", mode="ab", rounds=4, seed=seed)
        real = [step for step in found if not step.twin]
        rounds = [[step.endpoint for step in real[at : at + 2]] for at in range(0, 8, 2)]
        assert all(sorted(order) == names for order in rounds)
        assert rounds[1] == rounds[0][::-1]
        assert rounds[3] == rounds[2][::-1]
        # in each round both get the same arrivals, in the next round others
        assert [len({step.seed for step in real[at : at + 2]}) for at in range(0, 8, 2)] == [1] * 4
        assert len({step.seed for step in real}) == 4
        twins = [step for step in found if step.twin]
        assert sorted(step.endpoint for step in twins) == names
        for twin in twins:
            before = found[twin.index - 1]
            assert (before.endpoint, before.seed, before.rate) == (twin.endpoint, twin.seed, twin.rate)
        firsts.append(rounds[0][0])
    assert 8 < firsts.count("a/x") < 32


def test_a_spike_is_one_block_without_a_pause():
    found = plan(["a/x", "a/y"], rates="10", mode="spike", spike=4.0, step_seconds=8.0, settle_seconds=2.0)
    assert [(step.endpoint, step.rate, step.start_s, step.settle_s, step.block) for step in found[:3]] == [
        ("a/x", 10, 0, 2, 0),
        ("a/x", 40, 8, 0, 0),
        ("a/x", 10, 16, 0, 0),
    ]
    assert {step.block for step in found[3:]} == {1}
    assert [step.seed for step in found[:3]] == [step.seed for step in found[3:]]
    assert len({step.seed for step in found}) == 3


def test_closed_loops_have_no_rate():
    found = plan(["a/x", "a/y"], mode="closed", concurrency="1,8")
    assert [(step.endpoint, step.rate, step.concurrency) for step in found] == [
        ("a/x", 0, 1), ("a/y", 0, 1), ("a/x", 0, 8), ("a/y", 0, 8),
    ]  # fmt: skip
    (single,) = plan(["a/x"], mode="single")
    assert single.concurrency == 1
    (offline,) = plan(["a/x"], mode="offline", max_in_flight=64, requests=500)
    assert (offline.concurrency, offline.requests, offline.settle_s) == (64, 500, 0)


def test_a_trace_is_replayed_once_at_its_own_rate(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("timestamp\n10\n10.5\n12\n14\n")
    found = plan(["a/x", "a/y"], mode="replay", trace=str(path), speed=2.0, rates="1,2,3")
    assert [step.endpoint for step in found] == ["a/x", "a/y"]
    assert found[0].seconds == pytest.approx(2.001)
    assert found[0].rate == pytest.approx(2, abs=0.01)
    resolved = scenario(mode="replay", trace=str(path), speed=2.0)
    assert found[0].offsets(resolved.pattern).tolist() == [0, 250_000_000, 1_000_000_000, 2_000_000_000]


def test_the_peak_of_a_scenario():
    def peak(**given):
        return scenario(**given).peak_rps

    assert peak(rates="10,20") == 20
    assert peak(rates="10", mode="spike", spike=5.0) == 50
    assert peak(rates="10", shape="sine:0.5") == 15


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"settle_seconds": 30.0}, "leaves nothing"),
        ({"rates": "20,10"}, "must rise in mode ramp"),
        ({"rows": 0}, "--rows must be at least 1"),
        ({"timeout": 0.0}, "--timeout"),
        ({"timeout": float("nan")}, "--timeout"),
        ({"slo": "p99<50"}, "--slo"),
        ({"mode": "sideways"}, "known are ab"),
        ({"arrivals": "bursty"}, "known are constant"),
        ({"shape": "wavy"}, "shape 'wavy' is not understood; write one of flat"),
        ({"mode": "closed", "concurrency": "1,x"}, "--concurrency '1,x' is not understood"),
        ({"mode": "closed", "concurrency": "0"}, "--concurrency '0' is not understood"),
        ({"mode": "knee"}, "--slo 'p99<50ms'"),
        ({"mode": "knee", "slo": "errors<1%"}, "--slo 'p99<50ms'"),
        ({"mode": "replay"}, "mode replay and --trace FILE go together"),
        ({"trace": "x.csv"}, "--trace is for mode replay, not for ramp"),
        ({"mode": "ab", "requests": 5}, "--requests is for mode offline, not for ab"),
        ({"budget_seconds": 5.0}, "--budget-seconds is for mode knee or offline, not for ramp"),
        ({"resume": "x"}, "--resume is for mode soak, not for ramp"),
        ({"mode": "replay", "trace": "/nowhere.csv"}, "--trace /nowhere.csv cannot be read: No such file"),
        ({"rounds": 0}, "--rounds must be at least 1"),
        ({"data_label": "kind"}, "--data-label goes with --data"),
        ({"data_columns": "x=y"}, "--data-columns goes with --data"),
        ({"data": "x.csv", "data_columns": "x"}, "--data-columns 'x' is not understood"),
        ({"data": "x.csv", "data_label": "kind", "rows": "1,4"}, "--data-label goes with --rows 1"),
        (
            {"data": "x.csv", "slo": "[long] p99<5ms"},
            r"'\[long\] p99<5ms' is of a slice, which takes",
        ),
        ({"mode": "knee", "data": "x.csv", "data_label": "k", "slo": "[long] p99<5ms"}, "--slo 'p99<50ms'"),
        ({"burstiness": 0.0}, "--burstiness must be at least"),
        ({"run_id": "../elsewhere"}, "plain folder name"),
    ],
)
def test_bad_options_are_one_sentence(given, sentence):
    with pytest.raises(ScenarioError, match=sentence):
        scenario(**given)


def test_hold_takes_rates_in_any_order():
    assert scenario(rates="20,10", mode="hold").rates == (20, 10)


def test_several_objectives():
    resolved = scenario(slo="p99<50ms,errors<0.1%;p50<10ms")
    assert resolved.slos == (Slo(99, 50, 0.001), Slo(50, 10))
    assert resolved.as_json()["slo"][0] == {"percentile": 99, "latency_ms": 50, "max_error_rate": 0.001}


def test_rows_of_a_file_and_an_objective_of_a_slice():
    found = scenario(
        data="a/rows.csv", data_order="drawn", data_reuse="unique", data_columns="x=pixels, y = m0..m3:uint8",
        data_label="kind", slo="[long] p99<200ms,errors<1%;p99<50ms,errors<2%", mode="knee",
    )  # fmt: skip
    said = {"path": "a/rows.csv", "order": "drawn", "reuse": "unique", "label": "kind"}
    assert found.as_json()["data"] == said | {"columns": {"x": "pixels", "y": "m0..m3:uint8"}}
    assert found.as_json()["slo"][0]["slice"] == "long"
    # a search is for all arrivals, and what slices want is no veto to it
    assert (found.objective.limits, found.searched_slo) == ((("", 50),), "p99<50ms")
    assert [term.text for term in found.vetoes] == ["errors<2%"]
    assert "data" not in scenario().as_json()


@pytest.mark.parametrize(
    ("slo", "searched", "vetoes"),
    [
        ("p99 ttft<450ms,p99 tpot<40ms", "p99 ttft<450ms, p99 tpot<40ms", []),
        ("p99 ttft<450ms,p95 tpot<40ms,p95<9s", "p99 ttft<450ms", ["p95 tpot<40ms", "p95<9000ms"]),
        (
            "p99 ttft<450ms,p99 tpot<40ms,goodput>95%,errors<1%",
            "p99 ttft<450ms, p99 tpot<40ms",
            ["goodput>95%", "errors<1%"],
        ),
        ("p99<50ms,goodput>99.5%,errors<1%", "p99.5<50ms", ["errors<1%"]),
        ("p99 ttft<450ms;p99<9s", "p99 ttft<450ms", ["p99<9000ms"]),
        ("errors<1%;p90 tpot<40ms", "p90 tpot<40ms", ["errors<1%"]),
    ],
)
def test_limits_with_one_percentile_are_searched_together_and_the_others_are_a_veto(slo, searched, vetoes):
    found = scenario(slo=slo, mode="knee")
    assert found.searched_slo == searched
    assert [term.text for term in found.vetoes] == vetoes


def test_no_model_guides_a_search_for_tokens():
    with pytest.raises(ScenarioError, match="--guided on: there is no model of p99 ttft<450ms"):
        scenario(slo="p99 ttft<450ms", mode="knee", guided="on")


def test_no_file_can_be_named_in_the_start_form():
    assert next(option for option in OPTIONS if option.name == "data").at_start


def test_option_help_shows_as_written():
    # argparse formats it, Locust's web page does not: a percent sign would show wrong in one of them
    assert not any("%" in option.what for option in OPTIONS)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_help_says_the_default(option):
    said = re.search(r"\[default: ([^];]*)(?:; [^]]*)?\]$", option.what)
    if option.default == "" or option.name == "triton-generate-body":  # a template, too long for a help text
        assert not said
    else:
        assert type(option.default)(said[1]) == option.default


def test_a_search_is_for_the_share_that_may_miss():
    objective = scenario(mode="knee", slo="p99<50ms").objective
    assert (objective.limits, objective.target) == ((("", 50),), pytest.approx(0.01))
