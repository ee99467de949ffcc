"""What a run ran on and with: hosts, package versions, the commit."""

from __future__ import annotations

import platform
import re
import shlex
import socket
import subprocess
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tailrate.loadtest.engine.child_python import ROOT
from tailrate.serve.machine import cores

PACKAGES = ("tailrate", "locust", "gevent", "geventhttpclient", "numpy", "pyarrow")


HIDDEN = r"--(?:[\w-]*[-_])?(?:token|password|secret|key|webhook)"
NAMED_FOR_ONE = r"(?i)\b((?:authorization|cookie|[\w-]*(?:token|secret|key)) *: *)[^;\s][^;]*"
NOT_ABOUT_THE_HOST = ("name", "version", "extensions", "endpoints", "versions", "ingress")


def hosts(servers: Mapping[str, dict[str, Any]], promptness: dict[str, Any]) -> list[dict[str, Any]]:
    """What each server, by its URL, says of its machine in its metadata, and what we know of ours."""
    load: dict[str, Any] = {"role": "load", "host": socket.gethostname(), "cpus": cores()}
    load |= {"os": platform.platform(), **promptness}
    theirs = [
        {"role": "server", "url": url} | {key: value for key, value in said.items() if key not in NOT_ABOUT_THE_HOST}
        for url, said in servers.items()
    ]
    return [*theirs, load]


def versions(servers: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """The servers' own, those of torch, cuda, driver and ray of the first that says them, then ours."""
    names = [f"{said.get('name') or ''} {said.get('version') or ''}".strip() for said in servers.values()]
    found = {"server": ", ".join(dict.fromkeys(filter(None, names)))}
    for said in reversed(list(servers.values())):
        found |= said.get("versions") or {}
    found["python"] = platform.python_version()
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if git := _git():
        found["git"] = git
    return found


def command_line(words: Iterable[str]) -> str:
    """As it may be kept: less passwords in URLs, and the values of options that are named for a secret.

    >>> command_line(["tailrate", "soak", "--webhook", "https://chat.example/T0/x", "--api-key=7", "--token-file=f"])
    "tailrate soak --webhook '***' '--api-key=***' --token-file=f"
    """
    found: list[str] = []
    for word in words:
        value = found and re.fullmatch(HIDDEN, found[-1])
        shown = re.sub(f"^({HIDDEN})=.*", r"\1=***", word, flags=re.DOTALL)
        found.append("***" if value else without_secrets(re.sub(r"//[^/\s]*@", "//***@", shown)))
    return shlex.join(found)


def without_secrets(headers: str) -> str:
    """Header fields, separated by `;`, less the values of those that are named for a secret.

    >>> without_secrets("authorization: Bearer x; accept: a/b; x-api-key: 7")
    'authorization: ***; accept: a/b; x-api-key: ***'
    """
    return re.sub(NAMED_FOR_ONE, r"\1***", headers)


def _git() -> str:
    if not (ROOT / ".git").exists():  # installed, not checked out: the repository around us is another's
        return ""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
