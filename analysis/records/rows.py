"""The rows of both tables, with the type of each column, and what became of an arrival."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, NamedTuple, get_args, get_type_hints

BAD_ANSWER, CHECK = "bad_answer", "check"
"""Statuses of arrivals whose answer is a 200 but no result, or not one that the scenario's own check takes."""
LOST = "lost"
"""Status of an arrival that was sent but whose answer the run did not live to see."""

# each with the name of its Arrow type
Int32 = Annotated[int, "int32"]
Int64 = Annotated[int, "int64"]
Number = Annotated[float, "float64"]
Text = Annotated[str, "string"]


class RequestRecord(NamedTuple):
    """One arrival, sent or not. What did not happen (a dropped arrival's `sent_ns`) is None."""

    worker: Int32
    seq: Int64
    """Unique within a step."""
    step: Int32
    endpoint: Text
    intended_ns: Int64
    sent_ns: Int64 | None = None
    done_ns: Int64 | None = None
    status: Text = ""
    """The HTTP status, or `timeout`, `connect`, `dropped`, `lost`, `bad_answer` (a 200 that is no result), `check` (one
    that the scenario's own check refuses)."""
    error: Text | None = None
    bytes_in: Int64 | None = None
    """Bytes of the request's body, as the server takes it in."""
    bytes_out: Int64 | None = None
    rows: Int32 | None = 1
    queue_ms: Number | None = None
    batch_ms: Number | None = None
    h2d_ms: Number | None = None
    compute_ms: Number | None = None
    d2h_ms: Number | None = None
    server_ms: Number | None = None
    batch_rows: Int32 | None = None
    replica: Text | None = None
    device: Text | None = None
    handled_ms: Number | None = None
    """From the server's receiving to its sending: what is left of the service time is the way there and back."""
    data_row: Int64 | None = None
    """Number of the file's row that the request carried, the first one of several; None where inputs were drawn."""
    label: Text | None = None
    """What that row says of itself: the slice of the report that it belongs to."""


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


def columns_of(record: type) -> dict[str, str]:
    """Each field's Arrow type."""
    hints = get_type_hints(record, include_extras=True)
    return {
        name: (get_args(hint)[0] if type(None) in get_args(hint) else hint).__metadata__[0]
        for name, hint in hints.items()
    }


REQUEST_COLUMNS, DEVICE_COLUMNS = columns_of(RequestRecord), columns_of(DeviceSample)


# ---- what became of an arrival

KINDS = ("ok", "failed", "timed_out", "dropped", "lost")
_SUCCESS = re.compile(r"2\d\d")
_KIND = {"timeout": "timed_out", "dropped": "dropped", LOST: "lost"}


def is_success(status: str) -> bool:
    """The one definition: any 2xx. What is answered so and is no answer has a status of its own (`bad_answer`)."""
    return _SUCCESS.fullmatch(status) is not None


def kind_of(status: str) -> str:
    """Under which of `KINDS`, the run's totals, an arrival counts."""
    return "ok" if is_success(status) else _KIND.get(status, "failed")
