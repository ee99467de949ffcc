"""Reads the servers' metrics each second, in a process of its own so that no page, however long, holds an arrival up.

    python -m tailrate.loadtest.engine.record.server_metrics.reader

The first line of its input says what to read, as JSON; it ends when its input does, after one more look. To its output
go lines of JSON: `{"said": …}` what is kept of a source, `{"event": …}` that a page is lost or back, `{"batch": bytes}`
with so many bytes of Arrow behind it. It runs with the least priority, and each source in a thread of its own, so that
a page that hangs keeps no other waiting. Times are this machine's monotonic clock, moved to the run's base.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import threading
import time
from typing import Any

from tailrate.analysis.records.metric_rows import METRIC_COLUMNS
from tailrate.loadtest.engine.record.exposition import parse
from tailrate.loadtest.engine.record.segments import Batcher, pack
from tailrate.loadtest.engine.record.server_metrics.choice import MOST_SERIES, Choice
from tailrate.loadtest.engine.record.server_metrics.page import PageError, fetch

PERIOD_S = 1.0
TIMEOUT_S = 5.0
FIRST_S = 2.0
"""For the first look, which the load waits for."""
LAST_S = 1.0
"""For the last one, which the end of the run waits for."""
LEAST = 19
LOST_AFTER = 3
"""Looks in a row without a page, from which on that is an event; a page that was never there is one at once."""
MOST_EVENTS = 20
"""Of one source."""

_output = threading.Lock()


def tell(what: dict[str, Any], raw: bytes = b"") -> None:
    """One message, whole, whichever thread it is from."""
    with _output:
        sys.stdout.buffer.write(json.dumps(what).encode() + b"\n" + raw)
        sys.stdout.buffer.flush()


class Reader:
    """One source."""

    def __init__(self, asked: dict[str, Any], match: str, anchor_ns: int, tls: ssl.SSLContext | None) -> None:
        self._source, self._url, self._header = asked["source"], asked["url"], asked["header"]
        self._anchor_ns, self._tls = anchor_ns, tls
        self._choice = Choice(match)
        self._batcher = Batcher(METRIC_COLUMNS, self._send)
        self._failed = 0
        """Looks in a row."""
        self._ever = self._lost = self._odd = False
        self._told = self._events = 0

    def follow(self, ended: threading.Event) -> None:
        """A look each second, none where the one before took longer, and a last one."""
        timeout_s = FIRST_S
        while not ended.is_set():
            self.look(timeout_s)
            timeout_s = TIMEOUT_S
            ended.wait(PERIOD_S - time.monotonic() % PERIOD_S)
        self.look(LAST_S)

    def look(self, timeout_s: float) -> None:
        try:
            page = fetch(self._url, self._header, self._tls, timeout_s)
            found = self._choice.take(page.text)
            if not found and next(parse(page.text), None) is None:
                raise PageError("what it answers is no Prometheus text")
        except PageError as problem:
            self._miss(str(problem))
            return
        self._failed = 0
        if self._lost:
            self._lost = False
            self._event("metrics_back", f"the metrics of {self._url} come again")
        self._say()
        at_ns = page.at_ns + self._anchor_ns
        for name, labels, value in (("up", "{}", 1.0), ("scrape_duration_seconds", "{}", page.took_s), *found):
            self._batcher.append((at_ns, self._source, name, labels, value))
        self._batcher.flush()

    def _miss(self, why: str) -> None:
        self._failed += 1
        self._batcher.append((time.monotonic_ns() + self._anchor_ns, self._source, "up", "{}", 0.0))
        self._batcher.flush()
        if not self._lost and self._failed >= (LOST_AFTER if self._ever else 1):
            self._lost = True
            self._event("metrics_lost", f"no metrics from {self._url}: {why}")

    def _say(self) -> None:
        """What is kept, when that has changed, and what cannot be."""
        if not self._ever or len(self._choice.metrics) != self._told:
            self._ever, self._told = True, len(self._choice.metrics)
            said = {"source": self._source, "presets": self._choice.presets, "metrics": self._choice.metrics}
            tell({"said": said})
        if self._odd:
            return
        if self._choice.left_out:
            most = f"at most {MOST_SERIES} of a page are kept"
            self._warn(f"{self._choice.left_out} lines of {self._url} are left out: {most}, and none that is broken")
        elif not self._choice.metrics:
            some = ", ".join(sorted(self._choice.names)[:5])
            self._warn(f"no preset knows the metrics of {self._url} ({some}, …): name them with --metrics-match")

    def _warn(self, sentence: str) -> None:
        self._odd = True
        self._event("warning", sentence)

    def _event(self, kind: str, sentence: str) -> None:
        self._events += 1
        if self._events <= MOST_EVENTS:
            last = "; of this page no more is said" if self._events == MOST_EVENTS else ""
            tell({"event": kind, "source": self._source, "sentence": sentence + last})

    def _send(self, batch: Any) -> None:
        raw = pack(batch)
        tell({"batch": len(raw)}, raw)


def main() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, LEAST)
    asked = json.loads(sys.stdin.readline())
    tls = ssl.create_default_context(cafile=asked["ca_file"] or None)
    ended = threading.Event()
    readers = [Reader(source, asked["match"], asked["anchor_ns"], tls) for source in asked["sources"]]
    threads = [threading.Thread(target=reader.follow, args=(ended,), daemon=True) for reader in readers]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ended.set()
    until_s = time.monotonic() + LAST_S + PERIOD_S / 2
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))


if __name__ == "__main__":
    main()
