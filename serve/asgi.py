"""HTTP at the edge: a request read whole from ASGI, an answer written to it, and nothing of a framework.

Owns bodies (limits, decompression, clients that are slow or leave in the middle), the JSON form of answers and
errors, and the instants at which a request was received and answered. What to answer is the caller's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qs

from tailrate.serve import wire
from tailrate.serve.body.request import inflate
from tailrate.serve.wire import WireError

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
T = TypeVar("T")
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refused = Callable[[str, str, int], None]
"""(path, reason, ns): told of each request that ended before anybody was asked for its answer."""

LEFT = "cancelled"
RETRY_AFTER_S = 1
PATIENCE_S = 20.0
"""For a body that comes in several pieces; what has come earns it more, at `SLOWEST_BPS`."""
SLOWEST_BPS = 16 << 10
ROOM = 32
"""Largest bodies that one process holds at a time: as many clients as there may be must not take all the memory."""
PIECE_BYTES = 1 << 20
"""Of an answer that goes at once: the rest waits here, counted, until the client has taken what went before."""


@dataclass(slots=True)  # not frozen: that costs a request a microsecond
class Request:
    """One HTTP request with its whole body."""

    method: str
    path: str
    query: str
    headers: Mapping[bytes, bytes]
    """As they came, names in lower case: few of them are ever looked at."""
    body: wire.Body
    received_ns: int
    """`time.perf_counter_ns` once the body was there: comparable only on this machine."""
    received_wall_ns: int
    gone: Callable[[], bool] | None = None
    """Whether the client has hung up meanwhile; None where nobody can tell."""

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def asked(self, name: str) -> str:
        """What the query says of it, the last time that it does; empty where it does not."""
        return parse_qs(self.query, keep_blank_values=True).get(name, [""])[-1]


@dataclass(slots=True)
class HttpAnswer:
    """One HTTP response."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: AsyncGenerator[bytes] | None = None
    """What follows the body, as it comes, where its length isn't known; closed by whoever sends it."""


class Room:
    """What requests that are under way, bodies and answers that wait for their clients, take up in a process."""

    def __init__(self, max_body_bytes: int) -> None:
        self.limit_bytes = ROOM * max_body_bytes
        self.taken_bytes = 0
        self.requests = 0


class Share:
    """One request's part of it."""

    __slots__ = ("_room", "_taken_bytes")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._taken_bytes = 0
        room.requests += 1

    def take(self, size_bytes: int) -> None:
        self._taken_bytes += size_bytes
        self._room.taken_bytes += size_bytes

    def check(self) -> None:
        """Raises `WireError` where there is no more room."""
        if self._room.taken_bytes > self._room.limit_bytes:
            limit = self._room.limit_bytes
            raise WireError(503, f"requests that are under way take up {limit} bytes already", "no_room")

    def give_back(self) -> None:
        self.take(-self._taken_bytes)
        self._room.requests -= 1


def as_json(found: object, status: int = 200, **headers: str) -> HttpAnswer:
    body = json.dumps(found, separators=(",", ":")).encode()
    return HttpAnswer(status, body, {"content-type": "application/json", **headers})


def as_error(problem: WireError, **headers: str) -> HttpAnswer:
    """`{"error": "one sentence"}`; where it may work later, with when to retry; where more would come, as the last."""
    if problem.status == 408:
        headers["connection"] = "close"
    if problem.status == 503:
        headers["retry-after"] = str(RETRY_AFTER_S)
    if isinstance(problem, MethodError):
        headers["allow"] = ", ".join(problem.methods)
    return as_json({"error": problem.sentence}, problem.status, **headers)


class MethodError(WireError):
    """405, with what is possible."""

    def __init__(self, request: Request, methods: tuple[str, ...]) -> None:
        super().__init__(405, f"{request.method} is not possible on {request.path}; use {' or '.join(methods)}")
        self.methods = methods


def reason(problem: BaseException) -> str:
    """By which word a request is counted that ended so; what is no error is its client's leaving."""
    if isinstance(problem, WireError):
        return problem.reason
    return "failed" if isinstance(problem, Exception) else LEFT


def only(request: Request, method: str) -> None:
    """Raises `MethodError` for any other; HEAD is GET without what it would bring."""
    methods = ("GET", "HEAD") if method == "GET" else (method,)
    if request.method not in methods:
        raise MethodError(request, methods)


