import socket
import time
from contextlib import nullcontext

import gevent
import numpy as np
import pyarrow as pa
import pytest
from asked import RESULT, raw_endpoint, raw_inputs

from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
from tailrate.loadtest.engine.endpoint.credentials import Keys
from tailrate.loadtest.engine.endpoint.payloads import Payloads
from tailrate.loadtest.engine.endpoint.servers import Servers
from tailrate.loadtest.engine.scenario.arrivals import Pattern
from tailrate.loadtest.engine.scenario.steps import LoadStep
from tailrate.loadtest.engine.workers import selfcheck
from tailrate.loadtest.engine.workers.driver import Driver
from tailrate.loadtest.engine.workers.work_order import WorkOrder

GOOD = {"kept": 1.0, "late_p99_ms": 0.3, "cpu_pct": 20.0, "p50_ms": 0.5, "p99_ms": 0.9, "rps": 500.0}
LATE = GOOD | {"late_p99_ms": 40.0}
INPUTS = raw_inputs(b"x" * 1200)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(RESULT), RESULT)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TAILRATE_CACHE", str(tmp_path / "cache"))


def test_the_null_server_answers_whatever_comes_in_whatever_pieces():
    with selfcheck.null_server(ANSWER) as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as wire:
            body = b"a" * 70_000
            head = b"POST / HTTP/1.1\r\nInference-Header-Content-Length: 7\r\nContent-Length: 70000\r\n\r\n"
            for piece in (head[:9], head[9:] + body[:5], body[5:40_000], body[40_000:] + b"GET / HTTP/1.1\r\n\r\n"):
                wire.sendall(piece)
                time.sleep(0.02)
            wire.settimeout(5)
            answer = b""
            while answer.count(b"outputs") < 2:
                answer += wire.recv(4096)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", port)):
        pass


def order(step):
    return WorkOrder(0, 0, Base.here(), 0, 1, Pattern("poisson"), (step,), (raw_endpoint("http://nowhere"),), ANSWER)


@pytest.mark.live
def test_a_process_measures_itself(monkeypatch):
    took_ns, execute = [], Driver.execute

    def timed(driver, what):
        began_ns = time.monotonic_ns()
        execute(driver, what)
        took_ns.append(time.monotonic_ns() - began_ns)

    monkeypatch.setattr(Driver, "execute", timed)
    asked = order(LoadStep(0, "null", 100.0, 1.0, 0.0, 0, 1))
    due_ns = asked.steps[0].offsets(asked.pattern)
    found = selfcheck.measure(asked, INPUTS, 5.0, 100)
    assert found["kept"] == 1
    # all of them, in no less time than they were due in and no more than it took, if this machine stood still
    assert 1e9 * len(due_ns) / took_ns[-1] <= found["rps"] <= 1e9 * len(due_ns) / (due_ns[-1] - due_ns[0]) + 0.1
    assert 0 <= found["p50_ms"] <= found["p99_ms"]
    assert found["late_p99_ms"] >= 0
    assert 0 < found["cpu_pct"] <= 110
    closed = selfcheck.measure(order(LoadStep(0, "null", 0.0, 1.0, 0.0, 0, 1, concurrency=4)), INPUTS, 5.0, 100)
    assert closed["rps"] > found["rps"]


def test_one_hiccup_in_a_hundred_is_late_as_in_the_report(monkeypatch):
    late_ns = np.where(np.arange(100) == 50, 95_000_000, 100_000)

    class Hiccup:
        def __init__(self, servers, inputs, max_in_flight, report):
            self._report = report

        def execute(self, what):
            times = {"intended_ns": np.zeros(100, int), "sent_ns": late_ns, "done_ns": late_ns + 1_000_000}
            self._report("rows", {"batch": pa.record_batch({"status": ["200"] * 100, **times})})
            self._report("done", {"due": 100, "watched": [(0, {"cpu_pct": 1.0})]})

    monkeypatch.setattr(selfcheck, "Driver", Hiccup)
    monkeypatch.setattr(selfcheck, "null_server", lambda *_: nullcontext("http://nowhere"))
    found = selfcheck.measure(order(LoadStep(0, "null", 100.0, 1.0, 0.0, 0, 1)), INPUTS, 5.0, 100)
    assert [found[name] for name in ("late_p99_ms", "p50_ms", "p99_ms")] == [95.0, 1.1, 96.0]
    assert selfcheck.search(100.0, lambda _: [found], closed=False).safe_rps == 0


