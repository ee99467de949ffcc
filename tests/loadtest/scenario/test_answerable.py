"""What a plan can answer is said before its load."""

from dataclasses import replace

import pytest

from tailrate.analysis.judging.judge import Window, at_rate
from tailrate.analysis.judging.share import Count, terms
from tailrate.analysis.records.objective import Slo
from tailrate.loadtest.engine.modes.ab import Ab
from tailrate.loadtest.engine.modes.closed import Closed
from tailrate.loadtest.engine.modes.knee import KneeSearch
from tailrate.loadtest.engine.modes.mixed import Mixed
from tailrate.loadtest.engine.modes.offline import Offline
from tailrate.loadtest.engine.modes.ramp import Ramp
from tailrate.loadtest.engine.modes.replay import Replay
from tailrate.loadtest.engine.modes.single import Single
from tailrate.loadtest.engine.modes.soak import Soak
from tailrate.loadtest.engine.scenario.answerable import sentences
from tailrate.loadtest.engine.scenario.arrivals import Pattern
from tailrate.loadtest.engine.scenario.scenario import Scenario

PLAN = Scenario(
    "x", "m", (), mode=Ramp(), rates=(6.0, 40.0), step_seconds=13.0, settle_seconds=1.0, pattern=Pattern("poisson"),
    slos=(Slo.parse("p99<50ms"),),
)  # fmt: skip


def said(**more):
    return list(sentences(replace(PLAN, **more), 2))


def test_each_term_has_the_rate_from_which_on_and_the_steps_that_others_take():
    assert said() == ["p99<50ms can be answered from 38/s upward; 6/s needs steps of 78 s"]
    assert said(rates=(40.0,)) == ["p99<50ms can be answered from 38/s upward"]
    assert len(said(slos=(Slo.parse("p99<50ms, goodput>99%, errors<0.1%"),))) == 3
    assert said(slos=()) == []


def test_an_objective_of_a_slice_takes_as_many_more_as_it_is_a_part():
    slos = (Slo.parse("p99<50ms"), Slo.parse("[long] p99<50ms"))
    found = list(sentences(replace(PLAN, slos=slos), 2, {"long": 0.25, "short": 0.75}))
    assert found[0] == "p99<50ms can be answered from 38/s upward; 6/s needs steps of 78 s"
    both = "6/s needs steps of 5 min 7 s; 40/s needs steps of 47 s"
    assert found[1] == f"[long] p99<50ms can be answered from 153/s upward; {both}"


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"mode": Mixed()}, "from 76/s upward"),  # each of two gets half of it
        ({"mode": Ab(rounds=4)}, "from 9.5/s upward; 6/s needs steps of 21 s"),
        ({"mode": Soak(total_seconds=3601.0), "rates": (0.1,)}, "from 0.25/s upward; 0.1/s needs a soak of"),
    ],
)
def test_what_a_mode_makes_of_the_rate(more, wanted):
    (sentence,) = said(**more)
    assert wanted in sentence


@pytest.mark.parametrize("mode", [KneeSearch(), Closed(), Single(), Offline(), Replay()], ids=lambda mode: mode.name)
def test_where_there_is_no_rate_before_nothing_is_said(mode):
    assert said(mode=mode) == []


def test_steps_as_long_as_is_said_answer_and_shorter_ones_do_not():
    (term,) = terms(PLAN.slos[0])
    for seconds, kept in ((78, True), (76, None)):
        n = 6 * (seconds - 1)
        assert at_rate(term, [Window((Count(n, 0),))], 0).kept is kept
