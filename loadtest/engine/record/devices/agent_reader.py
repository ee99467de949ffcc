"""An agent, or any server with `/telemetry`, as a source: asked by the collector that asks the endpoint itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.endpoint.answer import OK
from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.loadtest.engine.record.device_collector import POLL_S, PROBE_S, Collector
from tailrate.loadtest.engine.record.devices.names import SourceRows
from tailrate.loadtest.engine.record.devices.source import DeviceSource
from tailrate.serve import wire

MOST_BYTES = 64 << 20
"""Of an answer: the 50,000 samples of a host that an agent keeps are 8 MB."""


class AgentReader:
    def __init__(
        self, source: DeviceSource, client: Client, base: Base, rows: SourceRows, event: Callable[..., None]
    ) -> None:
        self._client = client
        self._rows = rows
        self._collector = Collector(client, base, rows, event, source.url)

    def start(self) -> None:
        """What it samples from now on is read; also where it doesn't answer yet."""
        self._collector.ask_first()
        for device, (host, index) in self._collector.devices.items():
            self._rows.meet(device, host, index)

    def works(self) -> list[tuple[Callable[[], None], float]]:
        """What is to be done, and how many seconds apart."""
        return [(self._collector.poll, POLL_S), (self._collector.probe, PROBE_S)]

    def forget(self) -> None:
        self._collector.forget()

    def last(self) -> None:
        self._collector.poll()

    def clocks(self) -> list[dict[str, Any]]:
        return [entry | {"host": self._rows.host(entry["host"])} for entry in self._collector.clocks()]

    def facts(self) -> dict[str, Any]:
        period_ms = self._collector.period_ms
        return {"hosts": list(self._collector.offsets), "period_s": period_ms / 1e3 if period_ms else None}

    def holders(self, port: int) -> list[str]:
        """Devices that the server on that port of the agent's host holds; none where the agent can't say."""
        answer = self._client.send("GET", f"{self._client.prefix}{wire.HOLDERS}?port={port}")
        try:
            return [str(name) for name in json.loads(answer.body)["devices"]] if answer.status == OK else []
        except (ValueError, KeyError, TypeError):
            return []
