"""A row of `devices`: what one device did at one instant."""

from __future__ import annotations

from dataclasses import dataclass

from tailrate.analysis.records.rows import Int32, Int64, Number, Text, columns_of


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """The state of one device at one instant of its host's wall clock; what the device lacks is None, never zero."""

    time_ns: Int64
    host: Text
    device: Text
    index: Int32
    util_pct: Number | None = None
    mem_util_pct: Number | None = None
    mem_bytes: Int64 | None = None
    power_w: Number | None = None
    energy_j: Number | None = None
    temp_c: Number | None = None
    sm_mhz: Number | None = None
    mem_mhz: Number | None = None
    throttle_bits: Int64 | None = None
    sm_active_pct: Number | None = None
    tensor_active_pct: Number | None = None
    dram_active_pct: Number | None = None
    own_mem_bytes: Int64 | None = None
    net_in_bps: Number | None = None
    net_out_bps: Number | None = None


DEVICE_COLUMNS = columns_of(DeviceSample)
