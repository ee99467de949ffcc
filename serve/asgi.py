"""HTTP at the edge: a request read whole from ASGI, an answer written to it, and nothing of a framework.

Owns bodies (limit, decompression, clients that leave in the middle), the JSON form of answers and errors,
and the instants at which a request was received and answered. What to answer is the caller's.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from serve import wire
from serve.wire import WireError

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
T = TypeVar("T")
App = Callable[[Scope, Receive, Send], Awaitable[None]]

RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP response."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def as_json(found: object, status: int = 200, **headers: str) -> Answer:
    body = json.dumps(found, separators=(",", ":")).encode()
    return Answer(status, body, {"content-type": "application/json", **headers})


def as_error(problem: WireError, **headers: str) -> Answer:
    """`{"error": "one sentence"}`; where it may work later, with when to retry."""
    if problem.status in (429, 503):
        headers["retry-after"] = str(RETRY_AFTER_S)
    return as_json({"error": problem.sentence}, problem.status, **headers)


def only(request: Request, *methods: str) -> None:
    """Raises `WireError` 405 for any other method."""
    if request.method not in methods:
        raise WireError(405, f"{request.method} is not possible on {request.path}; use {' or '.join(methods)}")


def as_app(answer: Callable[[Request], Awaitable[Answer]], max_body_bytes: int) -> App:
    """The ASGI application around `answer`, which may raise `WireError`."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            found = await settled(_read_and_answer(scope, receive, answer, max_body_bytes), scope["path"])
            if found is not None:
                headers = [
                    (name.encode("latin-1"), value.encode("latin-1", "replace"))
                    for name, value in found.headers.items()
                ]
                headers.append((b"content-length", b"%d" % len(found.body)))
                await send({"type": "http.response.start", "status": found.status, "headers": headers})
                await send({"type": "http.response.body", "body": found.body})

    return app


async def _read_and_answer(
    scope: Scope, receive: Receive, answer: Callable[[Request], Awaitable[Answer]], max_body_bytes: int
) -> Answer | None:
    request = await _read(scope, receive, max_body_bytes)
    return None if request is None else await answer(request)


async def settled(answer: Awaitable[T], what: str) -> T | Answer:
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


async def _read(scope: Scope, receive: Receive, limit: int) -> Request | None:
    """None: the client left before its body was complete."""
    headers = dict(scope["headers"])
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > limit:
        raise WireError(413, f"the body has {int(declared)} bytes, but at most {limit} are taken")
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        if piece := message.get("body"):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise WireError(413, f"the body has more than {limit} bytes, and no more are taken")
        if not message.get("more_body"):
            break
    received_ns, received_wall_ns = time.perf_counter_ns(), time.time_ns()
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if encoding := headers.get(b"content-encoding"):
        body = wire.inflate(body, encoding.decode("latin-1"), limit)
    query = scope.get("query_string", b"").decode("latin-1")
    return Request(scope["method"], scope["path"], query, headers, body, received_ns, received_wall_ns, _gone(receive))


def _gone(receive: Receive) -> Callable[[], bool] | None:
    """uvicorn knows who has hung up, and to ask it costs no task per request."""
    cycle = getattr(receive, "__self__", None)
    return partial(getattr, cycle, "disconnected") if hasattr(cycle, "disconnected") else None
