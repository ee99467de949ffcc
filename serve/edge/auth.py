"""Who may ask: bearer tokens, looked at before anything of a request's body is read.

Tokens come from the environment alone, TAILRATE_TOKEN or a file that TAILRATE_TOKEN_FILE names, so that no command
line, printed configuration or metadata holds one; every process of a server reads them where it starts. Several,
separated by commas or white space, are all good, so that one can take another's place. Owns the comparison in Python,
what HAProxy compares with, and what is said of a server that others reach. The standard library alone, for probes.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence, Set
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailrate.serve.asgi import App, Receive, Scope, Send
    from tailrate.serve.spec import ServeError

TOKEN = "TAILRATE_TOKEN"  # noqa: S105  # its name
FILE = "TAILRATE_TOKEN_FILE"
SHORTEST = 16
"""Characters: HAProxy's file holds digests, and a short token could be found by trying."""

ANYWHERE = "0.0.0.0"  # noqa: S104
"""Where a server listens as far as we know, if Ray was started by others."""

REFUSED = b'{"error":"this server wants a bearer token that it knows: Authorization: Bearer TOKEN"}'
CALLBACK = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "tailrate.serve.edge.auth.middlewares"}
"""Has Ray put `middlewares` around each of its HTTP servers, some of whose paths no application sees."""
RAY_HEALTH = "/-/healthz"


def tokens() -> tuple[str, ...]:
    """Those that are good, none where everybody may ask; raises `ServeError` where one was meant that is not."""
    found = _words()
    if found is not None and not (found and all(re.fullmatch(rf"[!-~]{{{SHORTEST},}}", token) for token in found)):
        where = os.environ.get(FILE) or TOKEN
        raise _bad(f"{where} must hold a token of {SHORTEST} characters or more, such as `openssl rand -hex 32` makes")
    return tuple(found or ())


def authorization() -> dict[str, str]:
    """The header of a request of our own, where there is a token."""
    found = _words()
    return {"Authorization": f"Bearer {found[0]}"} if found else {}


def _words() -> list[str] | None:
    """None: no token was meant."""
    text = os.environ.get(TOKEN)
    if path := os.environ.get(FILE):
        try:
            text = Path(path).expanduser().read_text("utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            why = getattr(problem, "strerror", "it is no text")
            raise _bad(f"the token file {path} cannot be read: {why}") from None
    elif not text:
        return None
    return re.findall(r"[^\s,]+", text)


def _bad(sentence: str) -> ServeError:
    from tailrate.serve.spec import ServeError

    return ServeError(sentence)


def haproxy_rule(path: Path) -> str:
    """Of HAProxy's configuration: whoever shows no token whose digest is in the file at `path` gets a 401."""
    return (
        "    http-request return status 401 content-type application/json hdr www-authenticate Bearer "
        f"string '{REFUSED.decode()}' unless {{ http_auth_bearer,sha2(256),hex -m str -f \"{path}\" }}\n"
    )


def digests(good: Sequence[str]) -> str:
    """A line for each token, as HAProxy makes them of what it is shown: whoever reads them still has no token."""
    return "".join(f"{sha256(token.encode()).hexdigest().upper()}\n" for token in good)


def guarded(app: App, good: Sequence[str], unguarded: Set[str] = frozenset()) -> App:
    """`app` for those alone who show one of these tokens, where there are any; others get a 401 or no websocket."""
    if not good:
        return app
    known = [token.encode() for token in good]

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in unguarded or _shows(scope, known):
            await app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            headers.append((b"content-length", b"%d" % len(REFUSED)))
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSED})
        else:
            await send({"type": "websocket.close", "code": 1008})

    return guard


def _shows(scope: Scope, known: Sequence[bytes]) -> bool:
    return shows(next((value for name, value in scope["headers"] if name == b"authorization"), b""), known)


def shows(shown: bytes, known: Sequence[bytes]) -> bool:
    """Whether what stands behind `Authorization:` is one of these tokens."""
    scheme, _, token = shown.partition(b" ")
    return scheme.lower() == b"bearer" and any(compare_digest(token.strip(), good) for good in known)


def middlewares() -> list[Any]:
    """For `CALLBACK`. HAProxy shows no token where it asks whether a replica is up, so that is left open to it."""
    from starlette.middleware import Middleware

    behind_haproxy = os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1"
    return [Middleware(guarded, tokens(), {RAY_HEALTH} if behind_haproxy else frozenset())]


def is_loopback(host: str) -> bool:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return bool((getattr(found, "ipv4_mapped", None) or found).is_loopback)
