"""Device samples: what each GPU and the host did, every `period_ms`, kept in a ring until somebody reads them.

A `Sampler` thread asks its sources in turn. A reader's cursor is `epoch:sequence`: the epoch is the
sampler's own, so that a reader who outlives a restart gets what there is instead of nothing. Energy is in
joules from a counter where there is one, power in watts, time the host's wall clock; what a source does not
have is None, never zero.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from tailrate.serve.telemetry.host import HostSource
from tailrate.serve.telemetry.nvml import NvmlSource
from tailrate.serve.telemetry.replay import ReplaySource
from tailrate.serve.wire import SAMPLE_FIELDS, WireError

log = logging.getLogger(__name__)

MIN_PERIOD_MS = 10
KEPT_SAMPLES = 50_000
KEPT_EVENTS = 100
RETRY_S = 5.0

Sample = dict[str, Any]


class Source(Protocol):
    """Something that can be asked for the present state of its devices."""

    name: str

    def read(self) -> list[Sample]:
        """One sample per device, without `time_ns` and `host`; fields it lacks are left out."""
        ...


def sources(replay: str = "", device: str = "cpu", *, own: bool = True) -> list[Source]:
    """The host (under that name) always, and its GPUs where NVML finds any; or a recorded trace alone.

    `own`: with what the processes of this very server hold of memory, which of those of an agent nobody asks.
    """
    if replay:
        return [ReplaySource(Path(replay))]
    found: list[Source] = [HostSource(device=device, own=own)]
    try:
        found.append(NvmlSource(None if own else lambda pid: False))
    except Exception as problem:  # no driver, no library, no GPU: each has its own error, none of them ours
        log.info("no NVML here: %s", problem)
    return found


def after(due_s: float, began_s: float, period_s: float) -> float:
    """When the sample after one that was due and that began then is due.

    A late one does not shift those after it; after one later than a period the count begins anew, without a burst.
    """
    return due_s + period_s if due_s + period_s > began_s else began_s + period_s


class Sampler:
    """Asks its sources every period, in a thread of its own, and keeps the latest samples."""

    def __init__(
        self, sources: Sequence[Source], period_ms: int = 100, kept: int = KEPT_SAMPLES, host: str | None = None
    ) -> None:
        self.host = host or socket.gethostname()
        self.period_ms = period_ms
        self._events: deque[dict[str, Any]] = deque(maxlen=KEPT_EVENTS)
        self._sources = sources
        self._silent_until_s = dict.fromkeys((source.name for source in sources), 0.0)
        self._took_s = dict.fromkeys((source.name for source in sources), math.inf)
        """The latest reading of each."""
        self._epoch = f"{time.time_ns():x}"
        self._rows: deque[list[Any]] = deque(maxlen=kept)
        self._count = 0
        """Samples ever taken; the newest has this sequence number."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        due_s = time.monotonic()
        while not self._stopped.is_set():
            began_s = time.monotonic()
            self.sample()
            due_s = after(due_s, began_s, self.period_ms / 1e3)
            self._stopped.wait(max(0.0, due_s - time.monotonic()))

    def sample(self) -> None:
        """Asks every source once; one that fails is an event, and is asked again after a while.

        What a stall held up in the middle of a reading is left out: nobody knows when in that time it was so.
        """
        for source in self._sources:
            began_s, before_ns = time.monotonic(), time.time_ns()
            if began_s < self._silent_until_s[source.name]:
                continue
            try:
                samples = source.read()
            except Exception as problem:
                self._silent_until_s[source.name] = time.monotonic() + RETRY_S
                self._event(source.name, f"{type(problem).__name__}: {problem}")
                continue
            time_ns, took_s = (before_ns + time.time_ns()) // 2, time.monotonic() - began_s
            if took_s > max(self.period_ms / 1e3, 2 * self._took_s[source.name]):
                samples = [sample for sample in samples if "time_ns" in sample]
            self._took_s[source.name] = took_s
            for sentence in drain(getattr(source, "remarks", [])):
                self._event(source.name, sentence)
            with self._lock:
                for sample in samples:
                    row = {"time_ns": time_ns} | sample | {"host": self.host}
                    self._rows.append([row.get(field) for field in SAMPLE_FIELDS])
                    self._count += 1

    def clock(self) -> dict[str, int]:
        """This host's wall clock, when it was asked and when it answers."""
        received_ns = time.time_ns()
        return {"recv_ns": received_ns, "send_ns": time.time_ns()}

    def _event(self, source: str, sentence: str) -> None:
        log.warning("telemetry: %s: %s", source, sentence)
        with self._lock:
            self._events.append({"time_ns": time.time_ns(), "source": source, "event": sentence})

    def read(self, after: str | None = None) -> dict[str, Any]:
        """The samples after the cursor, and the cursor to ask with next; without one, all that are kept."""
        epoch, sequence = _cursor(after)
        with self._lock:
            oldest = self._count - len(self._rows)
            if epoch != self._epoch or sequence > self._count:
                sequence = oldest
            rows = list(islice(self._rows, max(0, sequence - oldest), None))
            count, events = self._count, list(self._events)
        return {
            "cursor": f"{self._epoch}:{count}",
            "overwritten": max(0, oldest - sequence),
            "period_ms": self.period_ms,
            "host": self.host,
            "columns": list(SAMPLE_FIELDS),
            "rows": rows,
            "events": events,
        }


def drain(sentences: list[str]) -> list[str]:
    taken = sentences[:]
    sentences.clear()
    return taken


def _cursor(text: str | None) -> tuple[str, int]:
    if not text:
        return "", 0
    epoch, _, sequence = text.partition(":")
    if not epoch or not sequence.isdecimal() or len(sequence) > 18:
        raise WireError(400, f"cursor '{text[:64]}' is malformed; send back the one of the last answer, or none")
    return epoch, int(sequence)
