"""Streams over live sockets: each is read whole, stamped, and what breaks off keeps what came of it."""

from __future__ import annotations

import os
import time

import gevent
import numpy as np
import pytest
from test_http import server
from waiting import clock_step_ns

from tailrate.loadtest.engine.endpoint.client import StreamClient
from tailrate.loadtest.engine.endpoint.stamping import reading_loop as loop
from tailrate.loadtest.engine.endpoint.stamping import sockets as stamping
from tailrate.loadtest.engine.workers.on_time.cpu_priority import precedence

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@pytest.fixture(params=["a thread reads", "gevent reads"])
def way(request, monkeypatch):
    if request.param == "gevent reads":
        monkeypatch.setattr(stamping, "can_watch", lambda secure: False)
    return request.param


def sent(url, timeout_s=5.0, times=1):
    client = StreamClient(url, timeout_s)
    try:
        found = [client.send("POST", "/x", b"{}", {}) for _ in range(times)]
    finally:
        client.close()
    return found if times > 1 else found[0]


PIECES = [chunk(b"data: 1\n\n"), 0.05, chunk(b"data: 22\n\n"), 0.02, chunk(b"data: 333\n\n")]


def test_pieces_have_their_instants(way):
    with server([[HEAD, 0.05, *PIECES, END]]) as (url, _):
        answer = sent(url)
    assert (answer.status, answer.error) == ("200", None)
    assert answer.body == b"data: 1\n\ndata: 22\n\ndata: 333\n\n"
    assert [size for _, size in answer.arrivals] == [9, 19, 30]
    at_ms = [(at_ns - answer.sent_ns) / 1e6 for at_ns, _ in answer.arrivals]
    step_ms = clock_step_ns() / 1e6
    assert all(at >= least - step_ms for at, least in zip(at_ms, (50, 100, 120), strict=True)), at_ms
    assert answer.sent_ns < answer.arrivals[0][0] < answer.arrivals[1][0] < answer.arrivals[2][0] <= answer.done_ns


def test_the_thread_stands_in_line_for_a_core_as_its_owner_does():
    """What stamps rest on while both cores are full: behind a real-time thread an ordinary one would read too late."""

    def in_line(thread):
        return os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)

    one = [HEAD + chunk(b"data: 1\n\n") + END]
    with server([one]) as (url, _):
        before = in_line(0)
        with precedence() as granted:
            assert sent(url).status == "200"
            mine = in_line(0)
            assert in_line(stamping.stamper().thread) == mine
            assert (mine == before) == (granted == "as started")
    with server([one]) as (url, _):
        assert sent(url).status == "200"
        assert in_line(stamping.stamper().thread) == in_line(0) == before


def test_a_connection_is_used_again_for_whatever_comes(way):
    plain = b"HTTP/1.1 503 Full\r\ncontent-length: 4\r\n\r\nfull"
    one = [HEAD + chunk(b"data: 1\n\n") + END]
    with server(
        [
            one,
            [plain[:30], 0.02, plain[30:]],
            one,
            [HEAD, 0.02, chunk(b"data: 2\n\n")[:7], 0.02, chunk(b"data: 2\n\n")[7:], END[:2], 0.02, END[2:]],
        ]
    ) as (url, seen):
        found = sent(url, times=4)
    assert [(answer.status, answer.body) for answer in found] == [
        ("200", b"data: 1\n\n"), ("503", b"full"), ("200", b"data: 1\n\n"), ("200", b"data: 2\n\n"),
    ]  # fmt: skip
    assert len(seen) == 4


@pytest.mark.parametrize(
    "end", [b"000\r\n\r\n", b"0;x=y\r\n\r\n", b"0\r\nx-sum: 1\r\n\r\n", b"0\r\nx-sum:\r\nx-more: 2\r\n\r\n"]
)
@pytest.mark.parametrize("pause", [[], [0.02]])
def test_a_stream_has_ended_however_its_last_chunk_is_written(way, end, pause):
    """At once: the connection stays open, and the deadline is far."""
    pieces = [HEAD, 0.02, chunk(b"data: 1\n\n"), *pause, end[:3], *pause, end[3:-2], *pause, end[-2:]]
    with server([pieces, [HEAD + END]]) as (url, _):
        client, began = StreamClient(url, 20.0), time.monotonic()
        answer = client.send("POST", "/x", b"{}", {})
        assert time.monotonic() - began < 10
        assert client.send("POST", "/x", b"{}", {}).status == "200"
        client.close()
    assert (answer.status, answer.body) == ("200", b"data: 1\n\n")


