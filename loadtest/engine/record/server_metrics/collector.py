"""The load side's end of the servers' metrics: starts the process that reads them and writes down what it says.

Runs where the run folder is. Rows come from the reader as whole Arrow batches, so that a page of any size costs the
load process a copy of its kept rows once a second; a reader that dies or hangs costs its own figures and nothing else.
"""

from __future__ import annotations

import json
import logging
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import gevent

from tailrate.loadtest.engine import child_python
from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.loadtest.engine.record.segments import unpack
from tailrate.loadtest.engine.record.server_metrics.sources import MetricSource, fields_for

FIRST_S = 5.0
"""How long the load waits for the first word of each page: the start of a process, and a page that hangs."""
LAST_S = 3.0

say = logging.getLogger("tailrate")


class MetricCollector:
    """Goes on beside a run's steps: `start` before the first of them, `stop` behind the last."""

    def __init__(
        self,
        sources: Sequence[MetricSource],
        match: str,
        client: Client,
        base: Base,
        sink: Callable[[Any], None],
        event: Callable[..., None],
        entries: list[dict[str, Any]],
    ) -> None:
        self._entries = {entry["source"]: entry for entry in entries}
        """In the manifest; what a page is found to hold is put into them."""
        self._sink, self._event = sink, event
        asked = [
            {"source": each.source, "url": each.url, "header": fields_for(each, client.url, client.access)}
            for each in sources
        ]
        ca_file = client.access.ca_file
        self._asked = {"match": match, "anchor_ns": base.anchor_ns, "ca_file": ca_file, "sources": asked}
        self._heard: set[str] = set()
        """Sources of which something is known, if only that they are not there."""
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: gevent.Greenlet[..., None] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            child_python.command("tailrate.loadtest.engine.record.server_metrics.reader"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_python.environment(),
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self._asked).encode() + b"\n")
        self._process.stdin.flush()
        self._listener = gevent.spawn(self._listen, self._process)
        until_s = time.monotonic() + FIRST_S
        while self._heard < self._entries.keys() and not self._listener.dead and time.monotonic() < until_s:
            gevent.sleep(0.02)

    def stop(self) -> None:
        """Takes in the last look, as long as that does not take too long."""
        if self._process is None or self._listener is None:
            return
        process, self._process = self._process, None
        assert process.stdin is not None
        with suppress(OSError):  # where the reader is gone
            process.stdin.close()
        self._listener.join(LAST_S)
        self._listener.kill()
        process.kill()
        process.wait()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Until the reader ends, which it does when it is told to, or where it is killed."""
        assert process.stdout is not None
        while line := process.stdout.readline():
            told = json.loads(line)
            if size := told.get("batch"):
                raw = process.stdout.read(size)
                if len(raw) < size:
                    break
                for batch in unpack(raw):
                    self._sink(batch)
            elif found := told.get("said"):
                self._note(found)
            else:
                self._heard.add(told["source"])
                self._event(told.pop("event"), **told)
                say.warning("%s", told["sentence"])
        if self._process is not None:
            self._event("metrics_lost", sentence="the process that reads the servers' metrics has ended")

    def _note(self, found: dict[str, Any]) -> None:
        entry = self._entries[found["source"]]
        entry |= {key: found[key] for key in ("presets", "metrics")}
        known = ", ".join(found["presets"]) or "no server that is known"
        names = ", ".join(dict.fromkeys(metric["name"] for metric in found["metrics"])) or "nothing yet"
        if found["source"] not in self._heard:
            say.info("metrics of %s: %s; kept: %s", entry["url"], known, names)
        self._heard.add(found["source"])