def test_what_is_not_kept_is_halved():
    asked = []

    def ask(rate):
        asked.append(rate)
        return [GOOD, GOOD if rate <= 300 else LATE]  # one late process is enough

    found = selfcheck.search(1000.0, ask, closed=False)
    assert asked == [1000, 500, 250]
    assert (found.wanted_rps, found.safe_rps, found.late_p99_ms) == (1000, 250, 0.3)
    assert "keep 250/s (P50 0.5 ms, P99 0.9 ms, late P99 0.3 ms)" in found.sentence(False)
    assert "against a null server the load processes reach 250/s" in found.sentence(True)


def test_a_machine_that_keeps_nothing_has_no_safe_rate():
    assert selfcheck.search(1000.0, lambda _: [LATE], closed=False).safe_rps == 0


def test_a_closed_loop_adds_up():
    assert selfcheck.search(0.0, lambda _: [GOOD, GOOD], closed=True).safe_rps == 1000


def test_what_was_kept_today_is_remembered(tmp_path):
    check = selfcheck.search(100.0, lambda _: [GOOD], closed=False)
    assert selfcheck.remembered("k", 100.0) is None
    selfcheck.remember("k", check)
    selfcheck.remember("other", check)
    assert selfcheck.remembered("k", 100.0) == check
    assert selfcheck.remembered("k", 50.0) == check
    assert selfcheck.remembered("k", 101.0) is None  # not tried
    (tmp_path / "cache" / "self-check.json").write_text("half a fi")
    assert selfcheck.remembered("k", 100.0) is None
    selfcheck.remember("k", check)  # heals
    assert selfcheck.remembered("k", 100.0) == check


def test_an_old_check_does_not_count(monkeypatch):
    selfcheck.remember("k", selfcheck.search(100.0, lambda _: [GOOD], closed=False))
    now = time.time()
    monkeypatch.setattr(selfcheck.time, "time", lambda: now + selfcheck.DAY_S + 1)
    assert selfcheck.remembered("k", 100.0) is None


def test_bodies_of_like_size_share_a_check():
    def key(size, processes=1, answer=100, protocol="oip"):
        return selfcheck.key(protocol, Payloads((b"x" * size,), ({},), (1,)), b"x" * answer, processes, "poisson")

    assert key(1100) == key(2000) != key(2100)
    assert key(1100) != key(1100, 2)
    assert key(1100) == key(1100, answer=120) != key(1100, answer=200)
    assert key(1100) != key(1100, protocol="json")


def test_each_of_two_processes_has_half_of_what_may_be_under_way():
    class Slow(Servers):
        now = most = 0

        def client(self, of, protocol=""):
            return self

        def send(self, *_):
            sent_ns = time.monotonic_ns()
            self.now += 1
            self.most = max(self.most, self.now)
            gevent.sleep(1.5)  # longer than all are due in, and a machine may stand still
            self.now -= 1
            return EndpointAnswer("200", sent_ns, time.monotonic_ns(), body=RESULT)

    client, base, rows = Slow(5, Keys()), Base.here(), []
    report = {"rows": lambda content: rows.extend(content["batch"].column("status").to_pylist())}
    driver = Driver(client, INPUTS, 4, lambda kind, content: report.get(kind, id)(content))
    step, start_ns = LoadStep(0, "null", 100.0, 0.2, 0.0, 0, 1), base.wall_ns(time.monotonic_ns())
    driver.execute(WorkOrder(0, start_ns, base, 0, 2, Pattern(), (step,), (raw_endpoint("http://nowhere"),)))
    assert client.most == 2
    assert sorted(rows) == ["200"] * 2 + ["dropped"] * 8
