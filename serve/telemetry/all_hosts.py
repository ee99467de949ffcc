"""Device samples of all hosts of a server, as one stream with one cursor. Knows nothing of Ray: others are given to it.

The cursor is every host's own, so whoever reads gets each sample once, also when a host comes later or goes. A host
that does not answer is an event, once; the rest is served meanwhile, and what it kept follows when it is back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from tailrate.serve.telemetry.sampler import KEPT_EVENTS, Sampler
from tailrate.serve.wire import SAMPLE_FIELDS, WireError

log = logging.getLogger(__name__)

REFRESH_S = 5.0
ANSWER_S = 2.0
LATEST_S = 60.0
"""A device that nobody heard of for so long has no latest sample any more."""


class Remote(Protocol):
    """A sampler on another host."""

    async def read(self, after: str) -> dict[str, Any]: ...

    async def clock(self) -> dict[str, int]: ...


_HOST, _DEVICE = SAMPLE_FIELDS.index("host"), SAMPLE_FIELDS.index("device")

Others = Callable[[], Awaitable[Mapping[str, Remote]]]
"""The samplers on other hosts as they are now, by the host's name."""


async def alone() -> Mapping[str, Remote]:
    return {}


class AllHosts:
    """The own host's sampler and those of others."""

    def __init__(self, local: Sampler, others: Others = alone) -> None:
        self.local = local
        self._others = others
        self._remotes: Mapping[str, Remote] = {}
        self._refreshed_s = -REFRESH_S
        self._silent: set[str] = set()
        self._events: deque[dict[str, Any]] = deque(maxlen=KEPT_EVENTS)
        self._latest: dict[tuple[str, str], tuple[float, list[Any]]] = {}
        self._latest_cursor = ""

    @property
    def hosts(self) -> list[str]:
        return [self.local.host, *self._remotes]

    async def read(self, after: str) -> dict[str, Any]:
        """What each host sampled after its part of the cursor."""
        await self._refresh()
        cursors = dict(_parts(after))
        found = {self.local.host: self.local.read(cursors.get(self.local.host, ""))}
        asked = {host: self._read(host, remote, cursors.get(host, "")) for host, remote in self._remotes.items()}
        answers = await asyncio.gather(*asked.values())
        found |= {host: answer for host, answer in zip(asked, answers, strict=True) if answer is not None}
        now = cursors | {host: answer["cursor"] for host, answer in found.items()}
        events = [event | {"host": host} for host, answer in found.items() for event in answer["events"]]
        return {
            "cursor": ",".join(f"{host}={cursor}" for host, cursor in now.items()),
            "overwritten": sum(answer["overwritten"] for answer in found.values()),
            "period_ms": self.local.period_ms,
            "host": self.local.host,
            "hosts": self.hosts,
            "columns": list(SAMPLE_FIELDS),
            "rows": [row for answer in found.values() for row in answer["rows"]],
            "events": sorted([*events, *self._events], key=lambda event: int(event["time_ns"])),
        }

    async def latest(self) -> list[list[Any]]:
        """The newest sample of each device, for those who look only now and then."""
        found = await self.read(self._latest_cursor)
        self._latest_cursor = found["cursor"]
        now_s = time.monotonic()
        for row in found["rows"]:
            self._latest[row[_HOST], row[_DEVICE]] = now_s, row
        self._latest = {device: at for device, at in self._latest.items() if now_s - at[0] < LATEST_S}
        return [row for _, row in self._latest.values()]

    async def clock(self, host: str, received_ns: int) -> dict[str, Any]:
        """That host's wall clock when it was asked and when it answers; the own one's without a name."""
        if host in ("", self.local.host):
            return {"recv_ns": received_ns, "host": self.local.host, "send_ns": time.time_ns()}
        await self._refresh()
        if host not in self._remotes:
            raise WireError(404, f"unknown host '{host[:64]}'; there are {', '.join(self.hosts)}")
        try:
            return {**await asyncio.wait_for(self._remotes[host].clock(), ANSWER_S), "host": host}
        except Exception as problem:
            raise WireError(503, f"host {host} does not answer: {type(problem).__name__}") from None

    async def _refresh(self) -> None:
        now_s = time.monotonic()
        if now_s - self._refreshed_s < REFRESH_S:
            return
        self._refreshed_s = now_s
        before = set(self._remotes)
        try:
            self._remotes = dict(await self._others())
        except Exception as problem:
            log.warning("the other hosts could not be listed: %s", problem)
            return
        for host in before - set(self._remotes):
            self._say(host, "the host left the cluster")
            self._silent.discard(host)

    async def _read(self, host: str, remote: Remote, after: str) -> dict[str, Any] | None:
        try:
            answer = await asyncio.wait_for(remote.read(after), ANSWER_S)
        except WireError:
            raise
        except Exception as problem:
            if host not in self._silent:
                self._silent.add(host)
                self._say(host, f"the host's sampler does not answer: {type(problem).__name__}")
            return None
        if host in self._silent:
            self._silent.discard(host)
            self._say(host, "the host's sampler answers again")
        return answer

    def _say(self, host: str, sentence: str) -> None:
        log.warning("telemetry: %s: %s", host, sentence)
        self._events.append({"time_ns": time.time_ns(), "source": "fleet", "event": sentence, "host": host})


def _parts(cursor: str) -> list[tuple[str, str]]:
    """Each host and its own cursor; what is wrong with those is the sampler's to say."""
    found = [part.partition("=") for part in cursor.split(",") if part]
    if not all(equals for _, equals, _ in found):
        raise WireError(400, f"cursor '{cursor[:64]}' is malformed; send back the one of the last answer, or none")
    return [(host, own) for host, _, own in found]
