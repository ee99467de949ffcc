"""Which devices an endpoint is on: those that `--devices` names for it, else its host's, else those that its process
holds there. What cannot be told is said rather than guessed, since energy would go to the wrong endpoint.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tailrate.loadtest.engine.record.devices.names import CPU
from tailrate.loadtest.engine.record.devices.source import DeviceSource, chosen

Facts = Mapping[str, Any]


@dataclass(slots=True)
class Binding:
    """By endpoint, its devices; and sentences on what could not be told."""

    devices: dict[str, list[str]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def bind(endpoints: Mapping[str, str], sources: Sequence[tuple[DeviceSource, Facts]]) -> Binding:
    """`endpoints` are URLs by name; each source with what is known of it."""
    found = Binding()
    for name, url in endpoints.items():
        claims = [(source, facts, claim) for source, facts in sources for claim in source.claims]
        mine = [(facts, claim.devices) for _, facts, claim in claims if claim.name and claim.means(name)]
        host = urlsplit(url).hostname or ""
        mine = mine or [
            (facts, claim.devices)
            for source, facts, claim in claims
            if not claim.name and _is_host(host, source, facts)
        ]
        if not mine:
            found.remarks.append(f"no source of device samples is on the host of {name}: write --devices {name}=URL")
        told = [_of(facts, words, name, _port(url)) for facts, words in mine]
        found.remarks += [remark for _, remark in told if remark]
        devices = list(dict.fromkeys(device for each, _ in told for device in each))
        named = any(words for _, words in mine)
        found.devices[name] = devices if named else [each for each in devices if not _is_cpu(each)] or devices
    found.remarks = list(dict.fromkeys(found.remarks))
    return found


def _of(facts: Facts, words: Sequence[str], endpoint: str, port: int) -> tuple[list[str], str]:
    """(devices, what could not be told)"""
    there = list(facts.get("devices") or ())
    if words:
        devices, unknown = chosen(words, there)
        known = ", ".join(there) or "none yet"
        said = f"of {endpoint} there is no device {', '.join(unknown)}, or several; there are {known}"
        return devices, said if unknown else ""
    gpus = [device for device in there if not _is_cpu(device)]
    if len(gpus) < 2:
        return gpus or there, ""
    held = [device for device in gpus if device in (facts.get("holders") or {}).get(str(port), ())]
    if held:
        return held, ""
    return [], f"which of {len(gpus)} GPUs {endpoint} is on is not known: write --devices {endpoint}=URL@GPU"


def _is_cpu(device: str) -> bool:
    return device == CPU or device.startswith(f"{CPU}:")


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _is_host(host: str, source: DeviceSource, facts: Facts) -> bool:
    """By name, by what the source calls its hosts, or by address."""
    names = {source.host, *(facts.get("hosts") or ())}
    return host in names or bool(_addresses(host) & _addresses(source.host))


def _addresses(host: str) -> set[str]:
    found: set[str] = set()
    with suppress(OSError, UnicodeError):
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return {"127.0.0.1" if each == "::1" else each for each in found}
