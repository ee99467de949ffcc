"""Faults on request: `POST /v2/tailrate/faults` breaks something of this server, if that was allowed at its start.

    {"fault": "cpu_taken", "target": "2", "seconds": 30} → {"fault": …, "sentence": "what was done"}

403 without --allow-faults, 409 for what cannot be done here. What there is to be done: `tailrate.serve.faults`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tailrate.serve import wire
from tailrate.serve.asgi import HttpAnswer, Request, as_json
from tailrate.serve.edge.replica_board import ReplicaBoard
from tailrate.serve.faults import MOST_SECONDS, Kill, ServerSide, amount, server_faults
from tailrate.serve.wire import WireError


class FaultApi:
    """What may be broken, and whether."""

    def __init__(self, allowed: bool, board: ReplicaBoard, kills: Mapping[str, Kill]) -> None:
        self._allowed = allowed
        self._server = ServerSide(board, kills)
        self._faults = server_faults()

    async def answer(self, request: Request) -> HttpAnswer:
        if not self._allowed:
            raise WireError(403, "faults are not allowed here; the server must be started with --allow-faults")
        fault, target, seconds = _asked(request.body)
        if fault not in self._faults:
            raise WireError(400, f"unknown fault '{fault[:64]}'; known are {', '.join(self._faults)}")
        sentence = await self._faults[fault].strike(self._server, target, seconds)
        return as_json({"fault": fault, "target": target, "seconds": seconds, "sentence": sentence})

    def close(self) -> None:
        self._server.close()


def _asked(body: wire.Body) -> tuple[str, str, float]:
    """(fault, target, seconds) of a request."""
    try:
        found: Any = json.loads(bytes(body))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("fault"), str):
        raise WireError(400, 'the body must be JSON such as {"fault": "cpu_taken", "target": "2", "seconds": 30}')
    seconds = amount(str(found.get("seconds") or 0), "seconds")
    if seconds > MOST_SECONDS:
        raise WireError(400, f"seconds must be at most {MOST_SECONDS:g}")
    return found["fault"], str(found.get("target") or ""), seconds
