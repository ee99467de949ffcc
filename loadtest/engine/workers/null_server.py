"""A server that answers at once, of the standard library alone: what the load side is measured against.

python -m tailrate.loadtest.engine.workers.null_server       prints its port, and ends when its input does

Its input begins with a line that holds a length, and so many bytes: the answer to each request, a whole HTTP response.
Behind the length may stand how it comes in pieces: where each ends, and its milliseconds after the request.
Who begins with HTTP/2's preface is answered in that: then the bytes are frames, which get each request's stream number.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from itertools import pairwise

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WIDE = 1 << 30
"""Windows of HTTP/2 in bytes; the connection's is opened again when half of it was used."""
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE, END_STREAM, ACK = 0, 1, 4, 6, 8, 1, 1
Pace = tuple[tuple[int, float], ...]
Pieces = list[tuple[float, bytes]]
"""Of an answer: seconds after the request, and what then goes out."""
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class NullServer(asyncio.Protocol):
    """Reads requests by their length and answers each with the same bytes."""

    def __init__(self, answer: bytes, pace: Pace = ()) -> None:
        together = {at_ms: end for end, at_ms in pace}  # of one instant, whose order a timer would not keep
        bounds = pairwise([0, *together.values()])
        pieces = [(at_ms / 1e3, answer[begin:end]) for at_ms, (begin, end) in zip(together, bounds, strict=True)]
        self._pieces = pieces or [(0.0, answer)]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._head = b""
        self._missing = 0
        self._http2: Http2 | None = None

    def data_received(self, data: bytes) -> None:
        if self._http2 is not None:
            self._http2.take(data)
            return
        while data:
            if self._missing:
                taken = min(self._missing, len(data))
                self._missing -= taken
                data = data[taken:]
            else:
                head, end, data = (self._head + data).partition(b"\r\n\r\n")
                if not end:
                    self._head = head
                    return
                if head == PREFACE[: len(head)] and len(head) > 4:
                    self._http2 = Http2(self._transport, self._pieces)
                    self._http2.take(data)
                    return
                self._head = b""
                length = LENGTH.search(head)
                self._missing = int(length[1]) if length else 0
                if self._missing and data:
                    continue
            if not self._missing:
                play(self._transport, self._pieces)


def play(transport: asyncio.Transport, pieces: Pieces) -> None:
    """Writes each at its instant."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    for at_s, piece in pieces:
        if at_s:
            loop.call_at(now + at_s, transport.write, piece)
        else:
            transport.write(piece)


class Http2:
    """Answers each stream that has ended with the same frames; whatever it holds is not looked at."""

    def __init__(self, transport: asyncio.Transport, pieces: Pieces) -> None:
        self._transport = transport
        self._rest = b""
        self._passed = len(PREFACE) - PREFACE.index(b"SM")
        self._taken = 0
        self._pieces = [(at_s, _without_number(frames)) for at_s, frames in pieces]
        window = WIDE.to_bytes(4, "big")
        transport.write(_frame(SETTINGS, 0, b"\0\4" + window) + _frame(WINDOW_UPDATE, 0, window))

    def take(self, data: bytes) -> None:
        skipped = data[: self._passed]
        self._passed -= len(skipped)
        data = self._rest + data[len(skipped) :]
        at, out = 0, []
        while len(data) - at >= 9:
            end = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if end > len(data):
                break
            kind, flags, stream = data[at + 3], data[at + 4], data[at + 5 : at + 9]
            if kind in (DATA, HEADERS) and flags & END_STREAM:
                pieces = [(at_s, stream.join(parts)) for at_s, parts in self._pieces]
                if pieces[0][0]:
                    play(self._transport, pieces)
                else:
                    out.append(pieces[0][1])
            if kind == DATA:
                self._taken += end - at - 9
            elif kind in (SETTINGS, PING) and not flags & ACK:
                out.append(_frame(kind, ACK, data[at + 9 : end] if kind == PING else b""))
            at = end
        self._rest = data[at:]
        if self._taken > WIDE // 2:
            out.append(_frame(WINDOW_UPDATE, 0, self._taken.to_bytes(4, "big")))
            self._taken = 0
        if out:
            self._transport.write(b"".join(out))


def _without_number(frames: bytes) -> list[bytes]:
    """To be joined by a stream's."""
    parts: list[bytes] = []
    at = begin = 0
    while at < len(frames):
        parts.append(frames[begin : at + 5])
        begin = at + 9
        at = begin + int.from_bytes(frames[at : at + 3], "big")
    return [*parts, frames[begin:]]


def _frame(kind: int, flags: int, payload: bytes) -> bytes:
    """Of the connection itself."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags, 0, 0, 0, 0)) + payload


async def serve(answer: bytes, pace: Pace) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: NullServer(answer, pace), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = loop.create_future()

    def on_input() -> None:
        if not os.read(0, 1) and not ended.done():
            ended.set_result(None)

    loop.add_reader(sys.stdin, on_input)
    await ended


if __name__ == "__main__":
    size, *pieces = sys.stdin.buffer.readline().decode().split()
    paced = [piece.split(":") for piece in ",".join(pieces).split(",") if piece]
    asyncio.run(serve(sys.stdin.buffer.read(int(size)), tuple((int(end), float(at_ms)) for end, at_ms in paced)))
