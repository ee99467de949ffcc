"""What a soak has beyond other runs: chapters, what is noted beside them, its early end, the gap before it went on.

Chapters are blocks of the plan; between two of them files are turned, and nothing is sent for a moment. Beside them it
notes what the harness itself takes (`process`, `disk`), what the server says of itself (`server`) and each minute's
figures (`minute`), so that days of it can be read without their rows. Nothing here grows with its length but a few
lines of `run.json` for each chapter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gevent

from tailrate.analysis.records.objective import BEFORE_FAULT_S, looked_for_s
from tailrate.loadtest.engine.endpoint.servers import OpenEndpoint
from tailrate.loadtest.engine.live.step_stats import Live
from tailrate.loadtest.engine.modes.soak import Soak
from tailrate.loadtest.engine.record.run_folder import RunFolder
from tailrate.loadtest.engine.scenario.scenario import Scenario, ScenarioError
from tailrate.loadtest.engine.scenario.steps import Blocks, StepPlan
from tailrate.loadtest.engine.soak import process_usage
from tailrate.loadtest.engine.soak.minutes import Minutes

SPARED_NS = 120_000_000_000
"""After a planned fault, in which what users see of it is no reason to end early."""
SERVER_S = 60.0
LOOK_S = 1.0
CAN_CHANGE = ("replica",)
"""Texts of a server that are noted even when they are as they were."""


class SoakConduct:
    """`end` is called with the sentence that says why it should end; `start` and `stop` frame what is noted."""

    def __init__(
        self,
        scenario: Scenario,
        soak: Soak,
        endpoints: Sequence[OpenEndpoint],
        folder: RunFolder,
        now: Callable[[], int],
        end: Callable[[str], None],
        conductor_too: bool,
    ) -> None:
        self._scenario, self._soak, self._folder = scenario, soak, folder
        self._endpoints = endpoints
        self._now, self._end = now, end
        self._conductor_too = conductor_too
        """It is a process of its own, beside the load processes."""
        self._stop = soak.stop
        self._minutes = Minutes(scenario.timeout_s)
        self._steps: list[dict[str, Any]] = folder.manifest.scenario["steps"]
        self._entries = folder.manifest.endpoints
        self._names = [endpoint.name for endpoint in endpoints]
        self._planned: dict[int, tuple[int, float]] = {}
        """The time of each planned fault; infinite while it lasts."""
        self._greenlets: list[gevent.Greenlet[..., None]] = []
        folder.manifest.extra["chapters"] = folder.chapters

    # ---- the plan

    def _elapsed_s(self, at_ns: int | None = None) -> float:
        if not self._steps:
            return 0.0
        return float((at_ns or self._now()) - self._steps[0]["start_ns"]) / 1e9

    def blocks(self, lead_s: float) -> Blocks:
        """The steps of each chapter; a chapter starts `lead_s` seconds after it was requested."""

        def at_s() -> float:
            return self._elapsed_s() + lead_s if self._steps else 0.0

        done = 1 + max((step["block"] for step in self._steps), default=-1)
        return self._soak.chapters(StepPlan(self._scenario, done, len(self._steps)), self._names, at_s)

    def planned_s(self, pause_s: float) -> list[float]:
        """How long each block takes, those before a resumption nothing."""
        done = 1 + max((step["block"] for step in self._steps), default=-1)
        left_s, length_s = max(0.0, self._soak.total_seconds - self._elapsed_s()), self._soak.chapter_seconds
        count = math.ceil(left_s / length_s)
        return [0.0] * done + [pause_s + min(length_s, left_s - length_s * number) for number in range(count)]

    # ---- chapters

    def begin(self, start_ns: int, end_ns: int) -> None:
        self.note_gap(start_ns)
        self._minutes.begin(start_ns, end_ns)

    def note_gap(self, until_ns: int) -> None:
        """Between two lives of a soak, if it is in its second one; up to its planned end."""
        since_ns = self._folder.manifest.extra.pop("interrupted_ns", None)
        if since_ns is not None:
            from_s, to_s = self._elapsed_s(since_ns), min(self._elapsed_s(until_ns), self._soak.total_seconds)
            missed = self._soak.to_be_expected(self._scenario.rates[0], self._names, from_s, max(from_s, to_s))
            self._folder.event("gap", start_ns=since_ns, end_ns=until_ns, scheduled=missed)

    def see(self, batch: Any) -> None:
        self._minutes.see(batch)

    def fault(self, what: Mapping[str, Any]) -> None:
        if what["phase"] != "refused":
            self._planned[what["id"]] = what["start_ns"], math.inf if what["end_ns"] is None else what["end_ns"]

    def _spared(self, start_ns: int, end_ns: int) -> bool:
        return any(start < end_ns and start_ns < end + SPARED_NS for start, end in self._planned.values())

    def _told_ns(self) -> int:
        """Up to when all rows are there from which faults are told: those before one, and those after it."""
        now, looked_ns = self._now(), 1e9 * looked_for_s(self._scenario.max_recovery_s)
        open_ = (start for start, end in self._planned.values() if end + looked_ns > now)
        return min([now, *open_]) - round(BEFORE_FAULT_S * 1e9)

    def finished(self, live: Live) -> None:
        """One step of a chapter."""
        if not self._spared(live.start_ns, self._now()):
            self._judge(self._stop.chapter(live.step.endpoint, live.answers()))

    def over(self) -> None:
        """Every arrival of the chapter has its row, and its steps are in the manifest."""
        self._note_minutes(None)
        self._folder.turn()
        keep_s, keep_bytes = 3600 * self._soak.keep_hours, 1e9 * self._soak.keep_gb
        self._folder.compact(self._folder.retire(keep_s, keep_bytes, self._now(), self._told_ns()))

    # ---- beside them

    def start(self) -> None:
        looks: list[tuple[Callable[[], None], float]] = [
            (lambda: self._folder.event("disk", **self._folder.disk()), SERVER_S),
            (self._look_at_servers, SERVER_S),
            (self._look_at_rows, LOOK_S),
        ]
        if self._conductor_too:
            own = process_usage.ProcessUsage()
            looks.append((lambda: self.process("conductor", own.look()), process_usage.PERIOD_S))
        self._greenlets = [gevent.spawn(_forever, *look) for look in looks]

    def stop(self) -> None:
        gevent.killall(self._greenlets)
        self._note_minutes(None)

    def process(self, role: str, found: Mapping[str, Any]) -> None:
        self._folder.event("process", role=role, **found)
        self._judge(self._stop.memory(role, int(found["rss_bytes"])))

    def _look_at_rows(self) -> None:
        self._note_minutes(self._now())

    def _note_minutes(self, until_ns: int | None) -> None:
        for minute in self._minutes.over(until_ns):
            self._folder.event("minute", **minute.as_json())
            if not self._spared(minute.start_ns, minute.end_ns):
                self._judge(self._stop.minute(minute))

    def _look_at_servers(self) -> None:
        for endpoint, entry in zip(self._endpoints, self._entries, strict=True):
            try:
                said = endpoint.parameters()
            except (ScenarioError, AttributeError):  # its failures are rows
                continue
            if found := _changing(said, entry.get("parameters") or {}):
                self._folder.event("server", endpoint=endpoint.name, **found)

    def _judge(self, sentence: str | None) -> None:
        if sentence:
            self._end(sentence)


def _changing(said: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, and texts that may become others."""
    numbers = {key: value for key, value in said.items() if type(value) in (int, float)}
    texts = {key: value for key, value in said.items() if isinstance(value, str)}
    return numbers | {key: text for key, text in texts.items() if key in CAN_CHANGE or text != before.get(key)}


def _forever(look: Callable[[], None], period_s: float) -> None:
    while True:
        look()
        gevent.sleep(period_s)
