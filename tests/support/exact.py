"""A v2 endpoint whose timing is known: answers leave at an instant that is worked out, not slept for.

    fixed   every answer exactly `--ms` after its request came
    queue   one server, in order, `--ms` each: M/D/1 under Poisson arrivals

With `--stall-at S --stall-for S` nothing leaves in that time, counted from the first request. Instants are kept by a
timerfd, to some tens of microseconds. `GET /truth` tells how long each answer really took, in ms.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import re
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import starts

sys.path.insert(0, str(Path(__file__).parents[2]))

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
INFER = b"/infer "
RESULT = b'{"outputs": [{"name": "y", "datatype": "UINT8", "shape": [1], "data": [1]}]}'


def answer(body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (status, kind, len(body), body)


class Timer:
    """Calls back at instants of the monotonic clock."""

    def __init__(self) -> None:
        import ctypes
        import os

        from tailrate.loadtest.engine.workers.on_time.timer import _Spec

        self._os, self._ctypes, self._spec = os, ctypes, _Spec
        self._libc = ctypes.CDLL(None)
        self._file = self._libc.timerfd_create(1, 0o4000)
        self._heap: list[tuple[int, int, object]] = []
        self._count = 0
        asyncio.get_running_loop().add_reader(self._file, self._ring)

    def at(self, due_ns: int, call: object) -> None:
        self._count += 1
        heapq.heappush(self._heap, (due_ns, self._count, call))
        if self._heap[0][0] == due_ns:
            self._set(due_ns)

    def _set(self, due_ns: int) -> None:
        spec = self._spec(0, 0, due_ns // 10**9, max(1, due_ns % 10**9))
        self._libc.timerfd_settime(self._file, 1, self._ctypes.byref(spec), None)

    def _ring(self) -> None:
        try:
            self._os.read(self._file, 8)
        except BlockingIOError:
            return
        while self._heap and self._heap[0][0] <= time.monotonic_ns():
            heapq.heappop(self._heap)[2]()  # type: ignore[operator]
        if self._heap:
            self._set(self._heap[0][0])


class Endpoint:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.timer = Timer()
        self.free_ns = 0
        self.first_ns = 0
        self.truth: list[float] = []

    def due_ns(self, now: int) -> int:
        o = self.options
        self.first_ns = self.first_ns or now
        if o.kind == "queue":
            self.free_ns = due = max(now, self.free_ns) + int(o.ms * 1e6)
        else:
            due = now + int(o.ms * 1e6)
        stall = self.first_ns + int(o.stall_at * 1e9)
        end = stall + int(o.stall_for * 1e9)
        return end if stall <= due < end else due


class Exact(asyncio.Protocol):
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end]
            length = LENGTH.search(head)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._data) < whole:
                return
            self._data = self._data[whole:]
            self._answer(head.split(b"\r\n", 1)[0])

    def _answer(self, line: bytes) -> None:
        if INFER in line:
            now = time.monotonic_ns()

            def leave() -> None:
                self._endpoint.truth.append((time.monotonic_ns() - now) / 1e6)
                self._transport.write(answer(RESULT))

            self._endpoint.timer.at(self._endpoint.due_ns(now), leave)
            return
        path = line.split()[1]
        known = {b"/v2": {"name": "exact"}, b"/truth": self._endpoint.truth}
        if path in known:
            found = json.dumps(known[path]).encode()
        elif path.endswith(b"/ready"):
            found = b"{}"
        elif path.startswith(b"/v2/models/null"):
            found = json.dumps({"name": "null", "versions": ["exact"], "inputs": [], "outputs": []}).encode()
        else:
            self._transport.write(answer(b'{"error": "nothing here"}', status=b"404 Not Found"))
            return
        self._transport.write(answer(found))


def exact(**options: object) -> AbstractContextManager[str]:
    """`with exact(kind="queue", ms=5) as url:` — in a process of its own."""
    return starts.stand_in(Path(__file__), options)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("fixed", "queue"), default="fixed")
    parser.add_argument("--ms", type=float, default=20)
    parser.add_argument("--stall-at", type=float, default=0)
    parser.add_argument("--stall-for", type=float, default=0)
    endpoint = Endpoint(parser.parse_args())
    server = await asyncio.get_running_loop().create_server(lambda: Exact(endpoint), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
