"""What exporters of others call the figures of a device, and in which unit; read into the columns of device samples.

DCGM's exporter has had other names and units since its version 4.9 (hertz, joules, bytes, ratios), and a lower-case
`hostname` since 4.8.3: both are known. A figure that cannot be meant (NaN, negative, one of DCGM's large numbers that
stand for "blank") is none. What the whole GPU of a MIG device shows (power, energy, heat, clocks) is the GPU's alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tailrate.loadtest.engine.record.exposition import Figure

MIB = float(1 << 20)
Labels = Mapping[str, str]

MOST: dict[str, float] = {
    "util_pct": 100, "mem_util_pct": 100, "sm_active_pct": 100, "tensor_active_pct": 100, "dram_active_pct": 100,
    "mem_bytes": 2.0**50, "power_w": 1e5, "energy_j": 1e15, "temp_c": 200, "sm_mhz": 1e5, "mem_mhz": 1e5,
    "throttle_bits": 2.0**30, "net_in_bps": 1e13, "net_out_bps": 1e13,
}  # fmt: skip
"""Of a figure that can be meant: DCGM's blanks are above, whatever their width."""
ROUNDED = 1.01
"""A ratio that was worked out may be a little above one."""
WHOLE = ("mem_bytes", "throttle_bits")
SHARED = ("power_w", "energy_j", "temp_c", "sm_mhz", "mem_mhz", "throttle_bits")
"""What a part of a GPU has in common with the others."""


@dataclass(slots=True)
class Reading:
    """What one scrape shows of one device; `totals` are counters, of which a sample has the rate."""

    index: int = 0
    host: str = ""
    """As the page calls it; empty where it doesn't."""
    values: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)


Page = dict[str, Reading]
"""By device, under the name that its samples get."""

# name → (column, factor); of several for a column the first that is there counts
_DCGM: dict[str, tuple[str, float]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("util_pct", 1),
    "DCGM_FI_DEV_GPU_UTIL_RATIO": ("util_pct", 100),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("util_pct", 100),
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": ("util_pct", 100),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("mem_util_pct", 1),
    "DCGM_FI_DEV_MEMORY_UTIL_RATIO": ("mem_util_pct", 100),
    "DCGM_FI_DEV_FB_USED": ("mem_bytes", MIB),
    "DCGM_FI_DEV_FB_USED_BYTES": ("mem_bytes", 1),
    "DCGM_FI_DEV_POWER_USAGE_INSTANT": ("power_w", 1),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1),
    "DCGM_FI_DEV_BOARD_POWER_WATTS": ("power_w", 1),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 1e-3),
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": ("energy_j", 1),
    "DCGM_FI_DEV_GPU_TEMP": ("temp_c", 1),
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": ("temp_c", 1),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_mhz", 1),
    "DCGM_FI_DEV_SM_CLOCK_HERTZ": ("sm_mhz", 1e-6),
    "DCGM_FI_DEV_MEM_CLOCK": ("mem_mhz", 1),
    "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ": ("mem_mhz", 1e-6),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("throttle_bits", 1),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": ("throttle_bits", 1),
    "DCGM_FI_PROF_SM_ACTIVE": ("sm_active_pct", 100),
    "DCGM_FI_PROF_SM_UTIL_RATIO": ("sm_active_pct", 100),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor_active_pct", 100),
    "DCGM_FI_PROF_TENSOR_UTIL_RATIO": ("tensor_active_pct", 100),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("dram_active_pct", 100),
    "DCGM_FI_PROF_DRAM_UTIL_RATIO": ("dram_active_pct", 100),
}
_AMD: dict[str, tuple[str, float]] = {
    "gpu_gfx_activity": ("util_pct", 1),
    "gpu_umc_activity": ("mem_util_pct", 1),
    "gpu_used_vram": ("mem_bytes", MIB),  # called MB, and counted in MiB: 196,592 of an MI300X of 192 GiB
    "gpu_package_power": ("power_w", 1),
    "gpu_power_usage": ("power_w", 1),
    "gpu_average_package_power": ("power_w", 1),
    "gpu_energy_consumed": ("energy_j", 1e-6),
    "gpu_junction_temperature": ("temp_c", 1),
    "gpu_edge_temperature": ("temp_c", 1),
    "gpu_clock system": ("sm_mhz", 1),
    "gpu_clock memory": ("mem_mhz", 1),
}


def _label(labels: Labels, *names: str) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0


