"""The collector: device samples and clock probes from the endpoint's host, once per run.

Runs where the run folder is (the only or the master process), beside the load. A server without
`/telemetry/*` (any v2 endpoint but ours) is asked once and then left alone. A lost connection is an
event; samples that the server overwrote before they were read are counted; what its samplers say of lost GPUs and
hosts becomes events of the run. Each host's clock is asked for by itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import quote

import gevent

from tailrate.analysis.records.device_rows import DEVICE_COLUMNS
from tailrate.loadtest.engine.clock import Base, Offset
from tailrate.loadtest.engine.endpoint.answer import OK, EndpointAnswer
from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.serve import wire

POLL_S = 1.0
PROBE_S = 0.2
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What an answer raises that is JSON, if at all, and something else than samples."""


class Rows(Protocol):
    """Where samples go, each a tuple in the order of `DEVICE_COLUMNS`."""

    def append(self, row: tuple[Any, ...]) -> None: ...
    def flush(self) -> None: ...


class Collector:
    """Polls until stopped; `host` is empty where the endpoint sends no samples."""

    def __init__(
        self, client: Client, base: Base, rows: Rows, event: Callable[..., None], who: str = "the endpoint"
    ) -> None:
        self.host = ""
        self.period_ms: float | None = None
        """Of the samples, as the server says it."""
        self.offsets: dict[str, Offset] = {}
        """Of each host's clock, in the order in which they came to be known."""
        self.devices: dict[str, tuple[str, int]] = {}
        """Host and number of each device that there was a sample of when it started."""
        self._client = client
        self._base = base
        self._rows = rows
        self._who = who
        self._event = event
        self._cursor = ""
        self._said_ns = 0
        """The last event of the samplers that is known."""
        self._lost = False
        self._greenlets: list[gevent.Greenlet[..., None]] = []

    def start(self) -> None:
        """Begins polling if the server has device samples; asks once, so that others are not bothered."""
        if self.ask_first():
            self.resume()

    def ask_first(self) -> bool:
        """Whether there are device samples; those that there are already are not read."""
        first = self._get(wire.DEVICES)
        if first.status != OK:
            self._event("warning", sentence=f"{self._who} sends no device samples ({wire.DEVICES}: {first.status})")
            return False
        try:
            found = json.loads(first.body)  # samples from before the run are not ours
            self._cursor, self.host = str(found["cursor"]), str(found.get("host", ""))
        except (ValueError, KeyError, TypeError, AttributeError):  # one that says 200 to whatever it is asked
            self._event("warning", sentence=f"{self._who} sends no device samples ({wire.DEVICES} is something else)")
            return False
        self._said_ns = max((int(event["time_ns"]) for event in found.get("events") or ()), default=0)
        self.devices = devices_in(found)
        self._meet(found)
        return True

    def resume(self) -> None:
        self._greenlets = [
            gevent.spawn(forever, self.poll, POLL_S, self._event),
            gevent.spawn(forever, self.probe, PROBE_S, self._event),
        ]

    def pause(self) -> None:
        """Nothing is asked for; `resume` goes on where it was, with what the server has kept."""
        gevent.killall(self._greenlets)
        self._greenlets = []

    def forget(self) -> None:
        """As one that has just been started: what was sampled since the last poll is not read any more."""
        answer = self._get(wire.DEVICES)
        if answer.status == OK:
            self._cursor = str(json.loads(answer.body)["cursor"])

    def stop(self) -> None:
        """Fetches what has come since the last poll, then ends."""
        if self._greenlets:
            self.pause()
            self.poll()

    def poll(self) -> None:
        answer = self._get(f"{wire.DEVICES}?after={quote(self._cursor)}")
        if answer.status == OK:
            self._take(answer)
            if self._lost:
                self._event("telemetry_back")
        elif not self._lost:
            self._event("telemetry_lost", status=answer.status, sentence=answer.error or "")
        self._lost = answer.status != OK

    def _get(self, path: str) -> EndpointAnswer:
        return self._client.send("GET", self._client.prefix + path)

    def _take(self, answer: EndpointAnswer) -> None:
        found = json.loads(answer.body)
        self._cursor = str(found["cursor"])
        self.host = str(found.get("host", self.host))
        if found.get("overwritten"):
            self._event("samples_overwritten", count=int(found["overwritten"]))
        positions = {name: place for place, name in enumerate(found["columns"])}
        places = [positions.get(name) for name in DEVICE_COLUMNS]
        self._meet(found)
        for event in found.get("events") or ():
            if int(event["time_ns"]) > self._said_ns:
                self._said_ns = int(event["time_ns"])
                self._event("device", host=event.get("host") or self.host, sentence=str(event["event"]))
        for row in found["rows"]:
            self._rows.append(tuple(None if place is None else row[place] for place in places))
        self._rows.flush()

    def _meet(self, found: Any) -> None:
        self.period_ms = found.get("period_ms")
        for host in found.get("hosts") or [self.host]:
            self.offsets.setdefault(str(host), Offset())

    def probe(self) -> None:
        for host, offset in list(self.offsets.items()):
            answer = self._get(wire.CLOCK if host == self.host else f"{wire.CLOCK}?host={quote(host)}")
            if answer.status == OK:
                found = json.loads(answer.body)
                to_wall = self._base.wall_ns
                offset.see(to_wall(answer.sent_ns), found["recv_ns"], found["send_ns"], to_wall(answer.done_ns))

    def merge(self, windows: list[tuple[int, int, int]]) -> None:
        """What the exchange of requests showed; with several hosts it is not known whose clock that was."""
        if len(self.offsets) == 1:
            self.offsets[self.host].merge(windows)

    def clocks(self) -> list[dict[str, Any]]:
        """The manifest's `clock`."""
        return [entry for host, offset in self.offsets.items() if (entry := offset.as_json(host))]


def forever(work: Callable[[], None], period_s: float, event: Callable[..., None]) -> None:
    """Again and again; what a server sends that cannot be read is an event."""
    while True:
        started = time.monotonic()
        try:
            work()
        except UNREADABLE as problem:
            event("warning", sentence=f"device telemetry sent something unreadable: {problem!r}")
        gevent.sleep(max(0.0, period_s - (time.monotonic() - started)))


def devices_in(found: Any) -> dict[str, tuple[str, int]]:
    """Host and number of each device of an answer."""
    columns = list(found["columns"])
    if not {"host", "device", "index"} <= set(columns):
        return {}
    host, device, index = (columns.index(name) for name in ("host", "device", "index"))
    return {str(row[device]): (str(row[host]), int(row[index] or 0)) for row in found["rows"]}
