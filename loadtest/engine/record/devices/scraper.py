"""One exporter's page, asked for each second: samples at the middle of each scrape, on this machine's clock.

A page has no clock of its own, and may show what was measured a while ago: DCGM's exporter measures every 30 s unless
it is told otherwise. How often its figures change is kept, and the energy counter counts from its first change on, and
only where it has changed: between two changes it says nothing of when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

from tailrate.analysis.records.device_rows import DEVICE_COLUMNS
from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.endpoint.answer import OK, EndpointAnswer
from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.loadtest.engine.record.devices.exporters import READERS, Reading, meant
from tailrate.loadtest.engine.record.devices.names import SourceRows
from tailrate.loadtest.engine.record.devices.source import DeviceSource
from tailrate.loadtest.engine.record.exposition import BROKEN, parse

SCRAPE_S = 1.0

MOST_PAGE_BYTES = 8 << 20
MOST_GAPS = 200


class Scraper:
    def __init__(
        self, source: DeviceSource, client: Client, base: Base, rows: SourceRows, event: Callable[..., None]
    ) -> None:
        self._names: set[str] = set()
        """What the page calls its hosts."""
        self._broken = 0
        """Lines of the page that are none, as many as there ever were at once."""
        self._read = READERS[source.kind]
        self._source = source
        self._client = client
        self._base = base
        self._rows = rows
        self._event = event
        self._lost = False
        self._error_ns = 0
        self._at_ns = 0
        self._last: dict[str, tuple[int, Reading]] = {}
        self._changed_ns: dict[str, int] = {}
        self._gaps: list[float] = []

    def start(self) -> None:
        self.scrape()

    def works(self) -> list[tuple[Callable[[], None], float]]:
        """What is to be done, and how many seconds apart."""
        return [(self.scrape, SCRAPE_S)]

    def forget(self) -> None:
        """A page keeps nothing of what it showed before."""

    def last(self) -> None:
        self.scrape()

    def clocks(self) -> list[dict[str, Any]]:
        """Samples have this machine's time: what may be wrong with it is how long a scrape took."""
        host = self._rows.host(self._source.netloc)
        entry = {"host": host, "offset_ns": 0, "error_ns": self._error_ns, "drift_ppm": 0.0, "at_ns": self._at_ns}
        return [entry] if self._at_ns else []

    def facts(self) -> dict[str, Any]:
        changes_s = round(median(self._gaps), 3) if self._gaps else None
        found: dict[str, Any] = {"hosts": sorted(self._names), "period_s": SCRAPE_S, "changes_s": changes_s}
        found["clock"] = "the load machine's: a page has none"
        return found | ({"broken_lines": self._broken} if self._broken else {})

    def holders(self, port: int) -> list[str]:
        return []

    def scrape(self) -> None:
        answer = self._client.send("GET", self._source.path)
        problem = self._take(answer)
        if problem and not self._lost:
            self._event("telemetry_lost", status=answer.status, sentence=problem)
        elif self._lost and not problem:
            self._event("telemetry_back")
        self._lost = bool(problem)

    def _take(self, answer: EndpointAnswer) -> str:
        """What was wrong with it; empty where nothing was."""
        if answer.status != OK:
            return answer.error or f"it answered {answer.status}"
        skipped: Counter[str] = Counter()
        page = self._read(parse(answer.body.decode("utf-8", "replace"), skipped), self._source.netloc)
        self._broken = max(self._broken, skipped[BROKEN])
        if not page:
            return f"its page has no figure that {self._source.kind} is known by"
        self._names |= {reading.host for reading in page.values() if reading.host}
        middle_ns = (answer.sent_ns + answer.done_ns) // 2
        self._error_ns = max(self._error_ns, (answer.done_ns - answer.sent_ns) // 2)
        self._at_ns = self._base.wall_ns(middle_ns)
        for device, reading in page.items():
            self._sample(device, reading, middle_ns)
        self._rows.flush()
        return ""

    def _sample(self, device: str, reading: Reading, at_ns: int) -> None:
        values: dict[str, Any] = dict(reading.values)
        before_ns, before = self._last.get(device, (0, None))
        self._last[device] = at_ns, reading
        if before is None:
            values.pop("energy_j", None)
        else:
            values |= _rates(before, reading, (at_ns - before_ns) / 1e9)
            if before.values.get("energy_j") == reading.values.get("energy_j"):
                values.pop("energy_j", None)
            if (before.values, before.totals) != (reading.values, reading.totals):
                if device in self._changed_ns:
                    self._gaps = [*self._gaps[1 - MOST_GAPS :], (at_ns - self._changed_ns[device]) / 1e9]
                self._changed_ns[device] = at_ns
        values |= {"time_ns": self._base.wall_ns(at_ns), "host": self._source.netloc}
        values |= {"device": device, "index": reading.index}
        self._rows.append(tuple(values.get(name) for name in DEVICE_COLUMNS))


def _rates(before: Reading, now: Reading, seconds: float) -> dict[str, float | None]:
    """What counters say of the time since the last scrape; nothing where one fell, as after a start."""
    grown = {name: now.totals[name] - before.totals[name] for name in now.totals if name in before.totals}
    if seconds <= 0 or any(growth < 0 for growth in grown.values()):
        return {}
    busy, total = grown.pop("busy", 0.0), grown.pop("all", 0.0)
    found = {name: meant(name, growth / seconds) for name, growth in grown.items()}
    return found | ({"util_pct": meant("util_pct", 100 * busy / total)} if total > 0 else {})
