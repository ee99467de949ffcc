"""Wire 1: the HTTP contract between whoever sends inference requests and whoever answers them.

The Open Inference Protocol (KServe v2 REST) with its binary tensor extension, plus the headers that
carry where a request's time went. Owns paths, header names, and the encoding of tensors in both
directions; owns no sockets and no models. `serve` answers with it, `loadtest` asks with it, so it
imports nothing but the standard library and numpy.

A binary body is `<JSON header><tensor bytes>…`; the header's length is in the HTTP header
`Inference-Header-Content-Length`. Decoded tensors are views into the body, never copies. A client sends the same
JSON header again and again, and gets the same, so both are remembered with what they mean.
"""

from __future__ import annotations

import contextlib
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

REMEMBERED = 256
"""JSON headers, most recent first, whose meaning is kept."""
REMEMBERED_BYTES = 1024

MOST_JSON_BYTES = 16 << 20
"""Of a request. Parsing holds the interpreter: a quarter of a second for numbers, a whole for the worst."""
MOST_JSON_VALUES = 1 << 20
"""Numbers of an answer that go as JSON, for the same reason."""
MOST_STRINGS = 1 << 16
"""Elements of a BYTES tensor, each of which becomes an object."""
MOST_TENSORS = 256
"""Inputs, or outputs, that one request may name."""
MOST_DIMENSIONS = 32
MOST_ELEMENTS = 1 << 40
MOST_CHARACTERS = 256
"""Of a name, or of a request's id, which come back in answers."""
MOST_MEMBERS = 1024
"""Of a gzip body, which may be many behind one another; each costs a look at what is left."""
INFLATED_AT_ONCE = 1 << 16
MOST_MS = 1e9
"""Of a duration: eleven days."""

Array = npt.NDArray[Any]
Body = bytes | bytearray | memoryview

SERVER = "/v2"
LIVE = "/v2/health/live"
READY = "/v2/health/ready"
"""Whether every endpoint is: where a server starts."""
SERVING = "/v2/health/serving"
"""Whether any endpoint is: for a balancer, since one that loads again is no reason to send the others nothing."""
INDEX = "/v2/repository/index"
DEVICES = "/telemetry/devices"
CLOCK = "/telemetry/clock"
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

SAMPLE_FIELDS = (
    "time_ns", "host", "device", "index", "util_pct", "mem_util_pct", "mem_bytes", "power_w", "energy_j", "temp_c",
    "sm_mhz", "mem_mhz", "throttle_bits", "sm_active_pct", "tensor_active_pct", "dram_active_pct", "own_mem_bytes",
    "net_in_bps", "net_out_bps",
)  # fmt: skip
"""Columns of a device sample in `GET /telemetry/devices`; a field the source lacks is null."""

_NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    "BYTES": np.dtype(object),
}
_DATATYPE = {dtype: name for name, dtype in _NUMPY.items()}


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


def _bad(sentence: str) -> WireError:
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
        fits = len(tensor.shape) == len(self.shape) and all(
            want in (-1, have) for want, have in zip(self.shape, tensor.shape, strict=True)
        )
        return (
            None
            if fits
            else f"input '{self.name}' has shape {list(tensor.shape)}, but the model takes {list(self.shape)}"
        )


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

    @classmethod
    def from_json(cls, metadata: Mapping[str, Any], variant: str) -> EndpointInfo:
        """Reads any v2 server's metadata; what it leaves out stays empty."""
        return cls(
            model=str(metadata["name"]),
            variant=variant,
            inputs=_specs(metadata.get("inputs")),
            outputs=_specs(metadata.get("outputs")),
            parameters=dict(metadata.get("parameters") or {}),
        )


def _specs(found: Iterable[Mapping[str, Any]] | None) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(s["name"], s["datatype"], tuple(int(n) for n in s["shape"])) for s in found or ())


def model_path(model: str, variant: str | None = None) -> str:
    """`/v2/models/bert/versions/eager`, or without a variant `/v2/models/bert`."""
    path = f"/v2/models/{quote(model, safe='')}"
    return path if variant is None else f"{path}/versions/{quote(variant, safe='')}"


def infer_path(model: str, variant: str | None = None) -> str:
    return model_path(model, variant) + "/infer"


# ---- tensors


def datatype_of(tensor: Array) -> str:
    """The protocol's name of an array's element type."""
    if tensor.dtype.kind in "OSU":
        return "BYTES"
    try:
        return _DATATYPE[tensor.dtype.newbyteorder("<")]
    except KeyError:
        raise _bad(f"numpy's {tensor.dtype} has no datatype in the protocol") from None


