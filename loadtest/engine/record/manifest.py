"""The manifest with which a run begins, or with which a soak goes on. Writes nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailrate.analysis.records.manifest import Manifest
from tailrate.loadtest.engine.modes.soak import Soak
from tailrate.loadtest.engine.record.provenance import hosts, versions
from tailrate.loadtest.engine.scenario.scenario import Scenario, ScenarioError
from tailrate.serve import wire


def fresh(
    name: str,
    scenario: Scenario,
    served: Sequence[tuple[wire.EndpointInfo, str]],
    server: dict[str, Any],
    url: str,
    promptness: dict[str, Any],
    now_ns: int,
    command: str,
) -> Manifest:
    """Of a run of this name; `served` has each endpoint with its path, `server` what that says of itself."""
    return Manifest(
        id=name,
        status="running",
        scenario=scenario.as_json() | {"steps": []},
        endpoints=[
            {
                "model": info.model,
                "variant": info.variant,
                "path": path,
                "device": info.parameters.get("device"),
                "max_batch": info.parameters.get("max_batch"),
                "parameters": dict(info.parameters),
            }
            for info, path in served
        ],
        started_ns=now_ns,
        hosts=hosts(server, url, promptness),
        versions=versions(server),
        extra=_writer() | {"command": command},
    )


def resumed(folder: Path, scenario: Scenario, paths: set[str], now_ns: int) -> tuple[Scenario, Manifest]:
    """What is left to do of the run that it goes on with, or `ScenarioError` where other endpoints are there now."""
    found = Manifest.read(folder)
    had = {entry["path"] for entry in found.endpoints}
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
    """Who writes the folder, as long as it is written."""
    return {"pid": os.getpid(), "host": socket.gethostname()}
