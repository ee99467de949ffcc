"""Asks a server of this machine: its own start does, an image's health check, and Kubernetes' probes.

Such a probe has the token and the port from its environment (HEADROOM_TOKEN, HEADROOM_SERVE_PORT …), as the server has,
so no manifest holds a secret. Ends with 0 where the answer is 200, else with a sentence: with 1, or with 2 where the
environment is wrong and no server could be asked:

    python -m serve.health [/v2/health/live]
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

from serve import guard

READY = "/v2/health/ready"  # as in `serve.wire`, which loads numpy
EVERY_INTERFACE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Where a server that listens everywhere is reached from here."""
TIMEOUT_S = 4.0  # within the five seconds that probes are given


def number(text: str) -> int:
    """A port as it was given; raises `ValueError` with the sentence for what is none."""
    try:
        return int(text)
    except ValueError:
        pass
    if text.startswith(("tcp://", "udp://")):
        raise ValueError(
            f"HEADROOM_SERVE_PORT={text} is what Kubernetes tells every pod of a Service named headroom-serve, and no "
            "port: set enableServiceLinks: false in the pod's spec, or HEADROOM_SERVE_PORT to a number, such as 8000"
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
        connection.request(method, path, headers=guard.authorization())
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
    given = {name: os.environ.get(f"HEADROOM_SERVE_{name}") for name in ("HOST", "PORT", "TLS_CERT")}
    try:
        port = number(given["PORT"] or "8000")
    except ValueError as problem:
        print(f"headroom: {problem}", file=sys.stderr)
        return 2
    server = url(given["HOST"] or "127.0.0.1", port, bool(given["TLS_CERT"]))
    path = sys.argv[1] if len(sys.argv) > 1 else READY
    try:
        status, body = ask(server, path)
    except (OSError, HTTPException) as problem:
        status, body = 0, str(problem).encode()
    if status != 200:
        print(f"{server}{path}: {status or 'no answer'} {body.decode(errors='replace')[:300]}", file=sys.stderr)
    return status != 200


if __name__ == "__main__":
    sys.exit(main())