def _dtype(datatype: object, name: str) -> np.dtype[Any]:
    found = _NUMPY.get(datatype) if isinstance(datatype, str) else None
    if found is None:
        shown = f"datatype '{datatype[:64]}'" if isinstance(datatype, str) else "no datatype"
        raise _bad(f"tensor '{name}' has {shown}; known are {', '.join(_NUMPY)}")
    return found


def _to_bytes(tensor: Array) -> bytes | memoryview:
    if datatype_of(tensor) != "BYTES":
        flat = np.ascontiguousarray(tensor, dtype=tensor.dtype.newbyteorder("<")).reshape(-1)
        return memoryview(flat.view(np.uint8))  # type: ignore[arg-type]
    pieces = []
    for item in tensor.reshape(-1):
        raw = item.encode() if isinstance(item, str) else bytes(item)
        pieces += [len(raw).to_bytes(4, "little"), raw]
    return b"".join(pieces)


def _from_bytes(raw: memoryview, datatype: str, shape: tuple[int, ...], name: str) -> Array:
    dtype, count = _dtype(datatype, name), math.prod(shape)
    if datatype != "BYTES":
        if len(raw) != count * dtype.itemsize:
            raise _bad(f"tensor '{name}' of shape {list(shape)} needs {count * dtype.itemsize} bytes, not {len(raw)}")
        return np.frombuffer(raw, dtype=dtype).reshape(shape)
    _check_strings(count, name)
    items: list[bytes] = []
    at = 0
    while at < len(raw) and len(items) <= count:
        length = int.from_bytes(raw[at : at + 4], "little")
        if at + 4 + length > len(raw):
            raise _bad(f"tensor '{name}' ends inside its element {len(items)}")
        items.append(bytes(raw[at + 4 : at + 4 + length]))
        at += 4 + length
    return _objects(items, shape, name)


def _check_strings(count: int, name: str) -> None:
    if count > MOST_STRINGS:
        raise WireError(413, f"tensor '{name}' has {count} strings, but at most {MOST_STRINGS} are taken")


def _objects(items: list[bytes], shape: tuple[int, ...], name: str) -> Array:
    if len(items) != math.prod(shape):
        raise _bad(f"tensor '{name}' of shape {list(shape)} does not have as many elements")
    tensor = np.empty(len(items), dtype=object)
    tensor[:] = items
    return tensor.reshape(shape)


_TYPES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}, "O": {str}}
"""What JSON values become in Python that fit numpy's kind of element."""


def _from_list(values: object, datatype: str, shape: tuple[int, ...], name: str) -> Array:
    dtype = _dtype(datatype, name)
    if not isinstance(values, list):
        raise _bad(f"tensor '{name}' has no list of values in 'data'")
    does_not = _bad(f"tensor '{name}' does not hold {datatype} values of shape {list(shape)}")
    # by hand: numpy would take all the memory there is for many short strings and a long one
    while (types := set(map(type, values))) == {list}:
        if len(set(map(len, values))) > 1:
            raise does_not
        values = list(chain.from_iterable(values))
    if not types <= _TYPES[dtype.kind]:
        raise _bad(f"tensor '{name}' is {datatype}, but its values are not")
    if len(values) != math.prod(shape):
        raise does_not
    try:
        if dtype.kind == "O":
            _check_strings(len(values), name)
            return _objects([item.encode() for item in values], shape, name)
        with np.errstate(over="ignore"):
            found = np.array(values, dtype).reshape(shape)
    except (ValueError, OverflowError):
        raise does_not from None
    if dtype.kind == "f" and not np.isfinite(found).all():  # JSON has no infinity, but numbers that are too large
        raise does_not
    return found


# ---- requests


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One decoded request: named tensors, and which outputs are wanted in which form."""

    id: str
    inputs: dict[str, Array]
    outputs: dict[str, bool] | None
    """Wanted outputs by name, True where as bytes; None: all of them, as `binary_default` says."""
    binary_default: bool

    @property
    def rows(self) -> int:
        return int(next(iter(self.inputs.values())).shape[0])


def encode_infer(
    inputs: Mapping[str, Array], *, outputs: Sequence[str] = (), binary: bool = True, request_id: str = ""
) -> tuple[bytes, dict[str, str]]:
    """A request's body and headers, tensors as bytes (or as JSON lists); with `outputs`, only those come back."""
    head: dict[str, Any] = {"inputs": []}
    if request_id:
        head["id"] = request_id
    if outputs:
        head["outputs"] = [{"name": name, "parameters": {"binary_data": binary}} for name in outputs]
    elif binary:
        head["parameters"] = {"binary_data_output": True}
    return _encode(head, "inputs", inputs, dict.fromkeys(inputs, binary))


