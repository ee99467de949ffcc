"""The messages of `inference.GRPCInferenceService`, the Open Inference Protocol over gRPC, written and read.

Tensors go as bytes behind the description (`raw_input_contents`, `raw_output_contents`), or as values in it
(`contents`), which some servers want.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from tailrate.serve.body import protobuf
from tailrate.serve.body.json_head import check_parameters
from tailrate.serve.body.protobuf import as_message, as_text, integers, item, number, packed, signed, text
from tailrate.serve.body.tensors import dtype_of, from_bytes, read_as, to_bytes
from tailrate.serve.wire import Array, Body, WireError, bad_input, datatype_of

SERVICE = "/inference.GRPCInferenceService/"
REMEMBERED = 256
MOST_DIMENSIONS = 32
MOST_ELEMENTS = 1 << 40
CONTENTS = {
    "BOOL": 1, "INT8": 2, "INT16": 2, "INT32": 2, "INT64": 3, "UINT8": 4, "UINT16": 4, "UINT32": 4, "UINT64": 5,
    "FP32": 6, "FP64": 7, "BYTES": 8,
}  # fmt: skip
"""Field of `contents` that holds a datatype's values; FP16 has none."""


@dataclass(slots=True)
class Message:
    """A request to infer, or its result: what differs between them is the number of one field."""

    model: str = ""
    version: str = ""
    id: str = ""
    tensors: dict[str, Array] = field(default_factory=dict)
    wanted: list[str] = field(default_factory=list)


def encode_infer(
    model: str, version: str, inputs: Mapping[str, Array], outputs: Sequence[str] = (), raw: bool = True
) -> bytes:
    begin = text(1, model) + text(2, version)
    wanted = b"".join(item(6, text(1, name)) for name in outputs)
    return _encoded(begin, inputs, 5, wanted, 7 if raw else None)


def encode_result(model: str, version: str, request_id: str, outputs: Mapping[str, Array]) -> bytes:
    return _encoded(text(1, model) + text(2, version) + text(3, request_id), outputs, 5, b"", 6)


def _encoded(begin: bytes, tensors: Mapping[str, Array], each: int, wanted: bytes, raw: int | None) -> bytes:
    """`raw`: the field that holds the tensors' bytes; None: they go as values."""
    said, behind = [], []
    for name, tensor in tensors.items():
        datatype = datatype_of(tensor)
        described = text(1, name) + text(2, datatype) + packed(3, tensor.shape)
        if raw is None:
            described += item(5, _contents(tensor, datatype, name))
        else:
            behind.append(item(raw, to_bytes(tensor)))
        said.append(item(each, described))
    return b"".join([begin, *said, wanted, *behind])


def _contents(tensor: Array, datatype: str, name: str) -> bytes:
    if datatype not in CONTENTS:
        raise bad_input(f"tensor '{name}' is {datatype}, which goes over gRPC as bytes alone")
    at, flat = CONTENTS[datatype], tensor.reshape(-1)
    if datatype == "BYTES":
        return b"".join(item(at, one if isinstance(one, bytes | str) else bytes(one)) for one in flat)
    return text(at, to_bytes(tensor)) if at in (6, 7) else packed(at, map(int, flat.tolist()))


def decode_infer(message: Body) -> Message:
    return _decoded(message, 7, 6)


def decode_result(message: Body) -> dict[str, Array]:
    return _decoded(message, 6, None).tensors


def decode_piece(message: Body) -> tuple[str, dict[str, Array]]:
    """Of ModelStreamInfer: (what went wrong, outputs). Triton wraps a result into it, MLServer sends the result."""
    found = dict(protobuf.fields(message))
    if any(key > 2 for key in found):
        return "", decode_result(message)
    error, result = (as_message(found.get(key, memoryview(b""))) for key in (1, 2))
    return as_text(error), decode_result(result)


