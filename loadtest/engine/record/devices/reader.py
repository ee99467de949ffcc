"""The process that reads device samples beside the load: what hangs, lies or is large costs the load nothing.

`collector` starts it and tells it by its standard input what to read, as one line of JSON, and then a word a line:
pause, resume, forget, stop. It ends when that is closed. What it finds goes to its standard output, a JSON object a
line: rows in the order of `DEVICE_COLUMNS`, events, facts of each source, and where clocks stand.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent
from gevent.fileobject import FileObject

from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.loadtest.engine.endpoint.credentials import Access
from tailrate.loadtest.engine.record.device_collector import UNREADABLE, forever
from tailrate.loadtest.engine.record.devices.agent_reader import MOST_BYTES, AgentReader
from tailrate.loadtest.engine.record.devices.names import Names, SourceRows
from tailrate.loadtest.engine.record.devices.scraper import MOST_PAGE_BYTES, Scraper
from tailrate.loadtest.engine.record.devices.source import AGENT, DeviceSource

TIMEOUT_S = 5.0
"""For an answer: who takes longer is lost, and asked again."""
FACTS_S = 2.0
LAST_S = 2.0
"""For what is asked of all sources at the end."""

Write = Callable[..., None]


class Reader:
    """All sources, each in greenlets of its own."""

    def __init__(self, asked: dict[str, Any], write: Write) -> None:
        self._write = write
        self._ports = asked["ports"]
        base, names = Base(int(asked["anchor_ns"])), Names(len(asked["sources"]) > 1)
        self._sources = [self._made(number, each, base, names) for number, each in enumerate(asked["sources"])]
        self._holders: list[dict[str, list[str]]] = [{} for _ in self._sources]
        self._greenlets: list[gevent.Greenlet[..., None]] = []

    def _made(
        self, number: int, asked: dict[str, Any], base: Base, names: Names
    ) -> tuple[AgentReader | Scraper, SourceRows]:
        source = DeviceSource(asked["kind"], asked["url"], ())
        access = Access(asked["token"], asked["header"], ca_file=asked["ca_file"])
        most = MOST_BYTES if source.kind == AGENT else MOST_PAGE_BYTES
        client = Client(source.url, TIMEOUT_S, access, most)
        rows = SourceRows(source, names, lambda found: self._write(rows=found))

        def event(kind: str, **what: Any) -> None:
            self._write(event=kind, what=what | {"source": source.named})

        made = AgentReader if source.kind == AGENT else Scraper
        return made(source, client, base, rows, event), rows

    def start(self) -> None:
        gevent.joinall([gevent.spawn(_guarded, source.start) for source, _ in self._sources])
        for number, (source, _) in enumerate(self._sources):
            self._holders[number] = {str(port): source.holders(port) for port in self._ports}
        self._tell()
        self._write(ready=True)
        self.resume()

    def resume(self) -> None:
        works = [work for source, _ in self._sources for work in source.works()]
        self._greenlets = [gevent.spawn(forever, work, every_s, self._write_event) for work, every_s in works]
        self._greenlets.append(gevent.spawn(forever, self._tell, FACTS_S, self._write_event))

    def pause(self) -> None:
        gevent.killall(self._greenlets)
        self._greenlets = []

    def forget(self) -> None:
        for source, _ in self._sources:
            _guarded(source.forget)

    def stop(self) -> None:
        """What has come since the last poll, as far as it comes soon."""
        if self._greenlets:
            self.pause()
            lasts = [gevent.spawn(_guarded, source.last) for source, _ in self._sources]
            gevent.joinall(lasts, timeout=LAST_S)
            gevent.killall(lasts)
        self._tell()

    def _write_event(self, kind: str, **what: Any) -> None:
        self._write(event=kind, what=what)

    def _tell(self) -> None:
        facts = [
            source.facts()
            | {"devices": rows.devices, "samples": rows.count, "left_out": sorted(rows.left_out), "holders": held}
            for (source, rows), held in zip(self._sources, self._holders, strict=True)
        ]
        self._write(facts=facts, clocks=[entry for source, _ in self._sources for entry in source.clocks()])


def _guarded(work: Callable[[], object]) -> None:
    with suppress(*UNREADABLE):  # which is said when it is asked again
        work()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: whoever started this says when it ends
    words = FileObject(os.dup(0), "rb")
    out = FileObject(os.dup(1), "wb", 0)

    def write(**what: Any) -> None:
        out.write(json.dumps(what, separators=(",", ":")).encode() + b"\n")

    reader = Reader(json.loads(words.readline()), write)
    reader.start()
    for line in words:
        word = line.strip().decode()
        if word == "stop":
            break
        {"pause": reader.pause, "resume": reader.resume, "forget": reader.forget}[word]()
    reader.stop()
    write(ended=True)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # whoever started this is gone
        sys.exit(1)