def meant(column: str, value: float) -> float | None:
    """The figure, or None for one that cannot be meant."""
    most = MOST[column]
    if math.isnan(value) or not 0 <= value <= (most * ROUNDED if most == 100 else most):
        return None
    value = min(value, most)
    return int(value) if column in WHOLE else value


class _Table:
    """Figures by the names of one table; the first name of a column that has a value counts."""

    def __init__(self, names: Mapping[str, tuple[str, float]]) -> None:
        self._names = names
        self._rank = {name: rank for rank, name in enumerate(names)}
        self._from: dict[tuple[str, str], int] = {}
        self.page: Page = {}

    def add(self, name: str, value: float, whole: str, part: str, index: int, host: str) -> None:
        """A figure of a part (`part`, or the device as a whole where it is empty) of the device `whole`."""
        column, factor = self._names[name]
        device = whole if not part or column in SHARED else f"{whole}/{part}"
        found = meant(column, value * factor)
        if found is None or self._from.get((device, column), math.inf) <= self._rank[name]:
            return
        self._from[device, column] = self._rank[name]
        reading = self.page.setdefault(device, Reading(index, host))
        reading.values[column] = found


def dcgm(figures: Iterable[Figure], netloc: str) -> Page:
    table = _Table(_DCGM)
    for said, labels, value in figures:
        name = said if said in _DCGM else said.removesuffix("_total")
        if name not in _DCGM:
            continue
        index = _number(labels.get("gpu", ""))
        whole = _label(labels, "UUID", "uuid", "gpu_uuid") or f"gpu{index}:{netloc}"
        part = _label(labels, "GPU_I_ID", "gpu_instance_id")
        table.add(name, value, whole, part, index, _label(labels, "Hostname", "hostname"))
    return table.page


def amd(figures: Iterable[Figure], netloc: str) -> Page:
    """Names in capitals or not, with the prefix that may be set for them or without."""
    table = _Table(_AMD)
    clocks: dict[tuple[str, str], list[float]] = {}
    for said, labels, value in figures:
        name = said.lower().removeprefix("amd_")
        if name == "gpu_clock":
            name += " " + labels.get("clock_type", "").lower().removeprefix("gpu_clock_type_")
        if name not in _AMD:
            continue
        index = _number(labels.get("gpu_id", ""))
        whole = _label(labels, "gpu_uuid", "serial_number") or f"gpu{index}:{netloc}"
        part = labels.get("gpu_partition_id", "")
        part = "" if labels.get("gpu_compute_partition_type", "").lower() in ("", "spx", "na") else part
        host = _label(labels, "hostname")
        table.add(name, value, whole, part, index, host)
        if name.startswith("gpu_clock") and meant("sm_mhz", value) is not None:  # one for each of its dies
            clocks.setdefault((whole, _AMD[name][0]), []).append(value)
    for (device, column), values in clocks.items():
        table.page[device].values[column] = sum(values) / len(values)
    return table.page


def host(figures: Iterable[Figure], netloc: str) -> Page:
    """node_exporter's page: the machine as the device `cpu`."""
    idle = busy = joules = received = sent = 0.0
    memory: dict[str, float] = {}
    seen = set()
    for name, labels, value in figures:
        if not 0 <= value < math.inf:
            continue
        seen.add(name)
        if name == "node_cpu_seconds_total":
            waits = labels.get("mode") in ("idle", "iowait")
            idle, busy = (idle + value, busy) if waits else (idle, busy + value)
        elif name in ("node_memory_MemTotal_bytes", "node_memory_MemAvailable_bytes"):
            memory[name] = value
        elif name == "node_rapl_package_joules_total":
            joules += value
        elif labels.get("device") != "lo":
            received += value if name == "node_network_receive_bytes_total" else 0
            sent += value if name == "node_network_transmit_bytes_total" else 0
    if not any(name.startswith("node_") for name in seen):
        return {}
    found = Reading()
    total, free = (memory.get(f"node_memory_{name}_bytes") for name in ("MemTotal", "MemAvailable"))
    if total and free is not None and free <= total:
        found.values |= {"mem_bytes": int(total - free), "mem_util_pct": 100 * (total - free) / total}
    if "node_rapl_package_joules_total" in seen:
        found.values["energy_j"] = found.totals["power_w"] = joules
    if "node_cpu_seconds_total" in seen:
        found.totals |= {"busy": busy, "all": idle + busy}
    if "node_network_receive_bytes_total" in seen:
        found.totals |= {"net_in_bps": received, "net_out_bps": sent}
    return {"cpu": found}


READERS: dict[str, Callable[[Iterable[Figure], str], Page]] = {"dcgm": dcgm, "amd": amd, "host": host}
