"""Messages between a replica's process and that of its engine: Python objects, whole and in order, through a pipe."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any

from tailrate.serve.options import ServeOptions

_SIZE = Struct("!I")


@dataclass(frozen=True, slots=True)
class Served:
    """What is served, and by which name."""

    options: ServeOptions
    model: str
    variant: str
    name: str


def packed(message: Any) -> bytes:
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _SIZE.pack(len(body)) + body


class Incoming(asyncio.Protocol):
    """What comes out of a pipe, until its other end is closed, as it is when a process ends."""

    def __init__(self, take: Callable[[Any], None], ended: Callable[[], None]) -> None:
        self._take, self._ended = take, ended
        self._held = bytearray()

    def data_received(self, data: bytes) -> None:
        self._held += data
        begin = 0
        while (body := begin + _SIZE.size) <= len(self._held):
            end = body + _SIZE.unpack_from(self._held, begin)[0]
            if end > len(self._held):
                break
            self._take(pickle.loads(self._held[body:end]))  # noqa: S301  # both ends are ours
            begin = end
        del self._held[:begin]

    def connection_lost(self, _: Exception | None) -> None:
        self._ended()