def _decoded(message: Body, raw_field: int, wanted_field: int | None) -> Message:
    """`WireError` 400 for what is malformed."""
    found, raw, described = Message(), [], []
    for key, value in protobuf.fields(message):
        if key == raw_field:
            raw.append(as_message(value))
        elif key in (1, 2, 3):
            setattr(found, ("model", "version", "id")[key - 1], as_text(value))
        elif key == 5:
            described.append(_description(as_message(value)))
        elif key == wanted_field:
            output = as_message(value)
            found.wanted.append("".join(as_text(part) for at, part in protobuf.fields(output) if at == 1))
            check_parameters(f"output '{found.wanted[-1]}'", protobuf.mapped(output, 2))
    if raw and len(raw) != len(described):
        raise bad_input(f"{len(described)} tensors are described, but {len(raw)} have bytes")
    for place, (name, datatype, shape, contents) in enumerate(described):
        if wanted_field is None:
            datatype = read_as(datatype)
        if name in found.tensors:
            raise bad_input(f"tensor '{name}' appears twice")
        if raw and contents is not None and len(contents):
            raise bad_input(f"tensor '{name}' goes both as bytes and as values")
        found.tensors[name] = (
            from_bytes(raw[place], datatype, shape, name) if raw else _values(contents, datatype, shape, name)
        )
    return found


def _description(message: memoryview) -> tuple[str, str, tuple[int, ...], memoryview | None]:
    name = datatype = ""
    shape: list[int] = []
    contents: memoryview | None = None
    for key, value in protobuf.fields(message):
        if key == 1:
            name = as_text(value)
        elif key == 2:
            datatype = as_text(value)
        elif key == 3:
            shape += map(signed, integers(value))
        elif key == 5:
            contents = as_message(value)
    if not name:
        raise bad_input("a tensor has no name")
    if len(shape) > MOST_DIMENSIONS or any(size < 0 for size in shape) or math.prod(shape) > MOST_ELEMENTS:
        raise bad_input(f"tensor '{name}' has a shape that cannot be meant")
    check_parameters(f"tensor '{name}'", protobuf.mapped(message, 4))
    return name, datatype, tuple(shape), contents


def _values(contents: memoryview | None, datatype: str, shape: tuple[int, ...], name: str) -> Array:
    dtype, at = dtype_of(datatype, name), CONTENTS.get(datatype)
    parts = [value for key, value in protobuf.fields(contents or b"") if key == at]
    if at in (6, 7):
        return from_bytes(memoryview(b"".join(map(as_message, parts))), datatype, shape, name)
    if at == 8:
        flat: Any = [bytes(as_message(part)) for part in parts]
    else:
        flat = [number for part in parts for number in integers(part)]
        if dtype.kind == "i":
            flat = [signed(number, 64) for number in flat]
    if len(flat) != math.prod(shape):
        raise bad_input(f"tensor '{name}' of shape {list(shape)} does not have as many elements")
    try:
        tensor = np.empty(len(flat), dtype)
        tensor[:] = flat
    except OverflowError:
        raise bad_input(f"tensor '{name}' has values that are no {datatype}") from None
    return tensor.reshape(shape)


# ---- a quick look at an answer


def result_flaw(message: memoryview) -> str | None:
    """Why it is no result: its outputs and their bytes have to fit. Costs some microseconds, whatever its size."""
    end = _raw_begins(message)
    try:
        sizes = _sizes(bytes(message[:end]))
        found = [len(as_message(value)) for key, value in protobuf.fields(message[end:]) if key == 6]
        if not found or None in sizes:
            outputs = decode_result(message)
            return None if outputs else "the answer has no outputs"
    except WireError as problem:
        return f"the answer cannot be read: {problem.sentence}"
    if list(sizes) == found:
        return None
    return f"the answer's tensors are {', '.join(map(str, sizes))} bytes, but {', '.join(map(str, found))} came"


def _raw_begins(message: memoryview) -> int:
    """Where the first tensor's bytes begin, mostly after all the rest."""
    at = 0
    try:
        while at < len(message) and message[at] & 7 == protobuf.BYTES and message[at] >> 3 != 6:
            size, at = protobuf.read_varint(message, at + 1)
            at += size
    except WireError:
        return len(message)
    return min(at, len(message))


