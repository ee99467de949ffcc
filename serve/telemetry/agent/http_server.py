"""HTTP/1.1 on asyncio for an ASGI application that answers small questions, with nothing installed for it.

What a server of models has in uvicorn: kept connections, TLS, bodies with a length. What no question here needs is
refused: bodies in chunks, large heads, more connections than a few readers have, clients that take their time.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import unquote

from tailrate.serve.asgi import App, Message, Scope, as_error
from tailrate.serve.wire import WireError

MOST_HEAD_BYTES = 16 << 10
MOST_BODY_BYTES = 64 << 10
"""Of a question; the application says so in its own words, so this is for it to be built with."""
MOST_CONNECTIONS = 64
IDLE_S = 75.0
"""For the next question of a kept connection."""
PATIENCE_S = 10.0
"""For a question to come whole once it has begun, and for an answer to be taken."""

_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (/[!-~]*) HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")


class _Head(NamedTuple):
    scope: Scope
    length: int
    keep: bool


class HttpServer:
    """`start` listens, `stop` closes what is open."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """The port that it listens on, which with 0 is any that is free."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=MOST_HEAD_BYTES, ssl=tls)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # the client left, or takes too long
        finally:
            self._open.discard(writer)
            with suppress(OSError, TimeoutError):
                writer.close()
                async with asyncio.timeout(PATIENCE_S):
                    await writer.wait_closed()
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One question and its answer; whether another may follow."""
        async with asyncio.timeout(IDLE_S):
            first = await reader.readexactly(1)
        try:
            async with asyncio.timeout(PATIENCE_S):
                head = _head(first + await reader.readuntil(b"\r\n\r\n"))
                fits = head.length <= MOST_BODY_BYTES
                body = await reader.readexactly(head.length) if fits else b""
        except asyncio.LimitOverrunError:
            return await _refuse(writer, f"the request's head has more than {MOST_HEAD_BYTES} bytes")
        except WireError as problem:
            return await _refuse(writer, problem.sentence)
        keep = head.keep and fits  # a body that was not read would be taken for the next question
        await self._app(head.scope, _Receive(body), _Send(writer, keep=keep))
        return keep


class _Receive:
    """The body, which is there whole."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def __call__(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": False}


class _Send:
    def __init__(self, writer: asyncio.StreamWriter, *, keep: bool) -> None:
        self._writer = writer
        self._keep = keep

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            fields = [*message["headers"], *([] if self._keep else [(b"connection", b"close")])]
            self._writer.write(_begin(message["status"], fields))
        elif message.get("body"):
            self._writer.write(message["body"])
        async with asyncio.timeout(PATIENCE_S):
            await self._writer.drain()


def _head(raw: bytes) -> _Head:
    """Raises `WireError` for what is no HTTP/1, or could be read in two ways."""
    line, *lines = raw[:-4].split(b"\r\n")
    asked = _LINE.fullmatch(line)
    if asked is None:
        raise WireError(400, "the request's first line is not HTTP/1.1's")
    fields = [_FIELD.fullmatch(each) for each in lines]
    if not all(fields):
        raise WireError(400, "a field of the request's head is malformed")
    headers = [(field[1].lower(), field[2].rstrip()) for field in fields if field]
    if any(name == b"transfer-encoding" for name, _ in headers):
        raise WireError(400, "a body in chunks is not taken here: send its length, or none")
    lengths = {value for name, value in headers if name == b"content-length"}
    if len(lengths) > 1 or not all(value.isdigit() and len(value) < 19 for value in lengths):
        raise WireError(400, "the request's content-length is malformed")
    said = b",".join(value.lower() for name, value in headers if name == b"connection")
    path, _, query = asked[2].partition(b"?")
    scope: Scope = {
        "type": "http",
        "http_version": f"1.{int(asked[3])}",
        "method": asked[1].decode("ascii"),
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "headers": headers,
    }
    keep = asked[3] == b"1" and b"close" not in said.replace(b" ", b"").split(b",")
    return _Head(scope, int(next(iter(lengths), b"0")), keep)


async def _refuse(writer: asyncio.StreamWriter, sentence: str) -> bool:
    answer = as_error(WireError(400, sentence))
    fields = {**answer.headers, "content-length": str(len(answer.body)), "connection": "close"}
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    writer.write(_begin(answer.status, raw) + answer.body)
    async with asyncio.timeout(PATIENCE_S):
        await writer.drain()
    return False


def _begin(status: int, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    phrase = HTTPStatus(status).phrase
    return b"".join([f"HTTP/1.1 {status} {phrase}\r\n".encode(), *(b"%s: %s\r\n" % field for field in fields), b"\r\n"])
