"""The machine itself as a device `cpu`, so that a host without a GPU still shows what limited it."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from tailrate.serve.telemetry.own_processes import own_bytes

POWERCAP = Path("/sys/class/powercap")
OWN_S = 5.0
"""The memory of the server's own processes is asked for so often: that takes some milliseconds."""


class HostSource:
    """Utilisation, memory, network traffic beyond loopback, and power where RAPL can be read."""

    name = "host"

    def __init__(self, powercap: Path = POWERCAP, device: str = "cpu", *, own: bool = True) -> None:
        import psutil

        self._psutil = psutil
        self._device = device
        psutil.cpu_percent(None)  # the first call has nothing to compare with
        self._zones = [
            zone
            for zone in sorted(powercap.glob("intel-rapl:*"))
            if zone.name.count(":") == 1 and _readable(zone / "energy_uj")
        ]
        self._turns = [0] * len(self._zones)
        self._seen = [0] * len(self._zones)
        self._last: dict[str, tuple[float, float]] = {}
        self._own_bytes: int | None = None
        self._own_at_s = -OWN_S if own else math.inf

    def read(self) -> list[dict[str, Any]]:
        memory = self._psutil.virtual_memory()
        received, sent = self._traffic()
        sample: dict[str, Any] = {
            "device": self._device,
            "index": 0,
            "util_pct": self._psutil.cpu_percent(None),
            "mem_util_pct": memory.percent,
            "mem_bytes": memory.total - memory.available,
            "own_mem_bytes": self._own(),
            "net_in_bps": self._rate("in", received),
            "net_out_bps": self._rate("out", sent),
        }
        if self._zones:
            sample["energy_j"] = self._energy_j()
            sample["power_w"] = self._rate("energy", sample["energy_j"])
        return [sample]

    def _own(self) -> int | None:
        if time.monotonic() - self._own_at_s >= OWN_S:
            self._own_at_s = time.monotonic()
            self._own_bytes = own_bytes()
        return self._own_bytes

    def _rate(self, name: str, total: float) -> float | None:
        """Per second since the last read; None the first time."""
        now_s = time.monotonic()
        before = self._last.get(name)
        self._last[name] = (now_s, total)
        return (total - before[1]) / (now_s - before[0]) if before is not None and now_s > before[0] else None

    def _traffic(self) -> tuple[int, int]:
        cards = self._psutil.net_io_counters(pernic=True)
        beyond = [card for name, card in cards.items() if name != "lo"]
        return sum(card.bytes_recv for card in beyond), sum(card.bytes_sent for card in beyond)

    def _energy_j(self) -> float:
        total_uj = 0
        for number, zone in enumerate(self._zones):
            now = int((zone / "energy_uj").read_text())
            self._turns[number] += now < self._seen[number]  # the counter starts over at its range
            self._seen[number] = now
            total_uj += now
            if self._turns[number]:
                total_uj += self._turns[number] * int((zone / "max_energy_range_uj").read_text())
        return total_uj / 1e6


def _readable(path: Path) -> bool:
    try:
        path.read_text()
    except OSError:
        return False
    return True
