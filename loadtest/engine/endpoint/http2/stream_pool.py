"""Connections whose answers come in pieces, each with its instant."""

from __future__ import annotations

from typing import Any

from gevent import socket

from tailrate.loadtest.engine.endpoint.http2.pool import Pool
from tailrate.loadtest.engine.endpoint.stamping.sockets import Stamped, ready_to_stamp, stamped


class StreamPool(Pool):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        ready_to_stamp(self._tls is not None)

    def _stamped(self, opened: socket.socket) -> Stamped:
        return stamped(opened, self._tls is not None)
