"""Clients that hold connections open: half of them send a body byte by byte, the others read answers so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import gevent
from gevent import socket

from tailrate.loadtest.engine.faults import LoadFault, LoadSide, RefusedError
from tailrate.serve import wire
from tailrate.serve.faults import Target

DRIP_S = 1.0
"""Between two bytes of a slow client."""
CLAIMED_BYTES = 1_000_000
PIPELINED = 200
SMALL_BUFFER_BYTES = 4096
USUAL_CONNECTIONS, MOST_CONNECTIONS = 20, 1000


@contextmanager
def lasting(here: LoadSide, target: str, seconds: float) -> Iterator[str]:
    count = min(MOST_CONNECTIONS, int(float(target or USUAL_CONNECTIONS)))
    parts = urlsplit(here.client.url)
    if parts.scheme != "http":
        raise RefusedError("slow clients speak plain HTTP only")
    address = (parts.hostname or "", parts.port or 80)
    work = [gevent.spawn(_sends_slowly if n % 2 == 0 else _reads_slowly, here, address) for n in range(count)]
    try:
        yield f"{count} slow connections: half send a body byte by byte, half read answers so"
    finally:
        gevent.killall(work)


def _sends_slowly(here: LoadSide, address: tuple[str, int]) -> None:
    head = f"POST {here.client.prefix}{wire.INDEX} HTTP/1.1\r\nContent-Length: {CLAIMED_BYTES}\r\n".encode()
    while True:
        with suppress(OSError), socket.create_connection(address, 10) as connection:
            connection.sendall(head + here.client.fields + b"\r\n")
            while True:
                connection.sendall(b" ")
                gevent.sleep(DRIP_S)
        gevent.sleep(DRIP_S)  # the server has had enough of it: once more


def _reads_slowly(here: LoadSide, address: tuple[str, int]) -> None:
    asked = f"GET {here.client.prefix}{wire.SERVER} HTTP/1.1\r\n".encode() + here.client.fields + b"\r\n"
    while True:
        with suppress(OSError), socket.create_connection(address, 10) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
            connection.settimeout(None)  # it is we who take our time
            connection.sendall(asked * PIPELINED)
            while connection.recv(1):
                gevent.sleep(DRIP_S)
        gevent.sleep(DRIP_S)


CONNECTIONS = Target("how many connections", str(USUAL_CONNECTIONS), below=1e6)
FAULT = LoadFault(place=1, word="slow-client", seconds=30, target=CONNECTIONS, lasting=lasting)
