"""The proxy that requests come through dies, and Ray Serve starts another."""

from __future__ import annotations

import asyncio

from tailrate.serve.faults import ServerFault, ServerSide

DELAY_S = 0.3
"""From the answer to the end of the way that it takes."""


async def strike(server: ServerSide, target: str, seconds: float) -> str:
    kill = server.killing("ingress")

    async def soon() -> None:  # this answer goes out by the way that then ends
        await asyncio.sleep(DELAY_S)
        await asyncio.to_thread(kill, target)

    task = asyncio.create_task(soon())
    server.later.add(task)
    task.add_done_callback(server.later.discard)
    return f"the proxy that requests come through is killed in {DELAY_S:g} s; Ray Serve starts another"


FAULT = ServerFault(place=2, word="ingress", strike=strike)
