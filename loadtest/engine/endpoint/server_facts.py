"""What the server says of itself, before the run and after it, so that what happened in between can be told.

Recompiles, requests that waited for them, out-of-memory events and responses that were compared with eager
afterwards are counted by the server for all of its life; the difference is the run's. Other servers count
other things or nothing: then there is nothing to tell.
"""

from __future__ import annotations

import time
from typing import Any

import gevent

from tailrate.analysis.records.manifest import Manifest
from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve import wire

SINCE = "since"
PATIENCE_S = 20.0
"""How long the server is given to compare the responses that it has sampled."""


def before(client: Client, manifest: Manifest, server: dict[str, Any]) -> None:
    """Adds `events_before` to each endpoint of the manifest, and the server's `ingress`.

    Where a server that has statistics does not give them, `events_unread` says why.
    """
    if isinstance(server.get("ingress"), dict):
        manifest.extra["ingress"] = {"before": server["ingress"]}
    for entry in manifest.endpoints:
        try:
            entry["events_before"] = _events(client, entry)
        except ScenarioError as problem:
            entry["events_before"] = None
            if "statistics" in (server.get("extensions") or ()):
                entry["events_unread"] = str(problem)


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
            if (had := entry["events_before"]) is not None and (has := _events(client, entry)) is not None:
                _count(entry, had, has)
        if "ingress" in manifest.extra:
            manifest.extra["ingress"]["after"] = client.get_json(wire.SERVER).get("ingress")
    except (ScenarioError, AttributeError) as problem:  # gone, or answers something else: the run itself is whole
        for entry in manifest.endpoints:
            if entry.get("events_before") is not None and "events" not in entry:
                entry["events_unread"] = str(problem)
    for entry in manifest.endpoints:
        entry.pop("events_before", None)


def _count(entry: dict[str, Any], had: dict[str, int], has: dict[str, int]) -> None:
    """What was counted in the run."""
    if had.pop(SINCE) != has.pop(SINCE):
        entry["events_unread"] = "its counts began anew during the run"
        had = {}
    entry["events"] = {name: max(0, has[name] - had.get(name, 0)) for name in has}


def _events(client: Client, entry: dict[str, Any]) -> dict[str, int] | None:
    """The counts of `…/stats`, and since when they are; None where the server counts none, as Triton does."""
    found = client.get_json(wire.model_path(entry["model"], entry["variant"]) + "/stats")
    try:
        stats = found["model_stats"][0]
        return {str(name): int(count) for name, count in stats["events"].items()} | {SINCE: int(stats.get(SINCE, 0))}
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
