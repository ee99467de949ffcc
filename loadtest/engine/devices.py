"""The collector: device samples and clock probes from the endpoint's host, once per run.

Runs where the run folder is (the only or the master process), beside the load. A server without
`/telemetry/*` (any v2 endpoint but ours) is asked once and then left alone. A lost connection is an
event; samples that the server overwrote before they were read are counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import gevent

from analysis.records import DEVICE_COLUMNS
from loadtest.engine.client import OK, Answer, Client
from loadtest.engine.clock import Base, Offset
from loadtest.engine.recorder import Batcher
from serve import wire

POLL_S = 1.0
PROBE_S = 0.2


class Collector:
    """Polls until stopped; `host` is empty where the endpoint sends no samples."""

    def __init__(
        self, client: Client, base: Base, offset: Offset, sink: Callable[[Any], None], event: Callable[..., None]
    ) -> None:
        self.host = ""
        self._client = client
        self._base = base
        self._offset = offset
        self._batcher = Batcher(DEVICE_COLUMNS, sink)
        self._event = event
        self._cursor = ""
        self._lost = False
        self._greenlets: list[gevent.Greenlet[..., None]] = []

    def start(self) -> None:
        """Begins polling if the server has device samples; asks once, so that others are not bothered."""
        first = self._get(wire.DEVICES)
        if first.status != OK:
            self._event("warning", sentence=f"the endpoint sends no device samples ({wire.DEVICES}: {first.status})")
            return
        found = json.loads(first.body)  # samples from before the run are not ours
        self._cursor, self.host = str(found["cursor"]), str(found.get("host", ""))
        self._greenlets = [
            gevent.spawn(self._forever, self.poll, POLL_S),
            gevent.spawn(self._forever, self._probe, PROBE_S),
        ]

    def stop(self) -> None:
        """Fetches what has come since the last poll, then ends."""
        if self._greenlets:
            gevent.killall(self._greenlets)
            self._greenlets = []
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

    def _get(self, path: str) -> Answer:
        return self._client.send("GET", self._client.prefix + path)

    def _take(self, answer: Answer) -> None:
        found = json.loads(answer.body)
        self._cursor = str(found["cursor"])
        self.host = str(found.get("host", self.host))
        if found.get("overwritten"):
            self._event("samples_overwritten", count=int(found["overwritten"]))
        positions = {name: place for place, name in enumerate(found["columns"])}
        places = [positions.get(name) for name in DEVICE_COLUMNS]
        for row in found["rows"]:
            self._batcher.append(tuple(None if place is None else row[place] for place in places))
        self._batcher.flush()

    def _probe(self) -> None:
        answer = self._get(wire.CLOCK)
        if answer.status == OK:
            found = json.loads(answer.body)
            to_wall = self._base.wall_ns
            self._offset.see(to_wall(answer.sent_ns), found["recv_ns"], found["send_ns"], to_wall(answer.done_ns))

    def _forever(self, work: Callable[[], None], period_s: float) -> None:
        while True:
            started = time.monotonic()
            try:
                work()
            except (ValueError, KeyError, TypeError) as problem:
                self._event("warning", sentence=f"device telemetry sent something unreadable: {problem!r}")
            gevent.sleep(max(0.0, period_s - (time.monotonic() - started)))
