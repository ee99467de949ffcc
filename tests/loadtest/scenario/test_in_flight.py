"""`--max-in-flight auto`: as many as the rate makes when nothing answers, if this machine can hold them."""

import resource

import numpy as np
import pytest
from test_scenario import scenario as scenario_of

from tailrate.loadtest.engine.scenario import in_flight
from tailrate.loadtest.engine.scenario.scenario import ScenarioError

ROOM = {"open files": 4000, "local ports": 20_000, "memory": 100_000}


@pytest.fixture(autouse=True)
def _machine(monkeypatch):
    monkeypatch.setattr(in_flight, "room", lambda: dict(ROOM))


@pytest.mark.parametrize(
    ("rate", "timeout_s", "wanted"),
    [
        (100.0, 10.0, (1159, in_flight.BY_RATE)),
        (1000.0, 10.0, (4000, "open files")),
        (None, 10.0, (4000, "open files")),
        (0.01, 1.0, (1, in_flight.BY_RATE)),
    ],
)
def test_the_tightest_binds_and_is_named(rate, timeout_s, wanted):
    assert in_flight.parse("auto", rate, timeout_s) == wanted


def test_no_arrival_is_dropped_where_nothing_answers_within_the_time_out():
    most, _ = in_flight.parse("auto", 200.0, 5.0)
    for seed in range(20):
        due = np.cumsum(np.random.default_rng(seed).exponential(1 / 200, 20_000))
        under_way = np.arange(len(due)) - np.searchsorted(due, due - 5.0)
        assert 0.9 * 1000 < under_way.max() < most


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", ""])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match="--max-in-flight must be at least 1, or auto"):
        in_flight.parse(text, 1.0, 1.0)


def plan_of(**given):
    return scenario_of(**{"max_in_flight": "auto"} | given)


def test_a_plan_has_it_with_its_reason():
    scenario = plan_of(rates="10,100", mode="ramp")
    assert (scenario.max_in_flight, scenario.in_flight_by) == (1159, in_flight.BY_RATE)
    assert scenario.as_json()["in_flight_by"] == in_flight.BY_RATE
    assert plan_of(rates="10", mode="knee", slo="p99<50ms").max_in_flight == 4000  # it goes as high as it must
    offline = plan_of(mode="offline")
    assert offline.mode.levels(offline) == (4000,)
    given = plan_of(max_in_flight="70")
    assert (given.max_in_flight, "in_flight_by" in given.as_json()) == (70, False)
    with pytest.raises(ScenarioError, match="or auto, not 'few'"):
        plan_of(max_in_flight="few")


def test_this_machine_has_room(monkeypatch):
    monkeypatch.undo()
    found = in_flight.room()
    assert found["open files"] == int(0.8 * resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    assert found["local ports"] < 65_536
    assert found["memory"] > 100