def decode_infer(body: Body, header_length: int | None) -> InferRequest:
    """Reads a request; raises `WireError` 400 with one sentence for anything malformed."""
    if header_length is not None and 0 <= header_length <= min(REMEMBERED_BYTES, len(body)):
        layout = _layout(bytes(body[:header_length]))
        if layout is not None and header_length + layout.size == len(body):
            return InferRequest(layout.id, layout.views(body, header_length), layout.outputs, layout.binary_default)
    head, tail = _split(body, header_length, MOST_JSON_BYTES)
    wanted, binary_default = _wanted(head)
    inputs = _decode_tensors(_list(head, "inputs"), tail)
    _check_rows({name: tensor.shape for name, tensor in inputs.items()})
    return InferRequest(_id(head), inputs, wanted, binary_default)


_Placed = tuple[str, np.dtype[Any], tuple[int, ...], int, int]
"""A tensor of numbers in the bytes behind a header: (name, element type, shape, elements, first byte)."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """What a request's JSON header says of the bytes behind it, when all of them are numbers."""

    id: str
    tensors: tuple[_Placed, ...]
    size: int
    outputs: dict[str, bool] | None
    binary_default: bool

    def views(self, body: Body, start: int) -> dict[str, Array]:
        return {
            name: np.frombuffer(body, dtype, count, start + at).reshape(shape)
            for name, dtype, shape, count, at in self.tensors
        }


@lru_cache(REMEMBERED)
def _layout(header: bytes) -> _Layout | None:
    """None for what is malformed or not all numbers in bytes: then the long way decides, or says what is wrong."""
    try:
        head = _object(header)
        wanted, binary_default = _wanted(head)
        found = _numbers(_list(head, "inputs"))
        if found is None:
            return None
        tensors, size = found
        _check_rows({name: shape for name, _, shape, _, _ in tensors})
        if len({name for name, *_ in tensors}) < len(tensors):
            return None
        return _Layout(_id(head), tensors, size, wanted, binary_default)
    except WireError:
        return None


def _numbers(items: list[Mapping[str, Any]]) -> tuple[tuple[_Placed, ...], int] | None:
    """Where each tensor lies in the bytes after the header, and their length; None: one is not numbers in bytes."""
    placed: list[_Placed] = []
    at = 0
    for item in items:
        name, shape, parameters = _described(item)
        dtype, size, count = _dtype(item.get("datatype"), name), parameters.get("binary_data_size"), math.prod(shape)
        if dtype.kind == "O" or type(size) is not int or size != count * dtype.itemsize:
            return None
        placed.append((name, dtype, shape, count, at))
        at += size
    return tuple(placed), at


def _id(head: Mapping[str, Any]) -> str:
    found = head.get("id")
    if found is None:
        return ""
    if not isinstance(found, str) or len(found) > MOST_CHARACTERS:
        raise _bad(f"'id' must be a text of at most {MOST_CHARACTERS} characters")
    return found


def _wanted(head: Mapping[str, Any]) -> tuple[dict[str, bool] | None, bool]:
    """Which outputs a request names, each True where as bytes, and how it wants those that it doesn't name."""
    parameters = _mapping(head.get("parameters"), "parameters")
    binary_default = parameters.get("binary_data_output") is True
    wanted: dict[str, bool] | None = None
    if head.get("outputs"):
        wanted = {}
        for item in _list(head, "outputs"):
            name = _name(item)
            if name in wanted:
                raise _bad(f"output '{name}' is asked for twice")
            how = _mapping(item.get("parameters"), f"parameters of output '{name}'")
            if how.get("classification"):
                raise _bad(f"output '{name}' asks for classification, which this server does not do")
            if "shared_memory_region" in how:
                raise _bad(f"output '{name}' asks for shared memory, which this server does not do")
            wanted[name] = how.get("binary_data", binary_default) is True
    return wanted, binary_default


def _check_rows(shapes: Mapping[str, tuple[int, ...]]) -> None:
    if not shapes:
        raise _bad("the request has no inputs")
    rows = {shape[0] if shape else -1 for shape in shapes.values()}
    if len(rows) != 1 or min(rows) < 1:
        found = ", ".join(f"'{name}' {list(shape)}" for name, shape in islice(shapes.items(), 8))
        raise _bad(f"every input needs the same first dimension (rows), at least 1; got {found}")