@lru_cache(REMEMBERED)
def _sizes(head: bytes) -> tuple[int | None, ...]:
    """Of each output that is described; None where that does not tell."""
    outputs = [_description(as_message(value)) for key, value in protobuf.fields(head) if key == 5]
    dtypes = [dtype_of(read_as(datatype), name) for name, datatype, _, _ in outputs]
    return tuple(
        None if dtype.kind == "O" or contents else math.prod(shape) * dtype.itemsize
        for dtype, (_, _, shape, contents) in zip(dtypes, outputs, strict=True)
    )


# ---- what a server says of itself


def flag(message: Body) -> bool:
    """Of ServerLive, ServerReady and ModelReady."""
    return any(key == 1 and bool(value) for key, value in protobuf.fields(message) if isinstance(value, int))


def encode_flag(value: bool) -> bytes:
    return number(1, value)


def encode_name(model: str, version: str = "") -> bytes:
    """A request about a model."""
    return text(1, model) + text(2, version)


def decode_name(message: Body) -> tuple[str, str]:
    found = {key: as_text(value) for key, value in protobuf.fields(message) if key in (1, 2)}
    return found.get(1, ""), found.get(2, "")


def encode_server(name: str, version: str, extensions: Sequence[str]) -> bytes:
    return text(1, name) + text(2, version) + b"".join(item(3, one) for one in extensions)


def decode_server(message: Body) -> dict[str, Any]:
    found: dict[str, Any] = {"name": "", "version": "", "extensions": []}
    for key, value in protobuf.fields(message):
        if key in (1, 2):
            found["name" if key == 1 else "version"] = as_text(value)
        elif key == 3:
            found["extensions"].append(as_text(value))
    return found


def encode_model(metadata: Mapping[str, Any]) -> bytes:
    """Of what HTTP says as JSON."""
    pieces = [text(1, metadata["name"]), *(item(2, one) for one in metadata.get("versions") or ())]
    pieces.append(text(3, metadata.get("platform") or ""))
    for key, tensors in ((4, metadata.get("inputs")), (5, metadata.get("outputs"))):
        pieces += [
            item(key, text(1, t["name"]) + text(2, t["datatype"]) + packed(3, t["shape"])) for t in tensors or ()
        ]
    for name, value in (metadata.get("parameters") or {}).items():
        pieces.append(item(6, text(1, name) + text(2, value if isinstance(value, str) else json.dumps(value))))
    return b"".join(pieces)


def decode_model(message: Body) -> dict[str, Any]:
    found: dict[str, Any] = {"name": "", "versions": [], "platform": "", "inputs": [], "outputs": [], "parameters": {}}
    for key, value in protobuf.fields(message):
        if key in (1, 3):
            found["name" if key == 1 else "platform"] = as_text(value)
        elif key == 2:
            found["versions"].append(as_text(value))
        elif key in (4, 5):
            name, datatype, shape = _specification(as_message(value))
            found["inputs" if key == 4 else "outputs"].append({"name": name, "datatype": datatype, "shape": shape})
        elif key == 6:
            name, said = decode_name(as_message(value))
            found["parameters"][name] = said
    return found


def _specification(message: memoryview) -> tuple[str, str, list[int]]:
    name, datatype = decode_name(message)
    shape = [signed(one) for key, value in protobuf.fields(message) if key == 3 for one in integers(value)]
    return name, datatype, shape


INDEX_FIELDS = {1: "name", 2: "version", 3: "state", 4: "reason"}


def encode_index(models: Sequence[Mapping[str, str]]) -> bytes:
    """Of what HTTP says as JSON."""
    return b"".join(
        item(1, b"".join(text(key, model.get(name, "")) for key, name in INDEX_FIELDS.items())) for model in models
    )


def decode_index(message: Body) -> list[dict[str, str]]:
    """Of RepositoryIndex: what has a name and maybe a version."""
    return [
        {INDEX_FIELDS[key]: as_text(part) for key, part in protobuf.fields(as_message(value)) if key in INDEX_FIELDS}
        for at, value in protobuf.fields(message)
        if at == 1
    ]
