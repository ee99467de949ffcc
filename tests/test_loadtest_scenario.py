from argparse import Namespace

import pytest

from analysis.records import Slo
from loadtest.engine.scenario import OPTIONS, ScenarioError, from_options, parse_rates


def options(**given):
    return Namespace(**({option.key: option.default for option in OPTIONS} | given))


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
    plan = from_options("bert", "bert", options(rates="10,20")).steps(["bert/eager", "bert/compiled"])
    assert [(step.endpoint, step.rate, step.block) for step in plan] == [
        ("bert/eager", 10, 0),
        ("bert/compiled", 10, 1),
        ("bert/eager", 20, 2),
        ("bert/compiled", 20, 3),
    ]
    assert plan[0].seed == plan[1].seed != plan[2].seed
    assert [step.index for step in plan] == [0, 1, 2, 3]


def test_mixed_drives_both_at_once_at_half_the_rate():
    plan = from_options("bert", "bert", options(rates="10,20", mode="mixed")).steps(["a/x", "a/y"])
    assert [(step.rate, step.block) for step in plan] == [(5, 0), (5, 0), (10, 1), (10, 1)]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"settle_seconds": 30.0}, "leaves nothing"),
        ({"rates": "20,10"}, "must rise in mode ramp"),
        ({"rows": 0}, "--rows must be at least 1"),
        ({"timeout": 0.0}, "--timeout"),
        ({"timeout": float("nan")}, "--timeout"),
        ({"slo": "p99<50"}, "--slo"),
        ({"mode": "sideways"}, "known are ramp"),
        ({"arrivals": "bursty"}, "known are constant"),
        ({"run_id": "../elsewhere"}, "plain folder name"),
    ],
)
def test_bad_options_are_one_sentence(given, sentence):
    with pytest.raises(ScenarioError, match=sentence):
        from_options("bert", "bert", options(**given))


def test_hold_takes_rates_in_any_order():
    assert from_options("bert", "bert", options(rates="20,10", mode="hold")).rates == (20, 10)


def test_several_objectives():
    scenario = from_options("bert", "bert", options(slo="p99<50ms,errors<0.1%;p50<10ms"))
    assert scenario.slos == (Slo(99, 50, 0.001), Slo(50, 10))
    assert scenario.as_json()["slo"][0] == {"percentile": 99, "latency_ms": 50, "max_error_rate": 0.001}


def test_option_help_shows_as_written():
    # argparse formats it, Locust's web page does not: a percent sign would show wrong in one of them
    assert not any("%" in option.what for option in OPTIONS)