def check(inputs: Mapping[str, Array], specs: Sequence[TensorSpec]) -> None:
    """Raises `WireError` 400 unless the tensors are exactly those the model takes."""
    known = {spec.name: spec for spec in specs}
    for name, tensor in inputs.items():
        if name not in known:
            raise _bad(f"unknown input '{name}'; the model takes {', '.join(known)}")
        if why := known[name].admits(tensor):
            raise _bad(why)
    if missing := [name for name in known if name not in inputs]:
        raise _bad(f"missing input {', '.join(missing)}")


def inflate(body: Body, encoding: str, limit: int) -> bytes:
    """Undoes `Content-Encoding` gzip or deflate, refusing what would grow past `limit` bytes."""
    if encoding not in ("gzip", "deflate"):
        raise WireError(415, f"content encoding '{encoding}' is not supported; gzip and deflate are")
    left, found, size = memoryview(body), [], 0
    for _ in range(MOST_MEMBERS if encoding == "gzip" else 1):
        stream = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: gzip or zlib header, found by itself
        while left and not stream.eof:
            piece, left = left[:INFLATED_AT_ONCE], left[INFLATED_AT_ONCE:]
            try:
                plain = stream.decompress(piece, limit + 1 - size)
            except zlib.error:
                raise _bad(f"the body is not valid {encoding}") from None
            found.append(plain)
            size += len(plain)
            if size > limit:
                raise WireError(413, f"the body grows past {limit} bytes when decompressed")
            if unused := len(stream.unused_data):
                left = memoryview(body)[len(body) - len(left) - unused :]
        if not stream.eof or not left:
            break
    if not stream.eof or left:
        raise _bad(f"the {encoding} body ends early or goes on after its end")
    return b"".join(found)


# ---- responses


def encode_result(
    info: EndpointInfo, outputs: Mapping[str, Array], *, binary: Mapping[str, bool], request_id: str = ""
) -> tuple[bytes, dict[str, str]]:
    """A response's body and headers; `binary` says for each output whether it goes as bytes."""
    if not request_id and all(binary.values()) and all(_plain(tensor) for tensor in outputs.values()):
        said = tuple((name, tensor.dtype, tensor.shape) for name, tensor in outputs.items())
        text, headers = _result_head(info.model, info.variant, said)
        return b"".join([text, *(tensor.data for tensor in outputs.values())]), dict(headers)
    for name, tensor in outputs.items():
        if not binary[name] and tensor.size > MOST_JSON_VALUES:
            raise _bad(f"output '{name}' has {tensor.size} elements, too many for JSON; ask for binary data")
    head: dict[str, Any] = {"model_name": info.model, "model_version": info.variant, "outputs": []}
    if request_id:
        head["id"] = request_id
    return _encode(head, "outputs", outputs, binary)


def _plain(tensor: Array) -> bool:
    """Whether its memory is what goes over the wire."""
    return tensor.flags.c_contiguous and tensor.dtype in _DATATYPE and tensor.dtype.kind != "O"


@lru_cache(REMEMBERED)
def _result_head(
    model: str, variant: str, tensors: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]
) -> tuple[bytes, dict[str, str]]:
    head = {"model_name": model, "model_version": variant, "outputs": []}
    empty = {name: np.empty(shape, dtype) for name, dtype, shape in tensors}
    body, headers = _encode(head, "outputs", empty, dict.fromkeys(empty, True))
    return body[: int(headers[HEADER_LENGTH])], headers


def decode_result(body: Body, header_length: int | None) -> dict[str, Array]:
    """Named output tensors of a response."""
    head, tail = _split(body, header_length)
    return _decode_tensors(_list(head, "outputs"), tail)


def result_flaw(body: bytes, content_type: str, header_length: str | None) -> str | None:
    """Why what came with a 200 is no result; None of one. Looks at no more of it than takes some microseconds.

    Of numbers in bytes all that is said of them, of short JSON all, of long JSON its two ends.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if not body:
        return "the answer is empty"
    if kind and not kind.endswith(_RESULT_TYPES):
        return f"the answer is {kind[:64]}"
    if header_length is None:
        if len(body) > SHORT_JSON:
            whole = body[:64].lstrip()[:1] == b"{" and body[-64:].rstrip()[-1:] == b"}" and b'"outputs"' in body
            return None if whole else "the answer is no JSON object with outputs"
        length = len(body)
    elif (said := parse_count(header_length)) is None or said > len(body):
        return f"the answer's JSON is said to be '{header_length[:16]}' bytes long, but it has {len(body)}"
    else:
        length = said
        if (size := _result_size(body[:length])) is not None:
            found = len(body) - length
            return None if size == found else f"the answer's tensors are {size} bytes, but {found} came"
    try:
        decode_result(body, length)
    except WireError as problem:
        return f"the answer cannot be read: {problem.sentence}"
    return None


SHORT_JSON = 4096
_RESULT_TYPES = ("json", "octet-stream")


@lru_cache(REMEMBERED)
def _result_size(header: bytes) -> int | None:
    """How many bytes follow a result's JSON header; None where more than their number has to be looked at."""
    try:
        found = _numbers(_list(_object(header), "outputs"))
    except WireError:
        return None
    return found[1] if found else None


