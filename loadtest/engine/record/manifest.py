"""The manifest with which a run begins, or with which a soak goes on. Writes nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailrate.analysis.records.manifest import WRITER, Manifest
from tailrate.analysis.records.process import began
from tailrate.loadtest.engine.endpoint.protocol import KNOWN
from tailrate.loadtest.engine.endpoint.target import Endpoint
from tailrate.loadtest.engine.modes.soak import Soak
from tailrate.loadtest.engine.record.provenance import hosts, versions
from tailrate.loadtest.engine.scenario.scenario import Scenario, ScenarioError


def fresh(
    name: str,
    scenario: Scenario,
    endpoints: Sequence[Endpoint],
    servers: Mapping[str, dict[str, Any]],
    promptness: dict[str, Any],
    now_ns: int,
    command: str,
) -> Manifest:
    """Of a run of this name; `servers` has what each of them says of itself, by its URL."""
    return Manifest(
        id=name,
        status="running",
        scenario=scenario.as_json() | {"steps": []},
        endpoints=[
            {
                "name": endpoint.name,
                "url": endpoint.url,
                "protocol": endpoint.protocol,
                "model": endpoint.model,
                "variant": endpoint.version,
                "path": endpoint.path,
                "device": endpoint.parameters.get("device"),
                "max_batch": endpoint.parameters.get("max_batch"),
                "parameters": dict(endpoint.parameters),
                **({"streams": True, "settings": dict(endpoint.settings)} if KNOWN[endpoint.protocol].streams else {}),
            }
            for endpoint in endpoints
        ],
        started_ns=now_ns,
        hosts=hosts(servers, promptness),
        versions=versions(servers),
        extra=_writer() | {"command": command},
    )


def resumed(folder: Path, scenario: Scenario, endpoints: Sequence[Endpoint], now_ns: int) -> tuple[Scenario, Manifest]:
    """What is left to do of the run that it goes on with, or `ScenarioError` where other endpoints are there now."""
    found = Manifest.read(folder)
    had, paths = {entry["path"] for entry in found.endpoints}, {endpoint.path for endpoint in endpoints}
    if had != paths:
        there = ", ".join(sorted(paths))
        raise ScenarioError(f"{folder} drove {', '.join(sorted(had))}; now there is {there}")
    if found.extra.pop("extend", False):  # also by the time that it took to start again
        away_s = (now_ns - found.extra["interrupted_ns"]) / 1e9
        soak = scenario.mode
        assert isinstance(soak, Soak)
        scenario = replace(scenario, mode=replace(soak, total_seconds=soak.total_seconds + away_s))
    found.status, found.finished_ns = "running", 0
    found.scenario |= scenario.as_json()
    found.extra |= _writer()
    found.extra["resumed"] = [*found.extra.get("resumed", ()), {"start_ns": now_ns, "pid": os.getpid()}]
    found.extra.pop("stopped", None)
    return scenario, found


def _writer() -> dict[str, Any]:
    pid = os.getpid()
    return dict(zip(WRITER, (pid, began(pid), socket.gethostname()), strict=True))
