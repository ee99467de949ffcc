import asyncio
import time
from typing import Any

import pytest

from tailrate.serve.telemetry import all_hosts
from tailrate.serve.telemetry.all_hosts import AllHosts
from tailrate.serve.telemetry.sampler import Sampler
from tailrate.serve.wire import SAMPLE_FIELDS, WireError


class Source:
    name = "fake"

    def __init__(self, device: str) -> None:
        self.device = device

    def read(self) -> list[dict[str, Any]]:
        return [{"device": self.device, "index": 0}]


class Far:
    """A sampler on another host, as an actor's handle is."""

    def __init__(self, host: str) -> None:
        self.sampler = Sampler([Source(f"cpu:{host}")], 60_000, host=host)
        self.dead = False

    async def read(self, after: str) -> dict[str, Any]:
        if self.dead:
            raise ConnectionError("gone")
        return self.sampler.read(after)

    async def clock(self) -> dict[str, int]:
        if self.dead:
            raise ConnectionError("gone")
        return {"recv_ns": 5, "send_ns": 6}


class Hosts:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(all_hosts, "REFRESH_S", 0.0)
        self.local = Sampler([Source("cpu")], 60_000, host="head")
        self.far = {"one": Far("one"), "two": Far("two")}
        self.fleet = AllHosts(self.local, self._others)

    async def _others(self) -> dict[str, Far]:
        return self.far

    def sample(self) -> None:
        for sampler in (self.local, *(far.sampler for far in self.far.values())):
            sampler.sample()

    def read(self, after: str = "") -> dict[str, Any]:
        return asyncio.run(self.fleet.read(after))


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(monkeypatch)


def names(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(row[SAMPLE_FIELDS.index("host")], row[SAMPLE_FIELDS.index("device")]) for row in found["rows"]]


def test_each_host_s_samples_come_once(hosts: Hosts) -> None:
    hosts.sample()
    first = hosts.read()
    assert names(first) == [("head", "cpu"), ("one", "cpu:one"), ("two", "cpu:two")]
    assert first["hosts"] == ["head", "one", "two"]
    assert names(hosts.read(first["cursor"])) == []
    hosts.sample()
    assert len(names(hosts.read(first["cursor"]))) == 3


def test_the_latest_sample_of_each_device_stays_until_nobody_hears_of_it(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.sample()
    hosts.sample()
    first = asyncio.run(hosts.fleet.latest())
    assert sorted(row[SAMPLE_FIELDS.index("device")] for row in first) == ["cpu", "cpu:one", "cpu:two"]
    assert asyncio.run(hosts.fleet.latest()) == first  # nothing new meanwhile
    time.sleep(0.01)  # more than a clock may move at once
    hosts.sample()
    newer = asyncio.run(hosts.fleet.latest())
    assert len(newer) == 3
    assert min(row[0] for row in newer) > max(row[0] for row in first)
    monkeypatch.setattr(all_hosts, "LATEST_S", 0.0)
    assert asyncio.run(hosts.fleet.latest()) == []


def test_a_host_that_is_silent_is_an_event_and_loses_nothing(hosts: Hosts) -> None:
    hosts.sample()
    cursor = hosts.read()["cursor"]
    hosts.far["two"].dead = True
    hosts.sample()
    found = hosts.read(cursor)
    assert names(found) == [("head", "cpu"), ("one", "cpu:one")]
    assert [(e["host"], e["event"]) for e in found["events"]] == [
        ("two", "the host's sampler does not answer: ConnectionError")
    ]
    hosts.read(cursor)
    hosts.far["two"].dead = False
    again = hosts.read(found["cursor"])
    assert names(again) == [("two", "cpu:two")]
    assert [e["event"] for e in again["events"]][1:] == ["the host's sampler answers again"]


def test_a_host_that_leaves_is_an_event_and_one_that_comes_is_read(hosts: Hosts) -> None:
    cursor = hosts.read()["cursor"]
    del hosts.far["one"]
    hosts.far["three"] = Far("three")
    hosts.sample()
    found = hosts.read(cursor)
    assert names(found) == [("head", "cpu"), ("two", "cpu:two"), ("three", "cpu:three")]
    assert [(e["host"], e["event"]) for e in found["events"]] == [("one", "the host left the cluster")]
    assert found["overwritten"] == 0


def test_clocks_are_those_of_the_host_that_was_asked_for(hosts: Hosts) -> None:
    own = asyncio.run(hosts.fleet.clock("", 123))
    assert (own["recv_ns"], own["host"]) == (123, "head")
    assert asyncio.run(hosts.fleet.clock("two", 123)) == {"recv_ns": 5, "send_ns": 6, "host": "two"}
    for host, status in (("nowhere", 404), ("one", 503)):
        hosts.far["one"].dead = True
        with pytest.raises(WireError) as problem:
            asyncio.run(hosts.fleet.clock(host, 123))
        assert problem.value.status == status


@pytest.mark.parametrize("cursor", ["x", "head", "head=x", "one=:3", "head=a:1,one"])
def test_a_malformed_cursor_is_a_400(hosts: Hosts, cursor: str) -> None:
    with pytest.raises(WireError) as problem:
        hosts.read(cursor)
    assert problem.value.status == 400
