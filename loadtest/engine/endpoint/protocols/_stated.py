"""What a server of the Open Inference Protocol, and ours by whatever protocol, says of itself and of its endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrate.loadtest.engine.endpoint.protocol import SINCE
from tailrate.loadtest.engine.endpoint.target import Endpoint
from tailrate.serve import wire

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.client import Client


def server(client: Client) -> dict[str, Any]:
    found = client.get_json(wire.SERVER)
    return found if isinstance(found, dict) else {}


def parameters(client: Client, model: str, version: str) -> dict[str, Any]:
    found = client.get_json(wire.model_path(model, version or None))
    said = found.get("parameters") if isinstance(found, dict) else None
    return said if isinstance(said, dict) else {}


def events(client: Client, endpoint: Endpoint) -> dict[str, int] | None:
    """As tailrate's server counts them in `…/stats`, and since when; Triton and others count other things."""
    found = client.get_json(wire.model_path(endpoint.model, endpoint.version or None) + "/stats")
    try:
        stats = found["model_stats"][0]
        counts = {str(name): int(count) for name, count in stats["events"].items()}
        return counts | {SINCE: int(stats.get(SINCE, 0))}
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
