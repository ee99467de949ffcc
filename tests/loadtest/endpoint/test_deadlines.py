"""One timer for many deadlines, by the loop's own clock."""

import time

import gevent
import pytest
from gevent.event import Event

from tailrate.loadtest.engine.endpoint.deadlines import Deadlines

SHORT_S = 0.05


def waiting(deadlines, until, found):
    deadline, began = deadlines.begin(), time.monotonic()
    try:
        until.wait()
        found.append("in time")
    except TimeoutError as problem:
        assert time.monotonic() - began >= SHORT_S
        found.append(str(problem))
    finally:
        deadlines.end(deadline)


def test_each_comes_when_it_is_due_and_to_whom_it_is_due_alone():
    deadlines, found = Deadlines(SHORT_S), []
    never, soon = Event(), Event()
    greenlets = [gevent.spawn(waiting, deadlines, never if number % 2 else soon, found) for number in range(6)]
    gevent.sleep(0)
    soon.set()
    gevent.joinall(greenlets[::2], timeout=5)
    gevent.sleep(SHORT_S / 5)
    late = gevent.spawn(waiting, deadlines, never, found)  # the timer is set anew for it
    gevent.joinall([*greenlets, late], timeout=5)
    assert found == ["in time"] * 3 + ["no whole answer in time"] * 4


def test_one_that_is_begun_when_another_comes_has_its_own_time():
    deadlines, found = Deadlines(SHORT_S), []

    def twice():
        waiting(deadlines, Event(), found)
        waiting(deadlines, Event(), found)

    greenlets = [gevent.spawn(twice), gevent.spawn(twice)]
    gevent.joinall(greenlets, timeout=5)
    assert len(found) == 4


def test_it_ends_what_the_main_greenlet_waits_for():
    deadlines = Deadlines(SHORT_S)
    deadline = deadlines.begin()
    with pytest.raises(TimeoutError):
        gevent.sleep(5)
    deadlines.end(deadline)


def test_no_timer_is_left_when_nothing_is_open():
    deadlines = Deadlines(1000)
    one, other = deadlines.begin(), deadlines.begin()
    deadlines.end(one)
    assert deadlines._timer is not None
    deadlines.end(other)
    assert deadlines._timer is None
    assert not deadlines._open
