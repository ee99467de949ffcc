"""Clients of plain sockets, and what no client should send: bytes, and the statuses that they deserve."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from http.client import HTTPException, HTTPResponse

import numpy as np
from waiting import PATIENCE_S

from tailrate.serve import wire
from tailrate.serve.body.request import encode_infer

X = encode_infer({"x": np.zeros((1, 4), np.uint8)})
PATH = wire.infer_path("null", "eager").encode()
POST = b"POST " + PATH + b" HTTP/1.1\r\nhost: x\r\n"
SAID = b"inference-header-content-length: " + X[1][wire.HEADER_LENGTH].encode() + b"\r\n"
SIZE = b"content-length: %d\r\n" % len(X[0])
CHUNK = b"%x\r\n%s\r\n0\r\n\r\n" % (len(X[0]), X[0])
CHUNKED = b"transfer-encoding: chunked\r\n"
WEBSOCKET = (
    b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)

BROKEN: dict[str, tuple[bytes, set[int]]] = {
    "good": (POST + SAID + SIZE + b"\r\n" + X[0], {200}),
    "chunked": (POST + SAID + CHUNKED + b"\r\n" + CHUNK, {200}),
    "no HTTP": (bytes(range(256)) * 4, {400}),
    "TLS": (bytes.fromhex("16030100c8010000c40303") + bytes(190), {400}),
    "HTTP/0.9": (b"GET /v2/health/live\r\n\r\n", {400, 200}),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(20), {400}),
    "another method": (POST.replace(b"POST", b"FROB") + SIZE + b"\r\n" + X[0], {400}),
    "another known method": (POST.replace(b"POST", b"DELETE") + SIZE + b"\r\n" + X[0], {405}),
    "two lengths": (POST + SIZE + b"content-length: 5\r\n\r\n" + X[0], {400}),
    "a negative length": (POST + b"content-length: -1\r\n\r\n" + X[0], {400}),
    "an endless length": (POST + b"content-length: " + b"9" * 30 + b"\r\n\r\n" + X[0], {400, 413}),
    "a huge length": (POST + b"content-length: %d\r\n\r\n" % 2**62 + X[0], {413}),
    "no length": (POST + b"\r\n", {400}),
    # the coding counts and the length is dropped, or all of it is refused: what cannot be is that both are passed on
    "length and chunks": (POST + SAID + b"content-length: 3\r\n" + CHUNKED + b"\r\n" + CHUNK, {200, 400}),
    "another coding": (POST + SAID + SIZE + b"transfer-encoding: xchunked\r\n\r\n" + X[0], {400}),
    "no chunk": (POST + CHUNKED + b"\r\nzz\r\n", {400}),
    "an endless chunk": (POST + CHUNKED + b"\r\n" + b"f" * 18 + b"\r\na", {400}),
    "a longer body": (POST + SAID + SIZE + b"\r\n" + X[0] + b"more", {200}),
    "a giant header": (POST + b"x: " + b"y" * 40_000 + b"\r\n\r\n", {400}),
    "many headers": (POST + b"".join(b"x%d: y\r\n" % number for number in range(3000)) + b"\r\n", {400}),
    "a control character": (POST + SAID + SIZE + b"x: a\x01b\r\n\r\n" + X[0], {400}),
    "an id that is no text": (POST + SAID + SIZE + b"x-request-id: \xff\r\n\r\n" + X[0], {400}),
    "an id with a tab": (POST + SAID + SIZE + b"x-request-id: a\tb\r\n\r\n" + X[0], {400}),
    "a session that is no text": (POST + SAID + SIZE + b"x_session-id: \xff\r\n\r\n" + X[0], {200}),
    "a model id that is no text": (POST + SAID + SIZE + b"Serve-Multiplexed_Model-Id: \xff\r\n\r\n" + X[0], {200}),
    "a long timeout": (POST + SAID + SIZE + b"x-request-timeout-seconds: " + b"9" * 9000 + b"\r\n\r\n" + X[0], {400}),
    "no path": (b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n", {404}),
    "a websocket": (b"GET " + PATH + b" HTTP/1.1\r\nhost: x\r\n" + WEBSOCKET + b"\r\n", {405}),
    "a path of bytes": (b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n", {400}),
    "a path of quoted bytes": (b"GET /%00%ff%2e%2e/ HTTP/1.1\r\nhost: x\r\n\r\n", {404}),
    "a long path": (b"GET /" + b"a" * 30_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", {400}),
}


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def status_of(end: socket.socket) -> int:
    """Of the next answer; 0 where there is none."""
    response = HTTPResponse(end)
    try:
        response.begin()
        response.read()
    except (OSError, HTTPException):
        return 0
    return response.status


def good(port: int) -> bool:
    with connected(port) as end:
        end.sendall(BROKEN["good"][0])
        return status_of(end) == 200


def crowd(
    port: int, count: int, sends: bytes, stack: ExitStack, receives_bytes: int | None = None
) -> list[socket.socket]:
    made = []
    for _ in range(count):
        end = stack.enter_context(socket.socket())
        if receives_bytes:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives_bytes)
        end.settimeout(PATIENCE_S)
        end.connect(("127.0.0.1", port))
        end.sendall(sends)
        made.append(end)
    return made


def closed(end: socket.socket) -> bool:
    """Whether the server has; what it said before is dropped."""
    end.setblocking(False)
    try:
        while end.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
