"""Whatever a server answers: one row for each arrival, with the right status, and nobody else waits for it."""

import time
from collections import Counter
from contextlib import contextmanager

import gevent
import pytest
from asked import raw_endpoint, raw_inputs
from gevent.server import StreamServer
from odd import BAD, CONNECT, GOOD, ODD, OK, TIMEOUT, Odd, drawn
from often import counts

from tailrate.analysis.records.rows import REQUEST_COLUMNS
from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.loadtest.engine.endpoint.credentials import Keys
from tailrate.loadtest.engine.endpoint.servers import Servers
from tailrate.loadtest.engine.scenario.arrivals import Pattern
from tailrate.loadtest.engine.scenario.steps import LoadStep
from tailrate.loadtest.engine.workers.driver import Driver
from tailrate.loadtest.engine.workers.work_order import WorkOrder
from tailrate.serve import wire

pytestmark = pytest.mark.live

ODDLY, WELL = "/odd", "/good"
STATUSES = {OK, BAD, CONNECT, TIMEOUT}


@contextmanager
def server(odd):
    """Answers a request to /odd by its number, any other as it should be."""

    def serve(connection, _):
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                if not (piece := connection.recv(65536)):
                    return
                data += piece
            head, _, data = data.partition(b"\r\n\r\n")
            if head.startswith(f"POST {ODDLY}".encode()):
                number = int(head.partition(b"x-request-id: 0-")[2].split(b"\r\n")[0])
                found = odd(number)
                connection.sendall(found.raw)
                if found.closes:
                    return
            else:
                connection.sendall(GOOD)

    found = StreamServer(("127.0.0.1", 0), serve)
    found.start()
    try:
        yield f"http://127.0.0.1:{found.server_port}"
    finally:
        found.stop()


def driven(odd, count, *, rate=400.0, beside=100.0, timeout_s=3.0, check=None):
    """Rows of so many odd answers and of good ones beside them, and what was said of fields that could not be meant."""
    rows, said = [], {}

    def report(kind, content):
        if kind == "rows":
            rows.extend(content["batch"].to_pylist())
        elif kind == "done":
            said.update(content)

    seconds, base = count / rate, Base.here()
    steps = (LoadStep(0, "m/odd", rate, seconds, 0.0, 0, 1), LoadStep(1, "m/good", beside, seconds, 0.0, 0, 1))
    with server(odd) as url:
        endpoints = raw_endpoint(url, ODDLY, "m/odd"), raw_endpoint(url, WELL, "m/good")
        servers = Servers(timeout_s, Keys())
        driver = Driver(servers, raw_inputs(b""), 10_000, report, check=check)
        start_ns = base.wall_ns(time.monotonic_ns() + 100_000_000)
        driver.execute(WorkOrder(0, start_ns, base, 0, 1, Pattern(), steps, endpoints))
        servers.close()
    return [row for row in rows if row["step"] == 0], [row for row in rows if row["step"] == 1], said


def assert_nobody_waits(odd, good):
    """Who was due while an odd answer was waited for was answered before that was given up: most, as machines stall."""
    late, waiting = [], [row for row in odd if row["status"] == "timeout"]
    for row in good:
        over = [one["done_ns"] for one in waiting if one["sent_ns"] <= row["intended_ns"] < one["done_ns"]]
        if over:
            late.append(row["done_ns"] >= min(over))
    assert len(late) >= 0.3 * len(good)
    assert sum(late) <= 0.3 * len(late)


def test_there_are_two_hundred_odd_answers_and_each_is_another():
    assert len(ODD) >= 200
    assert len({odd.name for odd in ODD}) == len(ODD)
    assert len({(odd.raw, odd.closes) for odd in ODD}) >= 0.99 * len(ODD)


