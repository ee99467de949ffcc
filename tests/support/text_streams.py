"""Answers of a language model's server as they come, for benchmarks: a client that costs little beside it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Told:
    """One answer; instants are `time.perf_counter`."""

    sent_s: float
    came_s: list[float] = field(default_factory=list)
    """Of each event that brought text."""
    tokens: int = 0
    """As the server counted them, else as there were events."""
    prompt_tokens: int = 0
    spent_ms: Mapping[str, float] = field(default_factory=dict)
    """Where a server of ours says that the time went: `first_ms`, `prefill_ms` and so on."""

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in zip(self.came_s, self.came_s[1:], strict=False)]


class _Arrivals(asyncio.Protocol):
    """What comes, with its instants; it is read when all of it is there, so that no server waits for that."""

    def __init__(self) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self.whole = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter(), data))
        if b"data: [DONE]" in data:
            self.connection_lost(None)

    def connection_lost(self, problem: Exception | None) -> None:
        if not self.whole.done():
            self.whole.set_result(None)

    def lines(self) -> Iterator[tuple[float, bytes]]:
        begun = b""
        for at_s, piece in self.pieces:
            *whole, begun = (begun + piece).split(b"\n")
            yield from ((at_s, line) for line in whole)


async def told(url: str, path: str, asked: Mapping[str, Any]) -> Told:
    """Asks for a stream and reads it to its end; anything else than that ends the program."""
    host, _, port = url.removeprefix("http://").partition(":")
    body = json.dumps({**asked, "stream": True, "stream_options": {"include_usage": True}}).encode()
    transport, arrivals = await asyncio.get_running_loop().create_connection(_Arrivals, host, int(port))
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    found = Told(time.perf_counter())
    transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
    await arrivals.whole
    transport.close()
    if not arrivals.pieces or b" 200 " not in arrivals.pieces[0][1].split(b"\r\n", 1)[0]:
        raise SystemExit(f"{url}{path}: {b''.join(piece for _, piece in arrivals.pieces).decode()[:2000]}")
    for at_s, line in arrivals.lines():
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if any(_text(choice) for choice in event.get("choices", ())):
                found.came_s.append(at_s)
            if usage := event.get("usage"):
                found.tokens, found.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
                found.spent_ms = usage.get("tailrate") or {}
    found.tokens = found.tokens or len(found.came_s)
    return found


def _text(choice: Mapping[str, Any]) -> str:
    text: str = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    return text
