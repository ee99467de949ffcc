"""Faults of the load side, which need nobody's consent: each a context that lasts as long as the fault does.

It yields the sentence that says what was done, and undoes it at its end; `RefusedError` says why it was not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import gevent
from gevent import socket

from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.loadtest.engine.record.device_collector import Collector
from tailrate.loadtest.engine.scenario.fault_plan import Fault
from tailrate.serve import wire

DRIP_S = 1.0
"""Between two bytes of a slow client."""
CLAIMED_BYTES = 1_000_000
PIPELINED = 200
SMALL_BUFFER_BYTES = 4096
MOST_CONNECTIONS = 1000
MOST_VOLUME_BYTES = 4 << 30
"""A larger volume is nobody's test volume."""
BUSY = """
import os, sys, time
parent, end = os.getppid(), time.monotonic() + float(sys.argv[1])
while time.monotonic() < end and os.getppid() == parent:
    sum(range(100_000))
"""


class RefusedError(Exception):
    """A fault that was not injected: one sentence that says why."""


class Crew(Protocol):
    """The load processes, as far as one of them can be killed."""

    def members(self) -> list[str]: ...

    def kill(self, member: str) -> bool:
        """At once, as SIGKILL does; whether that is possible."""


@dataclass(frozen=True, slots=True)
class LoadSide:
    """What a fault can break here."""

    client: Client
    crew: Crew
    collector: Collector
    folder: Path


@contextmanager
def slow_client(here: LoadSide, fault: Fault) -> Iterator[str]:
    """Half of the connections send a body byte by byte, the others read answers so."""
    count = min(MOST_CONNECTIONS, int(float(fault.target or 20)))
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


@contextmanager
def telemetry_cut(here: LoadSide, fault: Fault) -> Iterator[str]:
    with _paused(here):
        yield "device samples and clocks are not asked for; what the server keeps of them follows afterwards"


@contextmanager
def collector_killed(here: LoadSide, fault: Fault) -> Iterator[str]:
    """With its greenlets dies what it knew of where it had read to."""
    with _paused(here):
        try:
            yield "the collector is dead; what is sampled until it is started anew is lost"
        finally:
            here.collector.forget()


@contextmanager
def _paused(here: LoadSide) -> Iterator[None]:
    _needs_samples(here)
    here.collector.pause()
    try:
        yield
    finally:
        here.collector.resume()


def _needs_samples(here: LoadSide) -> None:
    if not here.collector.host:
        raise RefusedError("the endpoint sends no device samples, so there is nothing to miss")


@contextmanager
def load_killed(here: LoadSide, fault: Fault) -> Iterator[str]:
    members = here.crew.members()
    number = int(float(fault.target)) if fault.target else len(members) - 1
    if len(members) < 2 or not 0 <= number < len(members):
        raise RefusedError(f"there is no load process {max(0, number)} to spare: {len(members)} in all")
    if not here.crew.kill(members[number]):
        raise RefusedError("this crew's processes cannot be killed from here")
    yield f"load process {number} of {len(members)} was killed"


@contextmanager
def cpu_taken_here(here: LoadSide, fault: Fault) -> Iterator[str]:
    cores = os.cpu_count() or 1
    count = min(4 * cores, int(float(fault.target or cores)))
    command = [sys.executable, "-S", "-E", "-c", BUSY, str(fault.seconds)]
    busy = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield f"{count} busy processes on the load generator's {cores} cores"
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextmanager
def disk_full(here: LoadSide, fault: Fault) -> Iterator[str]:
    """Nothing but a small volume that holds the run and was named for it is ever filled."""
    mount = Path(fault.target)
    device = here.folder.stat().st_dev
    if not mount.is_mount() or mount.stat().st_dev != device:
        raise RefusedError(f"{mount} is not the mount point of the volume that the run folder is on")
    if device in {Path(path).stat().st_dev for path in ("/", Path.home(), "/dev/shm", "/tmp") if Path(path).exists()}:  # noqa: S108
        raise RefusedError(f"{mount} holds more than this run, and a disk that others need is never filled")
    volume = os.statvfs(mount)
    if volume.f_blocks * volume.f_frsize > MOST_VOLUME_BYTES:
        raise RefusedError(f"{mount} is larger than {MOST_VOLUME_BYTES >> 30} GiB, so it is no test volume")
    filler = here.folder / "filler"
    written = 0
    try:
        with filler.open("wb", buffering=0) as out, suppress(OSError):
            while part := out.write(bytes(1 << 20)):
                written += part
                gevent.sleep(0)
        yield f"{mount} is full: {written >> 20} MiB were taken"
    finally:
        filler.unlink(missing_ok=True)


HARDSHIPS: Mapping[str, Callable[[LoadSide, Fault], AbstractContextManager[str]]] = {
    "slow_client": slow_client,
    "telemetry_cut": telemetry_cut,
    "collector_killed": collector_killed,
    "load_killed": load_killed,
    "cpu_taken_here": cpu_taken_here,
    "disk_full": disk_full,
}
