"""What `--devices` names: `[NAME=]URL[@DEVICE[+DEVICE]]`, several with commas between them.

A URL alone is an agent's, or any server's that has `/telemetry/devices`; before it stands what else a page is
(`dcgm+http://gpu1:9400/metrics`). NAME is an endpoint's, or a pattern of them; DEVICE is what samples call it, or the
beginning of that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from tailrate.loadtest.engine.endpoint.credentials import address
from tailrate.loadtest.engine.scenario.scenario import ScenarioError

AGENT = "agent"
EXPORTERS = ("dcgm", "amd", "host")
"""Before a URL, what writes its page: DCGM's exporter, AMD's device-metrics-exporter, Prometheus' node_exporter."""

_SOURCE = re.compile(r"(?:([^=]+)=)?(?:(\w+)\+)?(https?://[^@\s]+)(?:@([\w.:/+-]+))?", re.ASCII)


class Claim(NamedTuple):
    """That an endpoint (empty: whichever is on this host) is on these devices (none named: on the host's)."""

    name: str
    devices: tuple[str, ...]

    def means(self, endpoint: str) -> bool:
        return fnmatchcase(endpoint, self.name)


@dataclass(frozen=True, slots=True)
class DeviceSource:
    """One place that samples come from, however often it was named."""

    kind: str
    url: str
    claims: tuple[Claim, ...]

    @property
    def host(self) -> str:
        return address(self.url).hostname or ""

    @property
    def netloc(self) -> str:
        return address(self.url).netloc

    @property
    def path(self) -> str:
        """Of an exporter's page."""
        parts = address(self.url)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    @property
    def named(self) -> str:
        """As it was given, without the claims."""
        return self.url if self.kind == AGENT else f"{self.kind}+{self.url}"


def parse(text: str) -> tuple[DeviceSource, ...]:
    """
    >>> parse("mlp/a=http://gpu1:9410@GPU-1+GPU-2")[0].claims
    (Claim(name='mlp/a', devices=('GPU-1', 'GPU-2')),)
    """
    claims: dict[tuple[str, str], list[Claim]] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        found = _SOURCE.fullmatch(word)
        kind = found and (found[2] or AGENT)
        if found is None or kind not in (AGENT, *EXPORTERS):
            raise ScenarioError(
                f"--devices '{word}' is not understood; write for instance http://gpu1:9410 for an agent, "
                f"mlp/eager=http://gpu1:9410@GPU-1, or dcgm+http://gpu1:9400/metrics ({', '.join(EXPORTERS)})"
            )
        url = _checked(found[3])
        devices = tuple(filter(None, (found[4] or "").split("+")))
        claims.setdefault((str(kind), url), []).append(Claim(found[1] or "", devices))
    return tuple(DeviceSource(kind, url, tuple(made)) for (kind, url), made in claims.items())


def _checked(url: str) -> str:
    try:
        address(url)
    except ScenarioError as problem:
        raise ScenarioError(str(problem).replace("--host", "--devices")) from None
    return url.rstrip("/")


def chosen(wanted: Sequence[str], there: Sequence[str]) -> tuple[list[str], list[str]]:
    """(the devices that are meant, the words that mean none or several)"""
    found: list[str] = []
    unknown: list[str] = []
    for word in wanted:
        meant = [word] if word in there else [device for device in there if device.startswith(word)]
        (found if len(meant) == 1 else unknown).append(meant[0] if len(meant) == 1 else word)
    return list(dict.fromkeys(found)), unknown
