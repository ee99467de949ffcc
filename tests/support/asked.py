"""Endpoints for tests that need no server to find them, and what is found at one that is there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from waiting import PATIENCE_S

from tailrate.loadtest.engine.endpoint.credentials import ANYBODY, Access, Keys
from tailrate.loadtest.engine.endpoint.discovery import discover
from tailrate.loadtest.engine.endpoint.payloads import Inputs
from tailrate.loadtest.engine.endpoint.protocols.oip import Oip
from tailrate.loadtest.engine.endpoint.servers import Servers
from tailrate.loadtest.engine.endpoint.target import Endpoint, Target
from tailrate.serve.wire import Array

RESULT = b'{"outputs": [{"name": "y", "datatype": "UINT8", "shape": [1], "data": [1]}]}'


@dataclass(frozen=True)
class Raw(Oip):
    """An answer is one of the Open Inference Protocol; the body is the bytes of the only input."""

    name = "raw"

    def write(
        self, endpoint: Endpoint, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> tuple[bytes, dict[str, str]]:
        (body,) = inputs.values()
        return body.tobytes(), {"content-type": "application/octet-stream"}


def raw_inputs(body: bytes) -> Inputs:
    return Inputs(({"x": np.frombuffer(body, np.uint8)},), (1,))


def raw_endpoint(url: str, path: str = "/", name: str = "null") -> Endpoint:
    return Endpoint(name, url, Raw.name, name, "", path)


def found_at(url: str, model: str, access: Access = ANYBODY, **asked: Any) -> list[Endpoint]:
    """What `--host` would find."""
    servers = Servers(PATIENCE_S, Keys(access))
    try:
        return discover(servers, [Target(url, model, **asked)], {})
    finally:
        servers.close()
