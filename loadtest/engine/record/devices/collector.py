"""The run's side of all sources that `--devices` names: one collector, as that of the endpoint's own samples is.

A process of its own reads them (`reader`); here its lines become rows, events, clocks and what the manifest says of
devices: `device_sources` has an entry for each source (its kind, URL and period, how often its figures change, its
hosts and devices, how many samples came, what went wrong), and each endpoint's `devices` are those that it is on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import gevent
from gevent import subprocess
from gevent.event import Event

from tailrate.analysis.records.manifest import Manifest, endpoint_name
from tailrate.loadtest.engine import child_python
from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.endpoint import credentials
from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.loadtest.engine.endpoint.credentials import ANYBODY, Access
from tailrate.loadtest.engine.endpoint.servers import OpenEndpoint
from tailrate.loadtest.engine.record.device_collector import Rows
from tailrate.loadtest.engine.record.devices.binding import Binding, bind
from tailrate.loadtest.engine.record.devices.source import AGENT, DeviceSource, parse

READER = "tailrate.loadtest.engine.record.devices.reader"
READY_S = 20.0
"""For the process to start, and to ask each source once."""
END_S = 5.0
TELEMETRY = "telemetry"
"""What a server that samples its devices has among its extensions."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What was asked for, and what lets us in there."""

    devices: tuple[DeviceSource, ...]
    access: Access
    own: Mapping[str, Access] = field(default_factory=dict)
    """What lets us in at single ones, by their URLs."""


def sources(options: Any) -> Sources | None:
    """By the option and the environment; None where samples are the endpoint's; raises `ScenarioError`."""
    found = parse(options.devices)
    return Sources(found, credentials.for_devices(options)) if found else None


def of_servers(endpoints: Sequence[OpenEndpoint], servers: Mapping[str, Mapping[str, Any]]) -> Sources | None:
    """Those of several servers that sample their hosts' devices themselves, one of each host; None: one server alone.

    `servers` has what each says of itself, by its URL.
    """
    if len(servers) < 2:
        return None
    by_host: dict[str, str] = {}
    for url, said in servers.items():
        if TELEMETRY in (said.get("extensions") or ()):
            by_host.setdefault(str(said.get("host") or url), url)
    own = {opened.client.url: opened.client.access for opened in endpoints if opened.client.url in by_host.values()}
    return Sources(parse(",".join(own)), ANYBODY, own) if own else None


class SourcesCollector:
    """`host` is empty where no source has a sample."""

    def __init__(
        self, asked: Sources, client: Client, base: Base, rows: Rows, event: Callable[..., None], manifest: Manifest
    ) -> None:
        self._asked = asked
        self._client = client
        self._base = base
        self._rows = rows
        self._event = event
        self._manifest = manifest
        self._facts: list[dict[str, Any]] = [{} for _ in asked.devices]
        self._clocks: list[dict[str, Any]] = []
        self._problems: dict[str, str] = {}
        """By source, the last that went wrong."""
        self._said: set[str] = set()
        self._process: Any = None
        self._ready, self._ended = Event(), Event()

    @property
    def host(self) -> str:
        known = (facts.get("hosts") or facts.get("devices") for facts in self._facts)
        return next((str(name) for names in known for name in names or ()), "")

    def start(self) -> None:
        """Starts the process and waits until it has asked each source once."""
        self._process = subprocess.Popen(
            child_python.command(READER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_python.environment(),
        )
        ports = sorted({_port(url) for url in self._urls().values()})
        asked = {"anchor_ns": self._base.anchor_ns, "ports": ports}
        self._tell(json.dumps(asked | {"sources": [self._one(source) for source in self._asked.devices]}))
        gevent.spawn(self._listen, self._process)
        if not self._ready.wait(READY_S):
            self._event("warning", sentence=f"the sources of device samples did not answer in {READY_S:g} s")

    def pause(self) -> None:
        self._tell("pause")

    def resume(self) -> None:
        self._tell("resume")

    def forget(self) -> None:
        self._tell("forget")

    def stop(self) -> None:
        """What has come since the last poll is read, then the process ends."""
        if self._process is None:
            return
        self._tell("stop")
        self._ended.wait(END_S)
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._bind()

    def merge(self, windows: list[tuple[int, int, int]]) -> None:
        """The exchange of requests shows the clock of the endpoint, which need not be that of any source."""

    def clocks(self) -> list[dict[str, Any]]:
        """The manifest's `clock`."""
        return self._clocks

    # ---- the process

    def _one(self, source: DeviceSource) -> dict[str, Any]:
        """An agent that is the endpoint itself gets its token; a page gets none."""
        alike = self._client.access if source.url == self._client.url else self._asked.access
        access = self._asked.own.get(source.url, alike)
        token = access.token if source.kind == AGENT else ""
        made = {"kind": source.kind, "url": source.url, "token": token}
        return made | {"header": access.header, "ca_file": access.ca_file}

    def _tell(self, word: str) -> None:
        with suppress(OSError, ValueError):  # it is gone, which was said when it went
            self._process.stdin.write(word.encode() + b"\n")
            self._process.stdin.flush()

    def _listen(self, process: Any) -> None:
        try:
            for line in process.stdout:
                self._take(json.loads(line))
        except (OSError, ValueError) as problem:
            self._event("warning", sentence=f"the process that reads device samples is not understood: {problem}")
        if not self._ended.is_set():
            self._event("telemetry_lost", status="ended", sentence="the process that reads device samples has ended")
        self._ready.set()
        self._ended.set()

    def _take(self, said: dict[str, Any]) -> None:
        if "rows" in said:
            for row in said["rows"]:
                self._rows.append(tuple(row))
            self._rows.flush()
        elif "event" in said:
            what = said["what"]
            if "source" in what and said["event"] in ("warning", "telemetry_lost"):
                self._problems[what["source"]] = str(what.get("sentence") or what.get("status"))
            self._event(said["event"], **what)
        elif "facts" in said:
            before, self._facts, self._clocks = self._facts, said["facts"], said["clocks"]
            if [facts.get("devices") for facts in before] != [facts["devices"] for facts in self._facts]:
                self._bind()
        elif "ready" in said:
            self._ready.set()
        elif "ended" in said:
            self._ended.set()

    # ---- what the manifest says

    def _urls(self) -> dict[str, str]:
        """Of each endpoint, by its name."""
        return {endpoint_name(entry): str(entry.get("url") or self._client.url) for entry in self._manifest.endpoints}

    def _bind(self) -> None:
        found = bind(self._urls(), list(zip(self._asked.devices, self._facts, strict=True)))
        for entry, devices in zip(self._manifest.endpoints, found.devices.values(), strict=True):
            entry["devices"] = devices
        self._manifest.extra["device_sources"] = [
            self._entry(source, facts) for source, facts in zip(self._asked.devices, self._facts, strict=True)
        ]
        self._remark(found)

    def _entry(self, source: DeviceSource, facts: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in facts.items() if key != "holders" and value not in ([], None)}
        kept["devices"] = list(facts.get("devices") or ())
        problem = self._problems.get(source.named)
        return {"kind": source.kind, "url": source.url} | kept | ({"problem": problem} if problem else {})

    def _remark(self, found: Binding) -> None:
        for sentence in found.remarks:
            if sentence not in self._said:
                self._said.add(sentence)
                self._event("warning", sentence=sentence)


def _port(url: str) -> int:
    parts = credentials.address(url)
    return parts.port or (443 if parts.scheme == "https" else 80)