def _encode(
    head: dict[str, Any], key: str, tensors: Mapping[str, Array], binary: Mapping[str, bool]
) -> tuple[bytes, dict[str, str]]:
    pieces: list[bytes | memoryview] = []
    for name, tensor in tensors.items():
        item: dict[str, Any] = {"name": name, "datatype": datatype_of(tensor), "shape": list(tensor.shape)}
        if binary[name]:
            raw = _to_bytes(tensor)
            item["parameters"] = {"binary_data_size": len(raw)}
            pieces.append(raw)
        else:
            item["data"] = _as_list(tensor, name)
        head[key].append(item)
    try:
        text = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        raise _bad("a tensor holds NaN or infinity, which JSON cannot carry; ask for binary data") from None
    if not pieces:
        return text, {"content-type": "application/json"}
    headers = {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
    return b"".join([text, *pieces]), headers


def _as_list(tensor: Array, name: str) -> list[Any]:
    try:
        return [value.decode() if isinstance(value, bytes) else value for value in tensor.reshape(-1).tolist()]
    except UnicodeDecodeError:
        raise _bad(f"tensor '{name}' holds bytes that are no text; ask for binary data") from None


def _split(body: Body, header_length: int | None, most: int | None = None) -> tuple[dict[str, Any], memoryview]:
    view = memoryview(body)
    length = len(view) if header_length is None else header_length
    if not 0 <= length <= len(view):
        raise _bad(f"the JSON header is said to be {length} bytes long, but the body has {len(view)}")
    if most is not None and length > most:
        raise WireError(413, f"{length} bytes are JSON, but at most {most} are taken; send tensors as bytes behind it")
    return _object(bytes(view[:length])), view[length:]


def _object(text: bytes) -> dict[str, Any]:
    try:
        head = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_mapped)
    except (ValueError, RecursionError) as problem:
        raise _bad(f"it is not valid JSON: {str(problem).partition(';')[0]}") from None
    if not isinstance(head, dict):
        raise _bad("its JSON is not an object")
    return head


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _mapped(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Which of two values is meant where a key comes twice, others on the way may see differently."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _decode_tensors(items: list[Mapping[str, Any]], tail: memoryview) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for item in items:
        name, shape, parameters = _described(item)
        if name in tensors:
            raise _bad(f"tensor '{name}' appears twice")
        size = parameters.get("binary_data_size")
        if size is None:
            tensors[name] = _from_list(item.get("data"), item.get("datatype", ""), shape, name)
        elif type(size) is not int or not 0 <= size <= len(tail):
            claimed = size if type(size) is int else "no number of"
            raise _bad(f"tensor '{name}' claims {claimed} bytes, but {len(tail)} are left in the body")
        else:
            tensors[name] = _from_bytes(tail[:size], item.get("datatype", ""), shape, name)
            tail = tail[size:]
    if len(tail):
        raise _bad(f"{len(tail)} bytes of the body belong to no tensor")
    return tensors


def _described(item: Mapping[str, Any]) -> tuple[str, tuple[int, ...], Mapping[str, Any]]:
    """(name, shape, parameters) of a tensor."""
    name, shape = _name(item), item.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > MOST_DIMENSIONS
        or not all(type(n) is int and n >= 0 for n in shape)
        or math.prod(n or 1 for n in shape) > MOST_ELEMENTS
    ):
        raise _bad(f"tensor '{name}' has no valid shape")
    parameters = _mapping(item.get("parameters"), f"parameters of tensor '{name}'")
    if "shared_memory_region" in parameters:
        raise _bad(f"tensor '{name}' is in shared memory, which this server does not read")
    return name, tuple(shape), parameters


def _list(head: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = head.get(key)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise _bad(f"'{key}' must be a list of tensors")
    if len(found) > MOST_TENSORS:
        raise _bad(f"'{key}' has {len(found)} tensors, but at most {MOST_TENSORS} are taken")
    return found


def _mapping(found: object, what: str) -> Mapping[str, Any]:
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise _bad(f"{what} must be an object")
    return found


def _name(item: Mapping[str, Any]) -> str:
    name = item.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MOST_CHARACTERS or not name.isprintable():
        raise _bad(f"a tensor has no name of 1 to {MOST_CHARACTERS} printable characters")
    return name


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
