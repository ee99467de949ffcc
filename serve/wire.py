"""Wire 1: the HTTP contract between whoever sends inference requests and whoever answers them.

The Open Inference Protocol (KServe v2 REST) with its binary tensor extension, plus the headers that
carry where a request's time went. Owns paths, header names, datatypes and refusals; what a body holds is written and
read in `serve.body`. Owns no sockets and no models. `serve` answers with it, `loadtest` asks with it, so it
imports nothing but the standard library and numpy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

MOST_CHARACTERS = 256
"""Of a name, or of a request's id, which come back in answers."""
MOST_MS = 1e9
"""Of a duration: eleven days."""

Array = npt.NDArray[Any]
Body = bytes | bytearray | memoryview

SERVER = "/v2"
LIVE = "/v2/health/live"
READY = "/v2/health/ready"  # every endpoint is: where a server starts
SERVING = "/v2/health/serving"
"""Whether any endpoint is: for a balancer, since one that loads again is no reason to send the others nothing."""
INDEX = "/v2/repository/index"
DEVICES = "/telemetry/devices"
CLOCK = "/telemetry/clock"
HOLDERS = "/telemetry/holders"  # of an agent
CONTRACT = "/openapi.json"
METRICS = "/metrics"
RAY_METRICS = "/metrics/ray"
FAULTS = "/v2/tailrate/faults"
STOP = "/v2/tailrate/stop"

HEADER_LENGTH = "inference-header-content-length"
TIMING = "server-timing"
CLOCK_HEADER = "x-tailrate-clock"
BATCH = "x-tailrate-batch"
COMPILE = "x-tailrate-compile"
"""1: the request had to wait for torch.compile, so its latency is no steady one."""
REPLICA = "x-tailrate-replica"
DEVICE = "x-tailrate-device"
REQUEST_ID = "x-request-id"

STAGES = ("queue", "batch", "h2d", "compute", "d2h")
"""Where a request's time in the replica goes, in order; together they make up `total`."""
TEXT_STAGES = ("queue", "prefill", "batch", "decode", "text")
"""The same of an answer in tokens, in the `usage` at its end under `tailrate`; `batch`: others' prompts were read."""

SAMPLE_FIELDS = (
    "time_ns", "host", "device", "index", "util_pct", "mem_util_pct", "mem_bytes", "power_w", "energy_j", "temp_c",
    "sm_mhz", "mem_mhz", "throttle_bits", "sm_active_pct", "tensor_active_pct", "dram_active_pct", "own_mem_bytes",
    "net_in_bps", "net_out_bps",
)  # fmt: skip
"""Columns of a device sample in `GET /telemetry/devices`; a field the source lacks is null."""

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    "BYTES": np.dtype(object),
}
DATATYPES = {dtype: name for name, dtype in DTYPES.items()}


REASONS = {
    400: "bad_input",
    403: "not_allowed",
    404: "not_found",
    405: "wrong_method",
    408: "slow_body",
    409: "conflict",
    413: "too_large",
    415: "bad_encoding",
    499: "cancelled",
    500: "failed",
    503: "not_ready",
    504: "deadline",
}
"""Why a request got no result, by status, where nobody says more (499: its client left)."""
BUSY = ("queue_full", "no_room", "no_memory", "lost", "stopping")
"""What else a 503 may mean: the queue is full, bodies take up all room, the device has no memory for it, the replica
or its device is gone, the server ends."""
STOPPING = "the server is stopping"


class WireError(Exception):
    """A request that gets no result: its HTTP status, one sentence that says why, and a word to count it by."""

    def __init__(self, status: int, sentence: str, reason: str = "") -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.reason = reason or REASONS[status]


def bad_input(sentence: str) -> WireError:
    return WireError(400, sentence)


