"""Device samples and clocks over HTTP: what a server of models answers beside them, and an agent alone."""

from __future__ import annotations

from tailrate.serve.asgi import HttpAnswer, Request, as_json
from tailrate.serve.telemetry import prometheus_text
from tailrate.serve.telemetry.all_hosts import AllHosts

METRICS = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}


class TelemetryApi:
    def __init__(self, fleet: AllHosts) -> None:
        self._fleet = fleet

    async def devices(self, request: Request) -> HttpAnswer:
        return as_json(await self._fleet.read(request.asked("after")))

    async def clock(self, request: Request) -> HttpAnswer:
        return as_json(await self._fleet.clock(request.asked("host"), request.received_wall_ns))

    async def text(self) -> str:
        """The newest sample of each device as Prometheus reads it."""
        return prometheus_text.of_devices(await self._fleet.latest())