def as_app(
    answer: Callable[[Request], Awaitable[HttpAnswer]],
    max_body_bytes: int,
    refused: Refused = lambda path, reason, ns: None,
    room: Room | None = None,
) -> App:
    """The ASGI application around `answer`, which may raise `WireError`."""
    room = room or Room(max_body_bytes)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        elif scope["type"] == "http":
            share = Share(room)
            try:
                reading = _read_and_answer(scope, receive, answer, max_body_bytes, share, refused)
                found = await settled(reading, scope["path"])
                if found is not None:
                    await _send(found, send, share, head=scope["method"] == "HEAD")
            finally:
                share.give_back()

    return app


async def _read_and_answer(
    scope: Scope,
    receive: Receive,
    answer: Callable[[Request], Awaitable[HttpAnswer]],
    max_body_bytes: int,
    share: Share,
    refused: Refused,
) -> HttpAnswer | None:
    began_ns = time.perf_counter_ns()
    try:
        request = await _read(scope, receive, max_body_bytes, share)
    except BaseException as problem:
        refused(scope["path"], reason(problem), time.perf_counter_ns() - began_ns)
        raise
    if request is None:
        refused(scope["path"], LEFT, time.perf_counter_ns() - began_ns)
        return None
    return await answer(request)


async def _send(found: HttpAnswer, send: Send, share: Share, *, head: bool) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in found.headers.items()]
    if found.pieces is None:
        headers.append((b"content-length", b"%d" % len(found.body)))
    await send({"type": "http.response.start", "status": found.status, "headers": headers})
    body = b"" if head else found.body
    if len(body) > PIECE_BYTES:
        share.take(len(body))
        whole = memoryview(body)
        while len(whole) > PIECE_BYTES:
            await send({"type": "http.response.body", "body": bytes(whole[:PIECE_BYTES]), "more_body": True})
            whole = whole[PIECE_BYTES:]
        body = bytes(whole)
    if found.pieces is not None:
        async with aclosing(found.pieces) as pieces:
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        body = b""
    await send({"type": "http.response.body", "body": body})


async def settled(answer: Awaitable[T], what: str) -> T | HttpAnswer:
    """The answer, or the error that it raised as one."""
    try:
        return await answer
    except WireError as problem:
        return as_error(problem)
    except Exception:
        log.exception("%s failed", what)
        return as_error(WireError(500, "the server failed on this request; its log says why"))


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _read(scope: Scope, receive: Receive, limit: int, share: Share) -> Request | None:
    """None: the client left before its body was complete."""
    headers = dict(scope["headers"])
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
        raise WireError(413, f"the body has {declared[:20].decode()} bytes, but at most {limit} are taken")
    # uvicorn knows whether all of it is there, and then nothing need be timed
    cycle = getattr(receive, "__self__", None)
    whole = getattr(cycle, "more_body", True) is False
    body = await (_body(receive, limit, share) if whole else _body_in_time(receive, limit, share))
    if body is None:
        return None
    received_ns, received_wall_ns = time.perf_counter_ns(), time.time_ns()
    encoding = headers.get(b"content-encoding")
    if encoding and (how := encoding.decode("latin-1").lower()) != "identity":
        # a small body may become a large one, which takes a tenth of a second
        body = await asyncio.to_thread(inflate, body, how, limit)
        share.take(len(body))
        share.check()
    query = scope.get("query_string", b"").decode("latin-1")
    return Request(scope["method"], scope["path"], query, headers, body, received_ns, received_wall_ns, _gone(cycle))


async def _body_in_time(receive: Receive, limit: int, share: Share) -> wire.Body | None:
    """A request that waits for its body has one of Ray's slots already."""
    loop, came = asyncio.get_running_loop(), 0
    began_s = loop.time()

    def more(size: int) -> None:
        nonlocal came
        came = size
        patience.reschedule(began_s + PATIENCE_S + size / SLOWEST_BPS)

    try:
        async with asyncio.timeout(PATIENCE_S) as patience:
            return await _body(receive, limit, share, more)
    except TimeoutError:
        raise WireError(408, f"only {came} bytes of the body came in {loop.time() - began_s:.0f} s") from None


async def _body(
    receive: Receive, limit: int, share: Share, more: Callable[[int], None] | None = None
) -> wire.Body | None:
    """The whole of it, `more` told how much there is as long as some is missing; None: the client left before."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        if piece := message.get("body"):
            pieces.append(piece)
            size += len(piece)
            share.take(len(piece))
            if size > limit:
                raise WireError(413, f"the body has more than {limit} bytes, and no more are taken")
            share.check()
        if not message.get("more_body"):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if more is not None:
            more(size)


def _gone(cycle: object) -> Callable[[], bool] | None:
    """uvicorn knows who has hung up, and to ask it costs no task per request."""
    return partial(getattr, cycle, "disconnected") if hasattr(cycle, "disconnected") else None