@pytest.mark.parametrize(
    ("said", "ends"),
    [(b"data: 1\n\n\r\n", False), (b"data: 1\r\n\r\n\r\n", False), (END, True), (b"0\r\nx: y\r\n\r\n", True)],
)
@pytest.mark.parametrize("begin", [0, loop.RING_BYTES - 9])  # also over the ring's end
def test_only_the_end_of_chunks_is_worth_a_word(said, ends, begin):
    ring, lane = np.zeros(loop.RING_BYTES, np.uint8), np.zeros(loop.FIELDS, np.int64)
    ring[(begin + np.arange(len(said))) % loop.RING_BYTES] = list(said)
    lane[[loop.CAME, loop.BYTES_AT]] = begin + len(said), ring.ctypes.data
    assert loop._chunks_end(lane) is ends


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n"])
def test_a_stream_may_end_with_its_connection(way, head):
    with server([[head + b"data: 1\n\n", 0.02, b"data: 2\n\n"]]) as (url, _):
        answer = sent(url)
    assert (answer.status, answer.body, len(answer.arrivals)) == ("200", b"data: 1\n\ndata: 2\n\n", 2)


def test_what_breaks_off_is_cut_and_keeps_what_came(way):
    with server([[HEAD, *PIECES[:3]]]) as (url, _):
        answer = sent(url)
    assert (answer.status, answer.body) == ("cut", b"data: 1\n\ndata: 22\n\n")
    assert "closed before the answer was whole" in answer.error


def test_what_is_not_whole_in_time_is_a_timeout_and_keeps_what_came(way):
    with server([[HEAD, *PIECES[:3], 1.0]]) as (url, _):
        answer = sent(url, timeout_s=0.4)
    assert (answer.status, answer.body, len(answer.arrivals)) == ("timeout", b"data: 1\n\ndata: 22\n\n", 2)
    assert answer.done_ns - answer.sent_ns >= 400_000_000 - clock_step_ns()


def test_what_breaks_off_before_it_began_is_a_connection_that_failed(way):
    with server([[]], [[b"HTTP/1.1 2"]]) as (url, _):
        assert [answer.status for answer in sent(url, times=2)] == ["connect", "connect"]


def test_a_long_stream_goes_through_a_small_ring(way):
    pieces = [chunk(b"data: %d %s\n\n" % (number, b"x" * 300)) for number in range(3000)]
    with server([[HEAD, *pieces, END]]) as (url, _):
        answer = sent(url)
    assert answer.body.count(b"data: ") == 3000
    assert answer.body.endswith(b"2999 " + b"x" * 300 + b"\n\n")
    assert answer.arrivals[-1][1] == len(answer.body)


def test_a_reader_that_does_not_look_for_long_gets_all_of_it():
    """The ring fills, the thread pauses, and goes on when there is room."""
    pieces = [chunk(b"data: %d %s\n\n" % (number, b"x" * 300)) for number in range(3000)]
    with server([[HEAD, *pieces, END]]) as (url, _):
        client = StreamClient(url, 10.0)
        sending = gevent.spawn(client.send, "POST", "/x", b"{}", {})
        gevent.sleep(0.01)
        time.sleep(0.3)  # nobody else has a turn
        answer = sending.get()
        client.close()
    assert (answer.status, answer.body.count(b"data: ")) == ("200", 3000)


def test_a_hundred_at_once_do_not_mix():
    answers = [[HEAD, *(chunk(b"data: %d-%d\n\n" % (number, k)) for k in range(20)), END] for number in range(100)]
    with server(*[[answer] for answer in answers]) as (url, _):
        client = StreamClient(url, 10.0)
        for _ in range(100):
            answer = client.send("POST", "/x", b"{}", {})
            number = answer.body.partition(b"-")[0]
            assert answer.body == b"".join(b"%s-%d\n\n" % (number, k) for k in range(20))
            client.close()
