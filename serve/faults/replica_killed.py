"""A replica dies as in a crash, and Ray Serve starts another."""

from __future__ import annotations

import time

from tailrate.serve.faults import ServerFault, ServerSide, Target
from tailrate.serve.wire import WireError


async def strike(server: ServerSide, target: str, seconds: float) -> str:
    """Hits the first replica of the endpoint that is still there."""
    names = {"/".join(name): name for name in server.board.endpoints}
    if target and target not in names:
        raise WireError(409, f"unknown endpoint '{target[:64]}'; there are {', '.join(names)}")
    endpoint = target or next(iter(names))
    why = WireError(409, f"no replica of {endpoint} is heard of")
    for report in server.board.reports(names[endpoint], time.monotonic()):
        try:
            return f"replica {await server.kill('replica', report['replica'])} of {endpoint} was killed"
        except WireError as problem:
            why = problem  # dead for a moment: the board does not know yet
    raise why


FAULT = ServerFault(place=1, word="replica", target=Target("model/variant", "the first one"), strike=strike)