# ---- names and shapes


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, datatype and shape of one tensor; -1 stands for any length, the first dimension is rows."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    def admits(self, tensor: Array) -> str | None:
        """None if the tensor fits, else the sentence that says why it does not."""
        found = datatype_of(tensor)
        if found != self.datatype:
            return f"input '{self.name}' is {found}, but the model takes {self.datatype}"
        shape = tensor.shape
        others = [want for want, have in zip(self.shape, shape, strict=False) if want not in (-1, have)]
        if len(shape) == len(self.shape) and not others:
            return None
        return f"input '{self.name}' has shape {list(shape)}, but the model takes {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class EndpointInfo:
    """What a server says of one model × variant: the metadata of `GET /v2/models/{model}/versions/{variant}`."""

    model: str
    variant: str
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.model}/{self.variant}"

    def as_json(self, versions: Sequence[str]) -> dict[str, Any]:
        return {
            "name": self.model,
            "versions": list(versions),
            "platform": "tailrate",
            "inputs": [spec.as_json() for spec in self.inputs],
            "outputs": [spec.as_json() for spec in self.outputs],
            "parameters": dict(self.parameters),
        }


def model_path(model: str, variant: str | None = None) -> str:
    """`/v2/models/bert/versions/eager`, or without a variant `/v2/models/bert`."""
    path = f"/v2/models/{quote(model, safe='')}"
    return path if variant is None else f"{path}/versions/{quote(variant, safe='')}"


def infer_path(model: str, variant: str | None = None) -> str:
    return model_path(model, variant) + "/infer"


def datatype_of(tensor: Array) -> str:
    """The protocol's name of an array's element type."""
    if known := DATATYPES.get(tensor.dtype):
        return known
    if tensor.dtype.kind in "OSU":
        return "BYTES"
    try:
        return DATATYPES[tensor.dtype.newbyteorder("<")]
    except KeyError:
        raise bad_input(f"numpy's {tensor.dtype} has no datatype in the protocol") from None


def check(inputs: Mapping[str, Array], specs: Sequence[TensorSpec]) -> None:
    """Raises `WireError` 400 unless the tensors are exactly those the model takes."""
    known = {spec.name: spec for spec in specs}
    for name, tensor in inputs.items():
        if name not in known:
            raise bad_input(f"unknown input '{name}'; the model takes {', '.join(known)}")
        if why := known[name].admits(tensor):
            raise bad_input(why)
    if len(inputs) < len(known):
        raise bad_input(f"missing input {', '.join(name for name in known if name not in inputs)}")


# ---- the headers that say where the time went


def format_timing(stage_ms: Sequence[float], decode_ms: float | None = None) -> str:
    """`queue;dur=0.112, batch;dur=…, …, total;dur=…` from the stages' milliseconds in the order of `STAGES`.

    Where images are decoded first, that stage comes before them and is in the total.
    """
    if decode_ms is None:
        return _TIMING % (*stage_ms, sum(stage_ms))
    return f"decode;dur={decode_ms:.4f}, " + _TIMING % (*stage_ms, decode_ms + sum(stage_ms))


_TIMING = ", ".join(f"{name};dur=%.4f" for name in (*STAGES, "total"))


# What any server may send: a field that cannot be meant is no field, and never an error.


def parse_timing(text: str) -> dict[str, float]:
    """Milliseconds by stage; entries that are no durations are passed over, as any server may send others."""
    found: dict[str, float] = {}
    for entry in text.split(","):
        name, *attributes = entry.split(";")
        for attribute in attributes:
            key, _, value = attribute.strip().partition("=")
            if key == "dur":
                with contextlib.suppress(ValueError):
                    if 0 <= (duration := float(value)) <= MOST_MS:
                        found[name.strip()] = duration
    return found


def parse_clock(text: str) -> tuple[int, int] | None:
    """(received, sent) in ns of the server's wall clock, or None where the header is something else."""
    received, _, sent = text.partition(",")
    try:
        found = int(received), int(sent)
    except ValueError:
        return None
    return found if 0 < found[0] <= found[1] < 1 << 63 else None


def parse_count(text: str) -> int | None:
    """How many rows a batch had, or bytes a part has; `²` is a digit, too, but no number."""
    return int(text) if len(text) <= 9 and text.isascii() and text.isdigit() and int(text) else None


def parse_label(text: str) -> str | None:
    """A replica's or a device's name."""
    return text if 0 < len(text) <= MOST_CHARACTERS and text.isprintable() else None
