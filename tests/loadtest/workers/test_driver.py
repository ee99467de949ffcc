"""What a load process says that cannot go on: that it failed, and not that it is done. And what becomes of garbage."""

import gc
import time
import weakref

import gevent
import pytest
from asked import RESULT, Raw, raw_endpoint, raw_inputs
from litter import Ring

from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
from tailrate.loadtest.engine.endpoint.credentials import Keys
from tailrate.loadtest.engine.endpoint.protocol import BROKE_OFF
from tailrate.loadtest.engine.endpoint.servers import Servers
from tailrate.loadtest.engine.scenario.arrivals import Pattern
from tailrate.loadtest.engine.scenario.steps import LoadStep
from tailrate.loadtest.engine.workers.driver import Driver
from tailrate.loadtest.engine.workers.sessions import Sessions
from tailrate.loadtest.engine.workers.work_order import WorkOrder


class Failing(Servers):
    """Every answer takes ten milliseconds, and the third is none."""

    def __init__(self):
        super().__init__(5, Keys())
        self.sent = 0

    def client(self, of, protocol=""):
        return self

    def send(self, *_):
        sent_ns = time.monotonic_ns()
        self.sent += 1
        if self.sent == 3:
            raise RuntimeError("the third")
        gevent.sleep(0.01)
        return EndpointAnswer("200", sent_ns, time.monotonic_ns(), body=RESULT)


def order(step):
    base = Base.here()
    start_ns = base.wall_ns(time.monotonic_ns())
    return WorkOrder(0, start_ns, base, 0, 1, Pattern("constant"), (step,), (raw_endpoint("http://nowhere"),))


def driven(step):
    """What was reported, and what was sent, by a driver that fails."""
    told, rows, servers = [], [], Failing()

    def report(kind, content):
        told.append(kind)
        if kind == "rows":
            rows.extend(content["batch"].to_pylist())

    driver = Driver(servers, raw_inputs(b"x"), 100, report)
    with pytest.raises(RuntimeError, match=r"^the third$"):
        driver.execute(order(step))
    with gevent.Timeout(1):
        driver.halt()  # has nothing to wait for
    return told, rows, servers


def test_an_error_beside_the_schedule_ends_it_and_keeps_the_rows_that_there_are(capsys):
    told, rows, servers = driven(LoadStep(0, "null", 100.0, 60.0, 0.0, 0, 1))
    assert "done" not in told
    assert servers.sent <= 10  # and not six thousand
    assert sorted(row["seq"] for row in rows) == [seq for seq in range(servers.sent) if seq != 2]
    assert {row["status"] for row in rows} == {"200"}
    assert "the third" in capsys.readouterr().err


def test_an_error_in_a_closed_loop_is_said_when_the_others_have_ended():
    told, rows, servers = driven(LoadStep(0, "null", 0.0, 60.0, 0.0, 0, 1, concurrency=4, requests=20))
    assert "done" not in told
    assert servers.sent == 20
    assert sorted(row["seq"] for row in rows) == [seq for seq in range(20) if seq != 2]


def test_an_error_of_the_schedule_itself_loses_no_row(monkeypatch):
    def broken(walk):
        yield next(walk)
        yield next(walk)
        raise RuntimeError("the third")

    class Broken:
        between = staticmethod(broken)
        answered = dropped = staticmethod(lambda *_: None)

    monkeypatch.setattr(Sessions, "of", lambda *_: Broken())
    told, rows, servers = driven(LoadStep(0, "null", 100.0, 60.0, 0.0, 0, 1))
    assert "done" not in told
    assert servers.sent == 2
    # no more than was due by then, some of it cut off by the end
    assert sorted(row["seq"] for row in rows) == [0, 1]


@pytest.mark.parametrize(("flaw", "status"), [(f"{BROKE_OFF}: no end", "cut"), ("it is no answer", "bad_answer")])
def test_what_broke_off_by_what_it_holds_is_cut(monkeypatch, flaw, status):
    monkeypatch.setattr(Raw, "flaw", lambda *_: flaw)
    _, rows, _ = driven(LoadStep(0, "null", 100.0, 60.0, 0.0, 0, 1))
    assert {(row["status"], row["error"]) for row in rows} == {(status, f"200: {flaw}")}
    assert {row["finish"] for row in rows} == {"cut" if status == "cut" else None}


def test_garbage_is_looked_for_when_rows_have_gone():
    made = []

    class Littering(Failing):
        def send(self, *words):
            made.append(weakref.ref(Ring()))
            self.sent = 0
            return super().send(*words)

    gc.disable()
    try:
        Driver(Littering(), raw_inputs(b"x"), 100, lambda *_: None).execute(
            order(LoadStep(0, "null", 50.0, 1.0, 0.0, 0, 1))
        )
        assert made[0]() is None
        assert made[-1]() is not None  # it is none of Python's own doing
    finally:
        gc.enable()
