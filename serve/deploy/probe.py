"""Asks a server of this machine: its own start does, an image's health check, and Kubernetes' probes.

Such a probe has the token and the port from its environment (TAILRATE_TOKEN, TAILRATE_SERVE_PORT …), as the server has,
so no manifest holds a secret. Ends with 0 where the answer is 200, else with a sentence: with 1, or with 2 where the
environment is wrong and no server could be asked:

    python -m tailrate.serve.deploy.probe [/v2/health/live]
    python -m tailrate.serve.deploy.probe --stop [SECONDS]

takes nothing new, and waits until what is under way is answered.

The second is for clusters that Ray's own tools end, since those end the proxy at once.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import sys
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

from tailrate.serve.edge import auth

READY, STOP = "/v2/health/ready", "/v2/tailrate/stop"  # as in `tailrate.serve.wire`, which loads numpy
EVERY_INTERFACE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Where a server that listens everywhere is reached from here."""
AGAIN_S = 0.5
TIMEOUT_S = 4.0  # within the five seconds that probes are given


def number(text: str) -> int:
    """A port as it was given; raises `ValueError` with the sentence for what is none."""
    try:
        return int(text)
    except ValueError:
        pass
    if text.startswith(("tcp://", "udp://")):
        raise ValueError(
            f"TAILRATE_SERVE_PORT={text} is what Kubernetes tells every pod of a Service named tailrate-serve, and no "
            "port: set enableServiceLinks: false in the pod's spec, or TAILRATE_SERVE_PORT to a number, such as 8000"
        )
    raise ValueError(f"a port is a number, such as 8000, not '{text}'")


def url(host: str, port: int, tls: bool) -> str:
    host = EVERY_INTERFACE.get(host, host)
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def ask(server: str, path: str, method: str = "GET", certificate: str = "") -> tuple[int, bytes]:
    """Status and body, asked with our token; raises `OSError` or `HTTPException`.

    With `certificate` the token is shown only to who has that very one: a name or CA need not be in order for that.
    """
    parts = urlsplit(server)
    host, port = str(parts.hostname), parts.port
    connection = HTTPConnection(host, port, timeout=TIMEOUT_S)
    if parts.scheme == "https":
        connection = HTTPSConnection(host, port, timeout=TIMEOUT_S, context=_unverified())
    try:
        connection.connect()
        if certificate and not _shows(certificate, connection.sock):
            raise OSError(f"another server answers at {server}")
        connection.request(method, path, headers=auth.authorization())
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _shows(certificate: str, connected: socket.socket) -> bool:
    shown = connected.getpeercert(binary_form=True) if isinstance(connected, ssl.SSLSocket) else None
    return shown is not None and base64.b64encode(shown) in b"".join(Path(certificate).read_bytes().split())


def main() -> int:
    given = {name: os.environ.get(f"TAILRATE_SERVE_{name}") for name in ("HOST", "PORT", "TLS_CERT")}
    try:
        port = number(given["PORT"] or "8000")
    except ValueError as problem:
        print(f"tailrate: {problem}", file=sys.stderr)
        return 2
    server = url(given["HOST"] or "127.0.0.1", port, bool(given["TLS_CERT"]))
    path = sys.argv[1] if len(sys.argv) > 1 else READY
    if path == "--stop":
        return _stop(server, f"{STOP}?seconds={sys.argv[2]}" if len(sys.argv) > 2 else STOP)
    return _asked(server, path, "GET") is None


def _asked(server: str, path: str, method: str) -> bytes | None:
    """The body of a 200; None after a sentence about any other answer."""
    try:
        status, body = ask(server, path, method)
    except (OSError, HTTPException) as problem:
        status, body = 0, str(problem).encode()
    if status == 200:
        return body
    print(f"{server}{path}: {status or 'no answer'} {body.decode(errors='replace')[:300]}", file=sys.stderr)
    return None


def _stop(server: str, path: str) -> int:
    while (body := _asked(server, path, "POST")) is not None:
        if (left := int(json.loads(body)["under_way"])) <= 0:
            print("nothing is under way any more")
            return 0
        print(f"{left} requests are under way")
        time.sleep(AGAIN_S)
    return 1


if __name__ == "__main__":
    sys.exit(main())
