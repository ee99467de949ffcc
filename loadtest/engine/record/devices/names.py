"""What devices and hosts of several sources are called, and the samples of one source on their way under those names.

No two hosts have one name, since each has a clock of its own; no device has two sources, or its energy would be counted
twice; and of the devices that every host calls `cpu` each is `cpu:HOST`, as those of a cluster's other nodes are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrate.analysis.records.device_rows import DEVICE_COLUMNS
from tailrate.loadtest.engine.record.devices.source import DeviceSource

CHUNK_ROWS = 128
"""Handed on at a time: whoever reads them must not be held up."""
CPU = "cpu"

_HOST, _DEVICE, _INDEX = (list(DEVICE_COLUMNS).index(name) for name in ("host", "device", "index"))


class Names:
    """Given to whoever comes first."""

    def __init__(self, several: bool) -> None:
        self._several = several
        self._hosts: dict[str, str] = {}
        self._devices: dict[str, DeviceSource] = {}

    def host(self, source: DeviceSource, host: str) -> str:
        mine = self._hosts.setdefault(host, source.named) == source.named
        return host if mine else f"{host} ({source.netloc})"

    def device(self, source: DeviceSource, device: str, host: str) -> str | None:
        """None: another source has it already."""
        name = f"{CPU}:{host}" if self._several and device == CPU else device
        return name if self._devices.setdefault(name, source) == source else None


class SourceRows:
    """The rows of one source; `device_collector.Rows`."""

    def __init__(self, source: DeviceSource, names: Names, hand_on: Callable[[list[tuple[Any, ...]]], None]) -> None:
        self.devices: dict[str, dict[str, Any]] = {}
        """By the name that samples have: the number on the host, and the host."""
        self.count = 0
        self.left_out: set[str] = set()
        """Devices that another source has."""
        self._source = source
        self._names = names
        self._hand_on = hand_on
        self._rows: list[tuple[Any, ...]] = []

    def append(self, row: tuple[Any, ...]) -> None:
        if (named := self.meet(str(row[_DEVICE]), str(row[_HOST]), row[_INDEX])) is not None:
            self._rows.append((row[0], *named, *row[_INDEX:]))
            self.count += 1
            if len(self._rows) >= CHUNK_ROWS:
                self.flush()

    def meet(self, device: str, host: str, index: Any) -> tuple[str, str] | None:
        """(host, device) as they are called; None where another source has the device."""
        known = self.host(host)
        name = self._names.device(self._source, device, known)
        if name is None:
            self.left_out.add(device)
            return None
        self.devices.setdefault(name, {"index": index, "host": known})
        return known, name

    def host(self, host: str) -> str:
        return self._names.host(self._source, host)

    def flush(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self._hand_on(rows)
