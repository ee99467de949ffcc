"""What the server says of itself, before the run and after it, so that what happened in between can be told.

Recompiles, requests that waited for them, out-of-memory events and responses that were compared with eager
afterwards are counted by the server for all of its life; the difference is the run's. Other servers count
other things or nothing: then there is nothing to tell.
"""

from __future__ import annotations

import time
from typing import Any

import gevent

from analysis.records import Manifest
from loadtest.engine.client import Client
from loadtest.engine.scenario import ScenarioError
from serve import wire

PATIENCE_S = 20.0
"""How long the server is given to compare the responses that it has sampled."""


def before(client: Client, manifest: Manifest, server: dict[str, Any]) -> None:
    """Adds `events_before` to each endpoint of the manifest, and the server's `ingress`."""
    if isinstance(server.get("ingress"), dict):
        manifest.extra["ingress"] = {"before": server["ingress"]}
    for entry in manifest.endpoints:
        entry["events_before"] = _events(client, entry)


def after(client: Client, manifest: Manifest) -> None:
    """Adds `parameters_after` and `events` (this run's), as far as the server still answers."""
    until_s = time.monotonic() + PATIENCE_S
    try:
        for entry in manifest.endpoints:
            path = wire.model_path(entry["model"], entry["variant"])
            said = client.get_json(path).get("parameters") or {}
            while said.get("sampled_waiting") and time.monotonic() < until_s:
                gevent.sleep(0.5)
                said = client.get_json(path).get("parameters") or {}
            entry["parameters_after"] = said
            had, has = entry.pop("events_before"), _events(client, entry)
            if had is not None and has is not None:
                # counts of a server that was started anew in between begin at zero
                entry["events"] = {name: max(0, has[name] - had.get(name, 0)) for name in has}
        if "ingress" in manifest.extra:
            manifest.extra["ingress"]["after"] = client.get_json(wire.SERVER).get("ingress")
    except (ScenarioError, AttributeError):  # gone, or answers something else now: the run itself is whole
        return


def _events(client: Client, entry: dict[str, Any]) -> dict[str, int] | None:
    """The counts of `…/stats`; None where the server has none."""
    try:
        found = client.get_json(wire.model_path(entry["model"], entry["variant"]) + "/stats")
        events = found["model_stats"][0]["events"]
        return {str(name): int(count) for name, count in events.items()}
    except (ScenarioError, LookupError, TypeError, ValueError, AttributeError):
        return None
