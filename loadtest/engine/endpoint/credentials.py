"""What lets the load side in at the endpoint, and by what it knows it: a token, and whose certificates count.

A token comes from TAILRATE_TOKEN or out of a file, never from the command line, which everybody on a machine can read
and which is kept in run folders. Of several, which a server may know at a time, the first is sent. It is read when a
process starts, and is for the host that was named by then; an endpoint with a name may have one of its own.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from tailrate.loadtest.engine.scenario.scenario import ScenarioError

TOKEN = "TAILRATE_TOKEN"  # noqa: S105 -- its name
FILE = "TAILRATE_TOKEN_FILE"
HEADER = "TAILRATE_TOKEN_HEADER"
"""Where the endpoint wants the bare token in a header of another name, such as x-api-key."""


@dataclass(frozen=True, slots=True)
class Access:
    """Of one process; `source` is where its token is from."""

    token: str = field(default="", repr=False)
    header: str = "Authorization"
    source: str = ""
    ca_file: str = ""

    @property
    def line(self) -> str:
        """Of each request's header."""
        if not self.token:
            return ""
        return f"{self.header}: {'Bearer ' if self.header == 'Authorization' else ''}{self.token}\r\n"

    def tls(self) -> ssl.SSLContext:
        """Proves chain and name of whom it talks to; CAs are those of the system, or those of the file alone."""
        try:
            return ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as problem:
            why = "it holds no certificate" if isinstance(problem, ssl.SSLError) else problem.strerror
            raise ScenarioError(f"--ca-file {self.ca_file} cannot be used: {why}") from None

    def masked(self, body: bytes) -> bytes:
        """What an endpoint says of a request that it refused may repeat the token, and is kept."""
        return body.replace(self.token.encode(), b"***") if self.token else body


ANYBODY = Access()
DEVICES_TOKEN, DEVICES_FILE = "TAILRATE_DEVICES_TOKEN", "TAILRATE_DEVICES_TOKEN_FILE"
"""What agents want; the endpoint's own is for no other host."""


def address(host: str) -> SplitResult:
    """The URL that an endpoint is at; never one with a password in it, as URLs are kept and shown."""
    if "@" in host:
        raise ScenarioError(f"--host must not hold a user or a password; a token goes into {TOKEN}")
    try:
        parts = urlsplit(host if "//" in host else f"http://{host}")
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:  # no port is like that
        pass
    raise ScenarioError(f"--host '{host}' is not a URL; write for instance http://127.0.0.1:8000")


def read(options: Any) -> Keys:
    """By the options `token_file` and `ca_file` and by the environment; raises `ScenarioError`."""
    header = os.environ.get(HEADER) or "Authorization"
    if not re.fullmatch("[A-Za-z0-9-]+", header):
        raise ScenarioError(f"{HEADER} '{header}' is not the name of a header; write for instance x-api-key")
    files = [word.rpartition("=") for word in (options.token_file or os.environ.get(FILE, "")).split(",")]
    common = [path for name, _, path in files if not name]
    if len(common) > 1 or (len(files) > 1 and common[:1] not in ([], [""])):
        pairs = ",".join("=".join(filter(None, (name, path))) for name, _, path in files)
        raise ScenarioError(f"--token-file '{pairs}' is not understood; write one file, or a=FILE,b=FILE by endpoint")
    token, source = _token(common[0] if common else "", TOKEN)
    found = Access(token, header, source, options.ca_file)
    own = {name: _token(path, "") for name, _, path in files if name}
    if found.ca_file:
        found.tls()
    return Keys(found, {name: replace(found, token=token, source=source) for name, (token, source) in own.items()})


def for_devices(options: Any) -> Access:
    """For agents that device samples come from: by the environment, and the same CAs."""
    token, source = _token(os.environ.get(DEVICES_FILE, ""), DEVICES_TOKEN)
    return Access(token, source=source, ca_file=options.ca_file)


def _token(file: str, variable: str) -> tuple[str, str]:
    """The first token of a file, or else of an environment variable, and where it is from."""
    try:
        text = Path(file).expanduser().read_text("utf-8") if file else os.environ.get(variable, "")
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "it is no text"
        raise ScenarioError(f"the token file {file} cannot be read: {why}") from None
    token, source = next(iter(re.findall(r"[^\s,]+", text)), ""), file or variable
    if (file or text) and not token:
        raise ScenarioError(f"{f'the token file {file}' if file else variable} holds no token")
    if not re.fullmatch("[!-~]*", token):
        raise ScenarioError(f"the token of {source} has a character in it that no header can carry")
    return token, source


@dataclass(frozen=True, slots=True)
class Keys:
    """What lets the load side in at each endpoint."""

    common: Access = ANYBODY
    """For those that have none of their own, which have to be on one host: a token is for no other."""
    own: Mapping[str, Access] = field(default_factory=dict)

    def access(self, endpoint: str) -> Access:
        """By the endpoint's name: what was given for it, in a file or in a variable, or else what all have."""
        if endpoint in self.own:
            return self.own[endpoint]
        variable = own_variable(endpoint)
        if endpoint and os.environ.get(variable):
            token, source = _token("", variable)
            return replace(self.common, token=token, source=source)
        return self.common

    def check(self, hosts: Mapping[str, str]) -> None:
        """`ScenarioError` where the common token would go to several hosts; `hosts` has each endpoint's by its name."""
        common = {host: name for name, host in hosts.items() if self.access(name) is self.common}
        if self.common.token and len(common) > 1:
            name = next(iter(common.values()))
            raise ScenarioError(
                f"the token of {self.common.source} is for one host, and the endpoints are on {', '.join(common)}: "
                f"set {own_variable(name or 'NAME')}, or name files with --token-file {name or 'NAME'}=FILE"
            )


def own_variable(endpoint: str) -> str:
    """The environment variable that holds the token for one endpoint.

    >>> own_variable("bert/eager")
    'TAILRATE_TOKEN_BERT_EAGER'
    """
    return f"{TOKEN}_{re.sub('[^A-Z0-9]', '_', endpoint.upper())}"
