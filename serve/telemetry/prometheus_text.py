"""Prometheus' text form: one family of samples, and what devices did last as such families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tailrate.serve.wire import SAMPLE_FIELDS

Labels = Mapping[str, str]
Sample = tuple[str, Labels, float]
"""(what follows the family's name, labels, value)"""

DEVICES = {
    "util_pct": "Share of time in which any kernel ran; CPU use of the host where the device is cpu.",
    "mem_util_pct": "Share of time in which device memory was read or written; memory in use of the host.",
    "mem_bytes": "Memory in use.",
    "power_w": "Power.",
    "energy_j": "Energy since the driver was loaded.",
    "temp_c": "Temperature.",
    "sm_mhz": "SM clock.",
    "mem_mhz": "Memory clock.",
    "throttle_bits": "Reasons for which clocks are held down, as NVML's bits.",
    "sm_active_pct": "Share of time in which SMs had work, averaged over them.",
    "tensor_active_pct": "Share of time in which tensor cores worked.",
    "dram_active_pct": "Share of the memory bandwidth in use.",
    "own_mem_bytes": "Memory that the server's own processes hold.",
    "net_in_bps": "Bytes per second received by the host, beyond loopback.",
    "net_out_bps": "Bytes per second sent by the host, beyond loopback.",
}
"""By field of a device sample, which is the end of the metric's name too."""
COUNTERS = ("energy_j",)


def family(name: str, kind: str, what: str, samples: Iterable[Sample]) -> list[str]:
    """Lines of one metric, all of whose samples must be among these."""
    lines = [f"# HELP tailrate_{name} {what}", f"# TYPE tailrate_{name} {kind}"]
    return lines + [f"tailrate_{name}{end}{{{_labels(labels)}}} {value!r}" for end, labels, value in samples]


def of_devices(rows: Iterable[Sequence[Any]]) -> str:
    """One sample per field and device; a field that a device lacks is left out, never zero."""
    samples = [dict(zip(SAMPLE_FIELDS, row, strict=True)) for row in rows]
    lines: list[str] = []
    for field, what in DEVICES.items():
        counts = field in COUNTERS
        found = [
            ("", {key: str(sample[key]) for key in ("host", "device", "index")}, sample[field])
            for sample in samples
            if sample[field] is not None
        ]
        if found:
            name = f"device_{field}_total" if counts else f"device_{field}"
            lines += family(name, "counter" if counts else "gauge", what, found)
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
