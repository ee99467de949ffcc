"""Who gets which share, when its start is said, and what is owed by those that go down."""

from dataclasses import replace

import gevent
import msgpack
import pytest
from asked import raw_endpoint

from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.scenario.arrivals import Pattern
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.loadtest.engine.scenario.steps import LoadStep
from tailrate.loadtest.engine.workers import dispatch

SECOND = 10**9


class Crew:
    """Load processes in virtual time: each message takes `way_ns`, and getting ready for an order `ready_ns`."""

    def __init__(self, count, way_ns=0, ready_ns=0):
        self.names = [f"w{number}" for number in range(count)]
        self.now_ns = 0
        self.way_ns, self.ready_ns = way_ns, ready_ns
        self.shares, self.heard_ns, self.lost, self.cuts = {}, {}, [], 0
        self.told = []
        self.problem = ""
        self.dispatch = dispatch.Dispatch(self, Base(0), lambda: self.now_ns, lambda *what: self.lost.append(what[1:]))

    def members(self):
        return list(self.names)

    def bases(self, members, base):
        return dict.fromkeys(members, base)

    def give(self, member, order):
        assert order.start_ns == 0
        self.now_ns += self.way_ns
        self.shares[member] = order
        if member in self.names:
            gevent.spawn(self._prepared, member)

    def _prepared(self, member):
        self.now_ns += self.ready_ns
        self.dispatch.done(member)

    def start(self, member, start_ns):
        self.now_ns += self.way_ns
        self.heard_ns[member] = self.now_ns
        self.told.append((member, start_ns))
        if start_ns is not None:
            self.begun(member, start_ns)

    def begun(self, member, start_ns):
        gevent.spawn(self.dispatch.done, member)

    def cut(self):
        self.cuts += 1

    def halt(self): ...


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
    monkeypatch.setattr(dispatch, "LOOK_S", 0.01)


def steps(count=1, rate=10.0, seconds=8.0):
    return [LoadStep(number, "a/x", rate, seconds, 0.0, 0, 1, start_s=seconds * number) for number in range(count)]


@pytest.mark.parametrize(("count", "way_ms", "ready_s"), [(1, 0.3, 0.1), (8, 1, 0.5), (64, 1, 2.0), (64, 4, 0.0)])
def test_everybody_hears_of_the_start_before_it_however_long_it_takes_to_get_ready(count, way_ms, ready_s):
    crew = Crew(count, way_ns=int(way_ms * 1e6), ready_ns=int(ready_s * SECOND))
    crew.dispatch.prepare(steps(), [raw_endpoint("http://nowhere")], Pattern())
    order = crew.dispatch.start()
    crew.dispatch.wait()
    assert {start_ns for _, start_ns in crew.told} == {order.start_ns}
    assert len(crew.heard_ns) == count
    assert max(crew.heard_ns.values()) < order.start_ns
    assert sorted(share.index for share in crew.shares.values()) == list(range(count))
    assert {share.count for share in crew.shares.values()} == {count}
    assert not crew.lost


def test_one_that_goes_down_while_it_gets_ready_leaves_its_share_to_the_others():
    crew = Crew(3)
    given = crew.give

    def give(member, order):
        if member == "w1" and member in crew.names:
            crew.names.remove(member)
        given(member, order)

    crew.give = give
    crew.dispatch.prepare(steps(), [raw_endpoint("http://nowhere")], Pattern())
    assert [(crew.shares[name].index, crew.shares[name].count) for name in ("w0", "w2")] == [(0, 2), (1, 2)]
    # what they had got ready for is taken back first
    assert crew.told == [("w0", None), ("w1", None), ("w2", None)]
    crew.dispatch.start()
    crew.dispatch.wait()
    assert not crew.lost
    assert crew.dispatch.went_down() == 0


def test_one_that_fails_is_not_waited_for_while_it_gets_ready():
    crew = Crew(2)

    def prepared(member):
        if member == "w1":
            crew.problem = "w1 cannot"
        else:
            crew.dispatch.done(member)

    crew._prepared = prepared
    with gevent.Timeout(5), pytest.raises(ScenarioError, match=r"^w1 cannot$"):
        crew.dispatch.prepare(steps(), [raw_endpoint("http://nowhere")], Pattern())
    crew.dispatch.halt()
    assert crew.told == [("w0", None), ("w1", None)]
    assert not crew.lost


def test_one_that_fails_on_the_way_owes_what_was_due_and_the_others_may_end(monkeypatch):
    monkeypatch.setattr(dispatch, "HALT_S", -0.9)
    crew = Crew(2)

    def begun(member, start_ns):
        crew.now_ns = start_ns + 2 * SECOND
        crew.problem = "w1 cannot"

    crew.begun = begun
    crew.halt = lambda: crew.dispatch.done("w0")
    crew.dispatch.prepare(steps(), [raw_endpoint("http://nowhere")], Pattern())
    crew.dispatch.start()
    with gevent.Timeout(5), pytest.raises(ScenarioError, match=r"^w1 cannot$"):
        crew.dispatch.wait()
    crew.dispatch.halt()
    assert crew.lost == [(1, "w1")]
    assert crew.dispatch.went_down() == 10


def test_without_anybody_there_is_no_order():
    with pytest.raises(ScenarioError, match="no load process is left"):
        Crew(0).dispatch.prepare(steps(), [raw_endpoint("http://nowhere")], Pattern())


def test_a_process_that_is_lost_owes_what_was_due_of_each_part():
    crew = Crew(1)

    def begun(member, start_ns):
        crew.now_ns = start_ns + 10 * SECOND
        crew.names.clear()

    crew.begun = begun
    crew.dispatch.prepare(steps(3), [raw_endpoint("http://nowhere")] * 3, Pattern())
    crew.dispatch.start()
    crew.dispatch.wait()
    assert crew.lost == [(0, "w0")]
    assert crew.dispatch.went_down() == 80 + 20  # the first part, and two seconds of the second


def test_a_step_begins_and_ends_at_the_nearest_nanosecond():
    crew = Crew(1)
    step = LoadStep(0, "m/a", 1.0, 4.1, 0.0, 0, 1, start_s=2.01)
    crew.dispatch.prepare([step], [raw_endpoint("http://a")], Pattern())
    assert replace(crew.shares["w0"], start_ns=7).begun_ns(step) == 2_010_000_007
    assert step.length_ns == 4_100_000_000


def test_what_is_halted_before_its_start_is_not_begun():
    crew = Crew(2)
    crew.dispatch.prepare(steps(), [raw_endpoint("http://nowhere")], Pattern())
    crew.dispatch.halt()
    assert crew.told == [("w0", None), ("w1", None)]
    assert not crew.dispatch.under_way
    assert not crew.lost


def test_an_order_goes_over_the_wire_and_back():
    crew = Crew(2)
    crew.dispatch.prepare(
        steps(2), [raw_endpoint("http://a"), raw_endpoint("http://b")], Pattern("gamma", 0.5, trace_ns=(1, 2))
    )
    order = crew.shares["w1"]
    sent = msgpack.packb(order.as_message())  # as Locust does
    assert type(order).from_message(msgpack.unpackb(sent, strict_map_key=False)) == order
