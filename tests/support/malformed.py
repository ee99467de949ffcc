"""A server whose streams are wrong, each in a way of its own, which is the prompt; and one that is as it should be.

What an entry sends is its pieces, a moment apart; the last may be `HANG_UP`, for a connection that ends there. Then the
status that its row deserves, and how many content events came of it.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
HANG_UP = b""
MOMENT_S = 0.005
ENDLESS = 80 << 20


def event(text: str | None = None, **more: Any) -> bytes:
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}, "finish_reason": None}]
    return b"data: " + json.dumps({"id": "x", "choices": choices} | more).encode() + b"\n\n"


A, B = event("a"), event("b")
LAST = event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])
USAGE = event(usage={"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9})
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(*events: bytes) -> list[bytes]:
    """A chunk for each."""
    return [HEAD, *map(chunk, events), END]


def by_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


UMLAUT = A.partition(b'a"}')[0] + b"\xc3", b'\xa4"}' + A.partition(b'a"}')[2]
GOOD = (A, B, USAGE, DONE)
KINDS: dict[str, tuple[list[bytes], str, int]] = {
    # as it should be, however it is put
    "usual": (whole(*GOOD), "200", 2),
    "by the byte": (by_byte(HEAD + b"".join(map(chunk, (A, B, DONE))) + END), "200", 2),
    "chunks of a byte": ([HEAD, *map(chunk, by_byte(A + B + DONE)), END], "200", 2),
    "all at once": ([HEAD + b"".join(map(chunk, GOOD)) + END], "200", 2),
    "two events in a chunk": (whole(A + B, USAGE, DONE), "200", 2),
    "an event over three chunks": (whole(A[:9], A[9:30], A[30:], B, DONE), "200", 2),
    "a letter cut in two": (whole(*UMLAUT, B, DONE), "200", 2),
    "CR LF": (whole(*(one.replace(b"\n", b"\r\n") for one in GOOD)), "200", 2),
    "CR": (whole(*(one.replace(b"\n", b"\r") for one in GOOD)), "200", 2),
    "comments": (whole(b": a\n\n", A, b": keep-alive\n\n", B, b":\n", DONE), "200", 2),
    "other fields": (whole(b"id: 1\nretry: 9\n" + A, b"event: message\n" + B, DONE), "200", 2),
    "no space": (whole(A.replace(b"data: ", b"data:"), B, DONE), "200", 2),
    "a mark of byte order": (whole(b"\xef\xbb\xbf" + A, B, DONE), "200", 2),
    "no DONE": (whole(A, B, LAST, USAGE), "200", 2),
    "DONE twice": (whole(A, B, DONE, DONE), "200", 2),
    "something behind DONE": (whole(A, B, DONE, b": bye\n\n"), "200", 2),
    "no empty line at the end": (whole(A, B, LAST[:-1]), "200", 2),
    "events without data": (whole(A, b"data:\n\n", B, DONE), "200", 2),
    "a type in capitals": ([HEAD.replace(b"text/event", b"Text/Event"), *map(chunk, GOOD), END], "200", 2),
    "choices that are null": (whole(b'data: {"choices": null}\n\n', A, B, DONE), "200", 2),
    "usage that makes no sense": (whole(A, B, event(usage={"completion_tokens": "many"}), DONE), "200", 2),
    "trailers": ([HEAD, chunk(A), chunk(B), chunk(DONE), b"0\r\nx: y\r\n\r\n"], "200", 2),
    "a last chunk with an extension": ([HEAD, chunk(A), chunk(B), chunk(DONE), b"0;x=y\r\n\r\n"], "200", 2),
    "sizes of chunks with extensions": (
        [HEAD, chunk(A).replace(b"\r\n", b";x=y\r\n", 1), chunk(B), chunk(DONE), END], "200", 2,
    ),
    "to the connection's end": ([PLAIN, A, B, DONE, HANG_UP], "200", 2),
    "100 before it": ([b"HTTP/1.1 100 Continue\r\n\r\n", *whole(*GOOD)], "200", 2),
    "a long event": (whole(event("a" * 300_000), B, DONE), "200", 2),
    # what is no answer
    "no content": (whole(USAGE, DONE), "bad_answer", 0),
    "nothing at all": (whole(), "bad_answer", 0),
    "roles alone": (whole(b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n', DONE), "bad_answer", 0),
    "JSON that breaks off": (whole(A, b'data: {"choices": [\n\n', DONE), "bad_answer", 1),
    "no JSON": (whole(A, b"data: <html>\n\n", DONE), "bad_answer", 1),
    "a list": (whole(A, b"data: [1, 2]\n\n", DONE), "bad_answer", 1),
    "no UTF-8": (whole(A, b"data: \xff\xfe\n\n", DONE), "bad_answer", 1),
    "deep JSON": (whole(A, b"data: " + b"[" * 100_000 + b"\n\n", DONE), "bad_answer", 1),
    "a huge number": (whole(A, b'data: {"id": ' + b"9" * 10_000 + b"}\n\n", DONE), "bad_answer", 1),
    "an error under 200": (whole(A, b'event: error\ndata: {"message": "full"}\n\n'), "bad_answer", 1),
    "an error as vLLM said it": (whole(A, b'data: {"object": "error", "message": "full"}\n\n', DONE), "bad_answer", 1),
    "an answer that was given up": (whole(A, LAST.replace(b"length", b"abort"), DONE), "bad_answer", 1),
    "an error object": (whole(A, b'data: {"error": {"message": "full"}}\n\n', DONE), "bad_answer", 1),
    "gzip": ([HEAD[:-2] + b"content-encoding: gzip\r\n\r\n", chunk(gzip.compress(A + B)), END], "bad_answer", 0),
    "one JSON object": (
        [b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"], "bad_answer", 0,
    ),
    # what breaks off
    "chunks that a proxy ends": (whole(A, B), "cut", 2),
    "a connection that ends too soon": ([PLAIN, A, B, HANG_UP], "cut", 2),
    "a connection that ends in an event": ([PLAIN, A, B[:-9], HANG_UP], "cut", 1),
    "it hangs up": ([HEAD, chunk(A), chunk(B), HANG_UP], "cut", 2),
    "it hangs up in a chunk": ([HEAD, chunk(A), chunk(B)[:20], HANG_UP], "cut", 1),
    "it hangs up before any": ([HEAD, HANG_UP], "cut", 0),
    "a chunk without a size": ([HEAD, chunk(A), b"zz\r\n"], "cut", 1),
    "a chunk that is longer": ([HEAD, chunk(A), chunk(B).replace(b"\r\n", b"\r\nmore", 1)], "cut", 1),
    "another answer in the middle": (
        [HEAD, chunk(A), b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"], "cut", 1,
    ),
    "an endless line": ([HEAD, chunk(A), *([b"%x\r\ndata: " % ENDLESS, *[b"x" * (1 << 20)] * 80])], "cut", 1),
    # what never begins
    "an error": ([b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy"], "503", 0),
    "no HTTP": ([b"hello\r\n\r\n", HANG_UP], "connect", 0),
    "it hangs up at once": ([HANG_UP], "connect", 0),
    "a head that does not end": ([b"HTTP/1.1 200 OK\r\n", *[b"x: " + b"y" * 60_000] * 3, HANG_UP], "connect", 0),
}  # fmt: skip


def _asked(end: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    """(first line, body) of each request."""
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            if not (piece := end.recv(65536)):
                return
            data += piece
        head, data = data.split(b"\r\n\r\n", 1)
        said = re.search(rb"\r\ncontent-length: *(\d+)", head.lower())
        size = int(said[1]) if said else 0
        while len(data) < size:
            if not (piece := end.recv(65536)):
                return
            data += piece
        yield head.split(b"\r\n")[0], data[:size]
        data = data[size:]


def _serve(end: socket.socket) -> None:
    with end:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for line, body in _asked(end):
                if line.startswith(b"POST") and b"completions" in line:
                    name = json.loads(body)["messages"][0]["content"]
                    for piece in KINDS[name][0]:
                        if piece == HANG_UP:
                            return
                        end.sendall(piece)
                        time.sleep(0 if len(piece) < 2 or len(piece) >= 1 << 20 else MOMENT_S)
                    if KINDS[name][1] == "cut" and piece != END:
                        return
                elif b"/v1/models" in line:
                    end.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(MODELS), MODELS))
                else:
                    end.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        except OSError:
            pass  # who asked has had enough


@contextmanager
def malformed() -> Iterator[str]:
    """Its address."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as door:

        def accept() -> None:
            while True:
                try:
                    end, _ = door.accept()
                except OSError:
                    return
                threading.Thread(target=_serve, args=(end,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{door.getsockname()[1]}"
        door.shutdown(socket.SHUT_RDWR)
