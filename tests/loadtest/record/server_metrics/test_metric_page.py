"""A page is fetched or there is none, within its time, whatever the other side does."""

from __future__ import annotations

import time

import pytest
from odd_pages import HEAD, drips, drips_body, hangs, large, never_ends, says, serving, whole
from waiting import clock_step_ns

from tailrate.loadtest.engine.record.server_metrics.choice import MOST_SERIES, Choice
from tailrate.loadtest.engine.record.server_metrics.page import PageError, fetch

TEXT = 'nv_inference_count{model="a"} 3\n'


@pytest.mark.parametrize(
    "answer",
    [
        whole(TEXT.encode()),
        HEAD + TEXT.encode(),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\n" + TEXT[:8].encode()
        + b"\r\n" + f"{len(TEXT) - 8:x}\r\n{TEXT[8:]}\r\n0\r\n\r\n".encode(),
    ],
    ids=["length", "to its end", "chunks"],
)  # fmt: skip
def test_a_page_comes_whole_with_the_instant_of_the_asking(answer: bytes) -> None:
    with serving(says(answer)) as url:
        before_ns = time.monotonic_ns()
        page = fetch(f"{url}/metrics", "", None, 5)
        after_ns = time.monotonic_ns()
    assert page.text == TEXT
    assert before_ns <= page.at_ns <= after_ns  # equal where the clock moves by milliseconds
    assert 0 <= page.took_s <= (after_ns - before_ns) / 1e9


def test_the_instant_is_that_of_the_answers_beginning_however_long_the_page_takes() -> None:
    def late(connection):
        connection.sendall(HEAD)
        time.sleep(0.3)
        connection.sendall(TEXT.encode())

    with serving(late) as url:
        before_ns = time.monotonic_ns()
        page = fetch(url, "", None, 5)
        ended_ns = time.monotonic_ns()
    assert page.at_ns < ended_ns - 200_000_000 or page.at_ns - before_ns < (ended_ns - before_ns) / 2
    assert page.took_s > 0.3 - clock_step_ns() / 1e9


@pytest.mark.parametrize("answer", [hangs, drips, drips_body], ids=lambda answer: answer.__name__)
def test_who_hangs_is_left_in_time(answer) -> None:
    with serving(answer) as url:
        began_s = time.monotonic()
        with pytest.raises(PageError, match=r"no whole page within 0\.4 s"):
            fetch(url, "", None, 0.4)
        assert time.monotonic() - began_s < 5


def test_who_never_ends_is_left_when_there_is_too_much() -> None:
    with serving(never_ends) as url, pytest.raises(PageError, match="longer than 8 MiB"):
        fetch(url, "", None, 60)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (whole(b"", "404 Not Found"), "it answers 404"),
        (whole(b"", "302 Found", "location: http://127.0.0.1:9/\r\n"), "it answers 302"),
        (b"SSH-2.0-OpenSSH_9\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nup 1\n", "the page was cut off"),
    ],
    ids=["404", "elsewhere", "ssh", "cut off"],
)
def test_what_is_no_page_says_why(answer: bytes, why: str) -> None:
    with serving(says(answer)) as url, pytest.raises(PageError, match=why):
        fetch(url, "", None, 5)


def test_nobody_there() -> None:
    with pytest.raises(PageError, match="refused"):
        fetch("http://127.0.0.1:9/metrics", "", None, 2)


def test_a_header_is_sent_as_it_is_given() -> None:
    asked: list[bytes] = []
    with serving(says(whole(b"up 1\n")), asked) as url:
        assert fetch(f"{url}/x?y=1", "X-Key: a b: c\r\n", None, 5).text == "up 1\n"
    lines = asked[0].decode().split("\r\n")
    assert lines[0] == "GET /x?y=1 HTTP/1.1"
    assert "X-Key: a b: c" in lines


def test_a_page_of_ten_thousand_series_is_read_and_bounded() -> None:
    with serving(large) as url:
        page = fetch(url, "", None, 10)
    assert len(Choice().take(page.text)) == MOST_SERIES
