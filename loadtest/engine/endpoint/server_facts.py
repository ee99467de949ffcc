"""What the server says of itself, before the run and after it, so that what happened in between can be told.

Recompiles, requests that waited for them, out-of-memory events and responses that were compared with eager
afterwards are counted by the server for all of its life; the difference is the run's. Other servers count
other things or nothing: then there is nothing to tell.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import gevent

from tailrate.analysis.records.manifest import Manifest
from tailrate.loadtest.engine.endpoint.protocol import SINCE
from tailrate.loadtest.engine.endpoint.servers import OpenEndpoint
from tailrate.loadtest.engine.scenario.scenario import ScenarioError

PATIENCE_S = 20.0
"""How long the server is given to compare the responses that it has sampled."""


def before(endpoints: Sequence[OpenEndpoint], manifest: Manifest, servers: Mapping[str, dict[str, Any]]) -> None:
    """Adds `events_before` to each endpoint of the manifest, and the first server's `ingress`.

    `servers` has what each says of itself, by its URL. Where one that has statistics does not give them,
    `events_unread` says why.
    """
    if isinstance(ingress := servers[endpoints[0].client.url].get("ingress"), dict):
        manifest.extra["ingress"] = {"before": ingress}
    for entry, endpoint in zip(manifest.endpoints, endpoints, strict=True):
        try:
            entry["events_before"] = endpoint.events()
        except ScenarioError as problem:
            entry["events_before"] = None
            if "statistics" in (servers[endpoint.client.url].get("extensions") or ()):
                entry["events_unread"] = str(problem)


def after(endpoints: Sequence[OpenEndpoint], manifest: Manifest) -> None:
    """Adds `parameters_after` and `events` (this run's), as far as the server still answers."""
    until_s = time.monotonic() + PATIENCE_S
    try:
        for entry, endpoint in zip(manifest.endpoints, endpoints, strict=True):
            said = endpoint.parameters()
            while said.get("sampled_waiting") and time.monotonic() < until_s:
                gevent.sleep(0.5)
                said = endpoint.parameters()
            entry["parameters_after"] = said
            if (had := entry["events_before"]) is not None and (has := endpoint.events()) is not None:
                _count(entry, had, has)
        if "ingress" in manifest.extra:
            manifest.extra["ingress"]["after"] = endpoints[0].server().get("ingress")
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
