"""Which request carries which rows: counted, however many load processes share the arrivals."""

from collections import Counter
from itertools import chain, islice

import pytest

from tailrate.loadtest.engine.scenario.arrivals import Pattern, share
from tailrate.loadtest.engine.scenario.steps import LoadStep
from tailrate.loadtest.engine.workers.input.deal import Deal, Handout


def carried(deal, requests):
    return list(chain.from_iterable(deal.of(number) for number in range(requests)))


def test_in_order_means_as_in_the_file_and_then_again():
    assert carried(Deal(5, False, False, 1), 12) == [*range(5), *range(5), 0, 1]
    assert carried(Deal(5, False, False, 1, (2,)), 5) == [*range(5), *range(5)]


@pytest.mark.parametrize("sizes", [(1,), (3,), (1, 4)])
@pytest.mark.parametrize("drawn", [False, True])
def test_each_row_goes_out_once_before_any_comes_again(drawn, sizes):
    rows = carried(Deal(97, drawn, False, 7, sizes), 2000)
    for number in range(len(rows) // 97):
        assert sorted(rows[97 * number : 97 * (number + 1)]) == list(range(97))
    assert (rows[:97] == list(range(97))) is not drawn
    assert (rows[:97] == rows[97:194]) is not drawn


def test_the_draw_follows_from_the_seed():
    assert carried(Deal(50, True, False, 1), 120) == carried(Deal(50, True, False, 1), 120)
    assert carried(Deal(50, True, False, 1), 120) != carried(Deal(50, True, False, 2), 120)


@pytest.mark.parametrize("sizes", [(1,), (3,), (1, 4), (200,)])
def test_unique_rows_are_as_many_requests_as_fit(sizes):
    deal = Deal(100, True, True, 3, sizes)
    assert max(Counter(carried(deal, deal.most)).values(), default=1) == 1
    assert deal.before(deal.most) <= 100 < deal.before(deal.most + 1)
    assert Deal(5000, False, True, 3, (1, 4)).most > 1024  # more than a period
    assert Deal(100, True, False, 3, sizes).most is None


@pytest.mark.parametrize("processes", [1, 3, 4])
@pytest.mark.parametrize("unique", [False, True])
def test_over_all_load_processes_each_row_is_used_as_often_as_the_rule_says(processes, unique):
    """The shares as load processes take them, of steps with as many arrivals as chance gives them."""
    deal = Deal(1000, True, unique, 5)
    handout, pattern, seen = Handout(deal), Pattern(), Counter()
    for index in range(6):
        step = LoadStep(index, "m/v", 50.0, 2.0, 0.0, index, seed=100 + index)
        schedule = step.offsets(pattern)
        first = handout.first(step.seed, step.rate, step.seconds, step.arrivals(pattern))
        assert first is not None
        for number in range(processes):
            for arrival in share(schedule, index, number, processes):
                seen.update(deal.of(first + arrival.seq))
    total = sum(seen.values())
    assert 400 < total < 800
    assert set(seen.values()) == {1}
    assert set(seen) == {deal.of(number)[0] for number in range(total)}


def test_endpoints_that_take_turns_carry_the_same_rows_unless_each_goes_out_once():
    reused, unique = (Handout(Deal(1000, False, unique, 1)) for unique in (False, True))
    assert [reused.first(seed, 10.0, 5.0, 50) for seed in (1, 1, 2, 2)] == [0, 0, 50, 50]
    assert [unique.first(seed, 10.0, 5.0, 50) for seed in (1, 1, 2, 2)] == [0, 50, 100, 150]


def test_a_step_for_which_there_are_too_few_rows_gets_none():
    handout = Handout(Deal(100, False, True, 1))
    assert handout.first(1, 10.0, 5.0, 60) == 0
    assert handout.first(2, 10.0, 5.0, 60) is None
    assert handout.left == 40
    assert handout.first(3, 10.0, 4.0, 40) == 60
    assert handout.first(4, 0.0, 4.0, 0) is None


def test_a_closed_loop_begins_where_the_last_one_came_to():
    handout = Handout(Deal(100, False, True, 1))
    assert handout.first(1, 0.0, 5.0, 0) == 0
    handout.used(37)
    assert handout.first(2, 0.0, 5.0, 0) == 37
    assert [*islice(iter(range(handout.left)), 1)] == [0]
    handout.used(12)
    assert handout.left == 63
