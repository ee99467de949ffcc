"""A server that streams at planned instants and notes when it wrote each event, without Python's lock while it does.

    with metronome(folder) as server: ...      server.url; server.written() when it has ended

It speaks OpenAI's chat completions. What a stream does is its prompt, as JSON: `first_ms`, `gap_ms`, `tokens`,
`stall_at` and `stall_ms` (that event comes later by so much, and all behind it), `cut_at` (the connection is shut
before that event). A compiled loop keeps the plan and can write tens of thousands of events a second; the truth is when
it wrote, whether that was in time or not. A stream is known by its `x-request-id`.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import starts
from numba import njit, types

MOST_STREAMS, MOST_TOKENS, MOST_AT_ONCE = 1 << 17, 256, 1 << 13
DUE, SOCKET, GAP, TOKENS, STALL_AT, STALL, CUT_AT, SENT = range(8)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

_send = types.ExternalFunction("send", types.intp(types.int32, types.intp, types.uintp, types.int32))
_shutdown = types.ExternalFunction("shutdown", types.int32(types.int32, types.int32))
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))


def chunk(said: dict[str, Any] | bytes) -> bytes:
    data = said if isinstance(said, bytes) else json.dumps(said).encode()
    return b"%x\r\ndata: %s\n\n\r\n" % (len(data) + 8, data)


def event(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    whole = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return whole | {"choices": [choice], "usage": None}


TOKEN = chunk(event({"content": " tok"}))


def tail(tokens: int) -> bytes:
    """What follows the last token."""
    usage = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
    last = event({}) | {"choices": [], "usage": usage}
    return chunk(event({}, "length")) + chunk(last) + chunk(b"[DONE]") + b"0\r\n\r\n"


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def play(plans: Any, counts: Any, wrote: Any, clock: Any, token: Any, tails: Any, ends: Any, at: Any) -> None:
    """`counts`: streams so far, and whether to end; `at`: where `clock`, `token` and `tails` are in memory."""
    live = np.zeros(MOST_AT_ONCE, np.int64)
    many, known = 0, 0
    while not counts[1]:
        while known < counts[0]:
            live[many] = known
            many += 1
            known += 1
        k, soonest, now = 0, 1 << 62, 0
        while k < many:
            one = live[k]
            plan, over = plans[one], False
            _clock_gettime(1, at[0])
            now = clock[0] * 1_000_000_000 + clock[1]
            if plan[DUE] <= now:
                to, number = types.int32(plan[SOCKET]), plan[SENT]
                if number == plan[CUT_AT]:
                    _shutdown(to, 2)
                    over = True
                else:
                    wrote[one, number] = now
                    _send(to, at[1], types.uintp(token.shape[0]), 0x4000)
                    plan[SENT] += 1
                    plan[DUE] += plan[GAP] + (plan[STALL] if plan[SENT] == plan[STALL_AT] else 0)
                    if plan[SENT] == plan[TOKENS]:
                        first = ends[plan[TOKENS]]
                        _send(to, at[2] + first, types.uintp(ends[plan[TOKENS] + 1] - first), 0x4000)
                        over = True
            if over:
                many -= 1
                live[k] = live[many]
            else:
                soonest = min(soonest, plan[DUE])
                k += 1
        if soonest - now > 100_000:
            _usleep(50)


class Metronome:
    def __init__(self) -> None:
        self.plans = np.zeros((MOST_STREAMS, 8), np.int64)
        self.wrote = np.zeros((MOST_STREAMS, MOST_TOKENS), np.int64)
        self.ids: list[str] = []
        self.counts = np.zeros(2, np.int64)
        made = [tail(tokens) for tokens in range(MOST_TOKENS + 1)]
        self._held = (
            np.zeros(2, np.int64),
            np.frombuffer(TOKEN, np.uint8).copy(),
            np.frombuffer(b"".join(made), np.uint8).copy(),
        )
        ends = np.cumsum([0, *map(len, made)])
        at = np.array([each.ctypes.data for each in self._held], np.int64)
        arguments = (self.plans, self.counts, self.wrote, *self._held, ends, at)
        self.counts[1] = 1
        play(*arguments)  # compiled
        self.counts[1] = 0
        threading.Thread(target=play, args=arguments, daemon=True).start()
        self._lock = threading.Lock()

    def serve(self, wire: socket.socket) -> None:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        held = b""
        while True:
            while b"\r\n\r\n" not in held:
                if not (piece := wire.recv(1 << 16)):
                    return
                held += piece
            head, _, held = held.partition(b"\r\n\r\n")
            fields = {
                name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in head.split(b"\r\n"))
            }
            length = int(fields.get(b"content-length", 0))
            while len(held) < length:
                held += wire.recv(1 << 16)
            body, held = held[:length], held[length:]
            if not head.startswith(b"POST"):
                models = json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode()
                wire.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(models), models))
            else:
                wire.sendall(HEAD)
                self._begin(wire.fileno(), json.loads(body), fields.get(b"x-request-id", b"").decode())

    def _begin(self, file: int, body: dict[str, Any], name: str) -> None:
        asked = {"first_ms": 20, "gap_ms": 5, "tokens": 20, "stall_at": -1, "stall_ms": 0, "cut_at": -1}
        said = body["messages"][-1]["content"]
        with suppress(ValueError):  # others ask for something else before they begin
            asked |= json.loads(said if isinstance(said, str) else "".join(part["text"] for part in said))
        ms = {key: int(value * 1e6) for key, value in asked.items() if key.endswith("_ms")}
        due = time.monotonic_ns() + ms["first_ms"]
        with self._lock:
            number = int(self.counts[0])
            plan = (due, file, ms["gap_ms"], asked["tokens"], asked["stall_at"], ms["stall_ms"], asked["cut_at"], 0)
            self.plans[number] = plan
            self.ids.append(name)
            self.counts[0] += 1

    def save(self, path: Path) -> None:
        many = len(self.ids)
        np.savez(path, ids=np.array(self.ids), wrote=self.wrote[:many], sent=self.plans[:many, SENT])


@dataclass
class Running:
    url: str
    path: Path

    def written(self) -> dict[str, Any]:
        """Of each stream when its events were written, in ns of the monotonic clock."""
        found = np.load(self.path)
        return {
            str(name): row[:sent] for name, row, sent in zip(found["ids"], found["wrote"], found["sent"], strict=True)
        }


@contextmanager
def metronome(folder: Path) -> Iterator[Running]:
    starts.need("live")
    path = folder / "written.npz"
    command = [sys.executable, __file__, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Running(f"http://127.0.0.1:{int(process.stdout.readline())}", path)
        finally:
            process.stdin.close()
            process.wait()


def main() -> None:
    server = Metronome()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)

    def patient(wire: socket.socket) -> None:
        with suppress(OSError):  # who asked has hung up
            server.serve(wire)

    def accept() -> None:
        while True:
            wire, _ = listener.accept()
            threading.Thread(target=patient, args=(wire,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()
    server.save(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
