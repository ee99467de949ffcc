"""A server that answers at once, of the standard library alone: what the load side is measured against.

python -m tailrate.loadtest.engine.workers.null_server       prints its port, and ends when its input does

Its input begins with a line that holds a length, and so many bytes: the answer to each request, a whole HTTP response.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class NullServer(asyncio.Protocol):
    """Reads requests by their length and answers each with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._head = b""
        self._missing = 0

    def data_received(self, data: bytes) -> None:
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
                self._head = b""
                length = LENGTH.search(head)
                self._missing = int(length[1]) if length else 0
                if self._missing and data:
                    continue
            if not self._missing:
                self._transport.write(self._answer)


async def serve(answer: bytes) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: NullServer(answer), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = loop.create_future()

    def on_input() -> None:
        if not os.read(0, 1) and not ended.done():
            ended.set_result(None)

    loop.add_reader(sys.stdin, on_input)
    await ended


if __name__ == "__main__":
    size = int(sys.stdin.buffer.readline())
    asyncio.run(serve(sys.stdin.buffer.read(size)))
