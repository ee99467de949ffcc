"""An endpoint as it is asked for (`Target`) and as it was found (`Endpoint`): a model at a URL, by a protocol."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import unquote

from tailrate.loadtest.engine.endpoint.credentials import address
from tailrate.loadtest.engine.scenario.scenario import ScenarioError

SCHEMES = {"grpc": "oip-grpc+http", "grpcs": "oip-grpc+https"}
"""What others write for a protocol and how it is carried."""
SPELLING = "write NAME=URL#MODEL/VERSION, for instance old=http://127.0.0.1:8000#bert/1; several are separated by ,"

Settings = Mapping[str, Any]
"""Of a protocol, by their names."""
say = logging.getLogger("tailrate")

_TARGET = re.compile(
    r"(?:(?P<name>[^=/:#\s]+)=)?(?:(?P<protocol>[a-z][a-z0-9-]*)\+)?(?P<url>https?://[^#\s]+|[^#\s/:=]+(?::\d+)?(?:/[^#\s]*)?)"
    r"(?:#(?P<model>[^/\s]+)(?:/(?P<version>[^\s]+))?)?"
)


def called(model: str, version: str) -> str:
    """`model/version`, or the model alone where it has none."""
    return f"{model}/{version}" if version else model


@dataclass(frozen=True, slots=True)
class Target:
    """What is not given is empty, and is found out by asking the server: its protocol, the versions that there are."""

    url: str
    model: str
    name: str = ""
    version: str = ""
    protocol: str = ""
    settings: Settings = field(default_factory=dict)

    def indexed(self, url: str, models: Sequence[Mapping[str, Any]]) -> list[str]:
        """Versions of the model in a server's index, which may be empty; `ScenarioError` where it is not in it.

        Where none is named, those that are unavailable are left out, as long as another is there.
        """
        if models and not any(item.get("name") == self.model for item in models):
            known = ", ".join(sorted({str(item.get("name", "")) for item in models}))
            raise ScenarioError(f"{url} hosts no model '{self.model}'; it hosts {known}")
        states = {
            str(item["version"]): str(item.get("state", ""))
            for item in models
            if item.get("name") == self.model and item.get("version")
        }
        gone = [each for each, state in states.items() if state.endswith("UNAVAILABLE")]  # or State.UNAVAILABLE
        if self.version or len(gone) == len(states):
            return [*states]
        for each in gone:
            say.warning("%s is unavailable at %s, so it is left out", called(self.model, each), url)
        return [each for each in states if each not in gone]

    def versions(self, url: str, hosted: Sequence[str]) -> list[str]:
        """Those to drive of the hosted ones: the one that is meant, all, or the only one there is, without a name."""
        if self.version and hosted and self.version not in hosted:
            known = ", ".join(hosted)
            raise ScenarioError(f"{url} hosts no variant {self.version} of '{self.model}'; it hosts {known}")
        return [self.version] if self.version else [*hosted] or [""]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One that is driven: how requests get there and how they are written."""

    name: str
    """In rows and reports, unique in a run."""
    url: str
    protocol: str
    model: str
    version: str
    """Empty: the server has none."""
    path: str
    """That each request is sent to, with what stands before it in the URL."""
    settings: Settings = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What the server says of it; not sent to load processes."""

    def as_message(self) -> dict[str, Any]:
        return asdict(self) | {"parameters": {}}


def parse(text: str, model: str, protocol: str = "") -> list[Target]:
    """The targets of `--endpoints`; `model` is the scenario's own, for those that name none.

    >>> [(t.name, t.protocol, t.url, t.version) for t in parse("a=http://x:8000#m/1,b=grpc://y:9000", "m")]
    [('a', '', 'http://x:8000', '1'), ('b', 'oip-grpc', 'http://y:9000', '')]
    """
    try:
        listed = json.loads(text) if text.lstrip().startswith("[") else filter(None, map(str.strip, text.split(",")))
    except (ValueError, RecursionError):
        raise ScenarioError(f"--endpoints begins as a list in JSON does, and is none; {SPELLING}") from None
    found = [_target(each, model, protocol) for each in listed]
    if not found:
        raise ScenarioError(f"--endpoints '{text}' names no endpoint; {SPELLING}")
    return _distinct(found)


def _target(given: Any, model: str, protocol: str) -> Target:
    """One, as a text on the command line or, in a run file, by its parts' names and the protocol's settings."""
    if isinstance(given, str):
        word = re.sub(r"^((?:[^=/:#]+=)?)(\w+)(?=://)", lambda m: m[1] + SCHEMES.get(m[2], m[2]), given.strip())
        if not (match := _TARGET.fullmatch(word)):
            raise ScenarioError(f"--endpoints '{given}' is not understood; {SPELLING}")
        own = match.groupdict("")
        own |= {key: unquote(own[key]) for key in ("model", "version")}
        address(own["url"])
        return Target(own["url"], own["model"] or model, own["name"], own["version"], own["protocol"] or protocol)
    if not isinstance(given, dict) or not given.get("url"):
        raise ScenarioError(f"--endpoints: each endpoint of a list needs a url, as {json.dumps(given)} has none")
    own = {key: str(given[key]) for key in ("url", "name", "model", "version", "protocol") if given.get(key)}
    address(own["url"])
    settings = {key: value for key, value in given.items() if key not in own}
    return Target(**{"model": model, "protocol": protocol, **own}, settings=settings)


def _distinct(found: list[Target]) -> list[Target]:
    names = [target.name for target in found if target.name]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ScenarioError(f"--endpoints names '{twice[0]}' twice; each endpoint needs a name of its own")
    return found
