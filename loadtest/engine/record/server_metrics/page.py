"""One page over HTTP, whatever the other side does: bounded in time and size, with the instant at which it was made."""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import SHUT_RDWR, socket
from threading import Timer
from urllib.parse import urlsplit

MOST_BYTES = 8 << 20
"""A page of ten thousand series is one to two megabytes."""
BLOCK = 1 << 16
ACCEPT = "text/plain;version=0.0.4"


class PageError(Exception):
    """Why there is no page, in a few words."""


@dataclass(frozen=True, slots=True)
class Page:
    at_ns: int
    """By the monotonic clock, midway between the request and the answer's header: servers count when they are asked."""
    took_s: float
    text: str


def fetch(url: str, header: str, tls: ssl.SSLContext | None, timeout_s: float) -> Page:
    """`header` is one more line of the request, or nothing."""
    parts = urlsplit(url)
    connection: HTTPConnection
    if parts.scheme == "https":
        connection = HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout_s, context=tls)
    else:
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    late: list[bool] = []
    # http.client lets go of the socket once the answer has begun
    sockets: list[socket] = []
    # each wait of the socket has a limit of its own; one that drips byte by byte would never reach it
    alarm = Timer(timeout_s, _cut, (sockets, late))
    alarm.daemon = True
    alarm.start()
    began_ns = time.monotonic_ns()
    try:
        connection.connect()
        sockets.append(connection.sock)
        asked_ns = time.monotonic_ns()
        name, _, value = header.strip().partition(": ")
        more = {name: value} if name else {}
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": ACCEPT, "Connection": "close", **more})
        answer = connection.getresponse()
        at_ns = (asked_ns + time.monotonic_ns()) // 2
        text = _text(answer)
    except (OSError, HTTPException, ValueError) as problem:
        raise PageError(_why(problem, timeout_s, bool(late))) from None
    finally:
        alarm.cancel()
        connection.close()
    if late:  # an answer without a length ends like a whole one
        raise PageError(_why(TimeoutError(), timeout_s, True))
    return Page(at_ns, (time.monotonic_ns() - began_ns) / 1e9, text)


def _text(answer: HTTPResponse) -> str:
    if answer.status != 200:
        raise PageError(f"it answers {answer.status}")
    pieces, size = [], 0
    while piece := answer.read(BLOCK):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_BYTES:
            raise PageError(f"the page is longer than {MOST_BYTES >> 20} MiB")
    if answer.length:  # read in blocks, a body that ends too soon ends like a whole one
        raise PageError("the page was cut off")
    return b"".join(pieces).decode("utf-8", "replace")


def _cut(sockets: list[socket], late: list[bool]) -> None:
    late.append(True)
    for each in sockets:
        with suppress(OSError):
            each.shutdown(SHUT_RDWR)


def _why(problem: Exception, timeout_s: float, late: bool) -> str:
    if late or isinstance(problem, TimeoutError):
        return f"no whole page within {timeout_s:g} s"
    if isinstance(problem, ssl.SSLError):
        return f"TLS failed ({(problem.reason or str(problem)).lower().replace('_', ' ')})"
    if isinstance(problem, OSError):
        return problem.strerror or str(problem) or type(problem).__name__
    return f"what it answers is no HTTP ({type(problem).__name__})"
