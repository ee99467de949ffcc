"""Greenlets that are kept; where it is not about that, gevent's own pool has to do the same."""

import gc
import weakref

import gevent
import pytest
from gevent.event import Event
from gevent.pool import Pool

from tailrate.loadtest.engine.workers.on_time.under_way import UnderWay


class Theirs:
    def __init__(self):
        pool = Pool()
        self.start, self.join, self.kill = pool.spawn, pool.join, pool.kill


both = pytest.mark.parametrize("kind", [UnderWay, Theirs])


def test_each_is_begun_once_with_its_own_arguments_and_a_greenlet_that_is_done_takes_the_next():
    under_way, found, gates = UnderWay(), [], [Event() for _ in range(5)]

    def work(number, gate):
        gate.wait()
        found.append((number, gevent.getcurrent()))

    for number in range(3):
        under_way.start(work, number, gates[number])
    assert len(under_way) == 3
    gates[0].set()
    gates[1].set()
    with gevent.Timeout(5):
        while len(found) < 2:
            gevent.sleep(0)
    assert len(under_way) == 1
    under_way.start(work, 3, gates[3])
    under_way.start(work, 4, gates[4])
    assert len(under_way) == 3
    for gate in gates:
        gate.set()
    under_way.join()
    assert len(under_way) == 0
    assert sorted(number for number, _ in found) == [0, 1, 2, 3, 4]
    assert len({own for _, own in found}) == 3


@both
def test_nothing_under_way_is_waited_for_not_at_all(kind):
    with gevent.Timeout(5):
        kind().join()
        kind().kill()


@both
def test_what_fails_ends_no_other_and_its_greenlet_goes_on(capsys, kind):
    under_way, done = kind(), []
    under_way.start(lambda: 1 / 0)
    gevent.sleep(0)
    under_way.start(done.append, 1)
    under_way.join()
    assert done == [1]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_the_first_failure_is_kept_and_an_end_by_force_is_none():
    under_way = UnderWay()
    under_way.start(Event().wait)
    gevent.sleep(0)
    under_way.kill()
    assert under_way.failed is None
    under_way.start(lambda: 1 / 0)
    under_way.start([].pop)
    under_way.join()
    assert isinstance(under_way.failed, ZeroDivisionError)


@both
def test_those_that_are_killed_may_still_say_so_and_others_go_on_after_it(kind):
    under_way, ended = kind(), []

    def work(number):
        try:
            Event().wait()
        except gevent.GreenletExit:
            gevent.sleep(0)  # it may take a turn to write down
            ended.append(number)

    for number in range(3):
        under_way.start(work, number)
    gevent.sleep(0)
    under_way.kill()
    assert sorted(ended) == [0, 1, 2]
    under_way.start(ended.append, 3)
    under_way.join()
    assert ended[3:] == [3]


def test_one_that_ends_by_itself_while_all_are_killed_still_does_what_it_is_given_next():
    under_way, found, go, over = UnderWay(), [], Event(), Event()

    def first():
        go.wait()
        found.append("first")

    def following():
        found.append("next")
        over.set()

    def killed():
        try:
            Event().wait()
        except gevent.GreenletExit:
            gevent.sleep(0)  # the turn of the first, were it ended by force
            under_way.start(following)
            over.wait()
            found.append("killed")

    under_way.start(first)
    under_way.start(killed)
    gevent.sleep(0)
    go.set()  # it ends in the turn in which it would be killed
    with gevent.Timeout(5):
        under_way.kill()
    assert found == ["first", "next", "killed"]


@both
def test_what_is_begun_in_the_turn_in_which_nothing_was_under_way_is_waited_for(kind):
    under_way, found = kind(), []

    def more():
        gevent.sleep(0.01)
        found.append("more")

    under_way.start(found.append, "first")
    gevent.spawn(under_way.start, more)
    under_way.join()
    assert found == ["first", "more"]


@pytest.mark.parametrize("end", ["join", "kill"])
def test_no_greenlet_is_left_when_all_is_done(end):
    under_way, seen = UnderWay(), []
    for _ in range(5):
        under_way.start(lambda: seen.append(weakref.ref(gevent.getcurrent())))
    gevent.sleep(0)
    getattr(under_way, end)()
    gevent.sleep(0)
    gc.collect()
    assert [each() for each in seen] == [None] * 5