def test_each_odd_answer_has_one_row_of_the_right_status():
    odd, good, said = driven(lambda number: ODD[number], len(ODD))
    assert sorted(row["seq"] for row in odd) == list(range(len(ODD)))
    found = [(ODD[row["seq"]], row["status"], row["error"]) for row in odd]
    assert [(one.name, status, why) for one, status, why in found if status not in one.statuses] == []
    by_name = {ODD[row["seq"]].name: row for row in odd}
    assert by_name["a batch of too many"]["batch_rows"] is None
    assert by_name["a batch of a power"]["batch_rows"] is None
    assert by_name["a negative time"]["queue_ms"] is None
    assert by_name["clocks back in time"]["handled_ms"] is None
    assert len({by_name[name]["bytes_out"] for name in ("chunks", "chunks and a length", "trailers")}) == 1
    assert by_name["a page"]["error"] == "200: the answer is text/html"
    assert by_name["nothing"]["error"] == "200: the answer is empty"
    for field in (wire.BATCH, wire.CLOCK_HEADER, wire.REPLICA, wire.DEVICE, "queue"):
        assert said["bad"][field] > 3, field
    assert Counter(row["status"] for row in good) == {OK: len(good)}
    assert len(good) == -(-len(ODD) // 4)
    assert {(row["batch_rows"], row["queue_ms"]) for row in good} == {(4, 1.0)}


def test_a_field_that_is_empty_says_nothing():
    """A replica that cannot load its model answers 503, and has no device yet."""
    lines = ("HTTP/1.1 503 Not Ready", "content-length: 2", f"{wire.REPLICA}: r1", f"{wire.DEVICE}: ", "", "{}")
    (row, *_), _, said = driven(lambda _: Odd("not loaded", "\r\n".join(lines).encode(), frozenset({"503"})), 4)
    assert (row["status"], row["replica"], row["device"]) == ("503", "r1", None)
    assert not said["bad"]


@counts(400, 100_000)
def test_a_mixture_of_bytes_has_one_row_each(seeds):
    rate = min(400.0, seeds / 4)  # four seconds at least: of two, stalls may be a third
    odd, good, _ = driven(drawn, seeds, rate=rate, beside=rate / 4, timeout_s=2.0)
    assert sorted(row["seq"] for row in odd) == list(range(seeds))
    assert {row["status"] for row in odd if not row["status"].isdecimal()} <= STATUSES
    assert all(100 < int(row["status"]) < 1000 for row in odd if row["status"].isdecimal())
    assert all(set(row) == set(REQUEST_COLUMNS) for row in odd)
    assert len(good) == round(seeds / 4)
    assert Counter(row["status"] for row in good) == {OK: len(good)}
    assert_nobody_waits(odd, good)


def test_a_scenario_has_a_check_of_its_own():
    def check(answer):
        if answer.outputs()["y"][0, 0] == 0:
            return "it is nothing"
        raise AssertionError

    odd, good, _ = driven(lambda number: ODD[0], 4, rate=100.0, check=check)
    assert {(row["status"], row["error"]) for row in [*odd, *good]} == {("check", "200: it is nothing")}
    odd, _, _ = driven(lambda number: ODD[0], 4, rate=100.0, check=lambda answer: None)
    assert {row["status"] for row in odd} == {OK}
    odd, _, _ = driven(lambda number: ODD[0], 4, rate=100.0, check=lambda answer: answer.outputs()["z"])
    assert {(row["status"], row["error"]) for row in odd} == {("check", "200: KeyError: 'z'")}


@pytest.mark.parametrize("size", [100_000, 600_000, 5_000_000])
@pytest.mark.parametrize("reads", [True, False])
def test_a_large_body_is_refused_before_it_is_read(size, reads):
    """As a proxy does: it reads the header, answers, and hangs up or reads no further."""
    held = []

    def serve(connection, _):
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 503 Full\r\nconnection: close\r\ncontent-length: 4\r\n\r\nfull")
        if not reads:
            held.append(connection)
            gevent.sleep(30)

    found = StreamServer(("127.0.0.1", 0), serve)
    found.start()
    client = Client(f"http://127.0.0.1:{found.server_port}", 5.0)
    answers = [client.send("POST", "/x", b"x" * size) for _ in range(3)]
    client.close()
    found.stop(timeout=0)
    assert {(answer.status, answer.body) for answer in answers} == {("503", b"full")}
