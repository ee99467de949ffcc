"""Where a server listens, and whether that can be meant: port, certificate, and who reaches it without a token."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from tailrate.serve.edge import auth
from tailrate.serve.spec import ServeError


def check_port(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as problem:
            raise ServeError(f"cannot listen on {host}:{port} ({problem}); choose another --port or --host") from None


def check_tls(certificate: str, key: str) -> ssl.SSLContext | None:
    """What speaks TLS with that certificate; None where there is none."""
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise ServeError("--tls-cert and --tls-key go together: name both, or neither")
    for path in (certificate, key):
        try:
            Path(path).read_bytes()
        except OSError as problem:
            raise ServeError(f"{path} cannot be read for TLS: {problem.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as problem:
        if "MISMATCH" in str(problem.reason):
            raise ServeError(f"the key {key} does not fit the certificate {certificate}") from None
        raise ServeError(f"{certificate} and {key} must be a certificate and its unencrypted key, as PEM") from None
    return context


def exposure(host: str, port: int, *, tls: bool, what: str) -> str | None:
    """What to say of a server that more than this machine reaches: in the clear, or open to everybody."""
    if auth.is_loopback(host):
        return None
    if auth.tokens():
        clear = f"tokens and {what} cross the network in the clear, unless something in front does TLS: give --tls-cert"
        return None if tls else clear
    return f"whoever reaches port {port} can use this server: set {auth.TOKEN} to a secret, or --host 127.0.0.1"
