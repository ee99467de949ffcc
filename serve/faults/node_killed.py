"""A node of the cluster dies: neither the head nor the gateway's."""

from __future__ import annotations

from tailrate.serve.faults import ServerFault, ServerSide, Target


async def strike(server: ServerSide, target: str, seconds: float) -> str:
    return f"the raylet of {await server.kill('node', target)} was killed"


FAULT = ServerFault(place=3, word="node", target=Target("a host of the cluster", "any but the head"), strike=strike)
