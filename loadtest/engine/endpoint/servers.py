"""The clients of a run's endpoints: one for each URL and token, by the protocol that is spoken there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.loadtest.engine.endpoint.credentials import Access, Keys
from tailrate.loadtest.engine.endpoint.protocol import KNOWN, Protocol, protocol_of
from tailrate.loadtest.engine.endpoint.target import Endpoint, Target


@dataclass(frozen=True, slots=True)
class OpenEndpoint:
    """An endpoint with what speaks to it."""

    endpoint: Endpoint
    protocol: Protocol
    client: Client

    @property
    def name(self) -> str:
        return self.endpoint.name

    def server(self) -> dict[str, Any]:
        """What its server says of itself."""
        return self.protocol.server(self.client)

    def parameters(self) -> dict[str, Any]:
        """Its present state, as its server says it."""
        return self.protocol.parameters(self.client, self.endpoint)

    def events(self) -> dict[str, int] | None:
        """What its server has counted, and since when; None where it counts nothing of the kind."""
        return self.protocol.events(self.client, self.endpoint)


class Servers:
    def __init__(self, timeout_s: float, keys: Keys) -> None:
        self.keys = keys
        self._timeout_s = timeout_s
        self._clients: dict[tuple[str, Access, type[Protocol]], Client] = {}

    def open(self, endpoint: Endpoint) -> OpenEndpoint:
        return OpenEndpoint(endpoint, protocol_of(endpoint.protocol, endpoint.settings), self.client(endpoint))

    def client(self, of: Endpoint | Target, protocol: str = "") -> Client:
        """For the endpoint, by its own protocol or another one, under which it is to be looked for."""
        kind = KNOWN.get(protocol or of.protocol, Protocol)
        key = of.url.rstrip("/"), self.keys.access(of.name), kind
        if key not in self._clients:
            self._clients[key] = kind.connect(of.url, self._timeout_s, key[1])
        return self._clients[key]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
