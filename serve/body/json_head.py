"""The JSON that a body begins with, or is: what it says of each tensor, checked before a byte of a tensor is looked at.

A binary body is `<JSON header><tensor bytes>…`; the header's length is in the HTTP header
`Inference-Header-Content-Length`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tailrate.serve.body.tensors import as_list, dtype_of, from_bytes, from_list, to_bytes
from tailrate.serve.wire import HEADER_LENGTH, MOST_CHARACTERS, Array, Body, WireError, bad_input, datatype_of

REMEMBERED = 256
"""JSON headers, most recent first, whose meaning is kept."""
MOST_TENSORS = 256
"""Inputs, or outputs, that one request may name."""
MOST_DIMENSIONS = 32
MOST_ELEMENTS = 1 << 40
Placed = tuple[str, np.dtype[Any], tuple[int, ...], int, int]
"""A tensor of numbers in the bytes behind a header: (name, element type, shape, elements, first byte)."""


def encode(
    head: dict[str, Any], key: str, tensors: Mapping[str, Array], binary: Mapping[str, bool]
) -> tuple[bytes, dict[str, str]]:
    pieces: list[bytes | memoryview] = []
    for name, tensor in tensors.items():
        item: dict[str, Any] = {"name": name, "datatype": datatype_of(tensor), "shape": list(tensor.shape)}
        if binary[name]:
            raw = to_bytes(tensor)
            item["parameters"] = {"binary_data_size": len(raw)}
            pieces.append(raw)
        else:
            item["data"] = as_list(tensor, name)
        head[key].append(item)
    text = written(head, "binary data")
    if not pieces:
        return text, {"content-type": "application/json"}
    headers = {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
    return b"".join([text, *pieces]), headers


def written(head: Mapping[str, Any], otherwise: str) -> bytes:
    """As JSON; `otherwise` is what carries any number."""
    try:
        return json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        raise bad_input(f"a tensor holds NaN or infinity, which JSON cannot carry; ask for {otherwise}") from None


def split(body: Body, header_length: int | None, most: int | None = None) -> tuple[dict[str, Any], memoryview]:
    view = memoryview(body)
    length = len(view) if header_length is None else header_length
    if not 0 <= length <= len(view):
        raise bad_input(f"the JSON header is said to be {length} bytes long, but the body has {len(view)}")
    if most is not None and length > most:
        raise WireError(413, f"{length} bytes are JSON, but at most {most} are taken; send tensors as bytes behind it")
    return parse(bytes(view[:length])), view[length:]


def parse(text: bytes) -> dict[str, Any]:
    try:
        head = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_mapped)
    except (ValueError, RecursionError) as problem:
        raise bad_input(f"it is not valid JSON: {str(problem).partition(';')[0]}") from None
    if not isinstance(head, dict):
        raise bad_input("its JSON is not an object")
    return head


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _mapped(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Which of two values is meant where a key comes twice, others on the way may see differently."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def tensor_list(head: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = head.get(key)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise bad_input(f"'{key}' must be a list of tensors")
    if len(found) > MOST_TENSORS:
        raise bad_input(f"'{key}' has {len(found)} tensors, but at most {MOST_TENSORS} are taken")
    return found


def decode(items: list[Mapping[str, Any]], tail: memoryview) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for item in items:
        name, shape, parameters = _described(item)
        if name in tensors:
            raise bad_input(f"tensor '{name}' appears twice")
        size = parameters.get("binary_data_size")
        if size is None:
            tensors[name] = from_list(item.get("data"), item.get("datatype", ""), shape, name)
        elif type(size) is not int or not 0 <= size <= len(tail):
            claimed = size if type(size) is int else "no number of"
            raise bad_input(f"tensor '{name}' claims {claimed} bytes, but {len(tail)} are left in the body")
        else:
            tensors[name] = from_bytes(tail[:size], item.get("datatype", ""), shape, name)
            tail = tail[size:]
    if len(tail):
        raise bad_input(f"{len(tail)} bytes of the body belong to no tensor")
    return tensors


def numbers(items: list[Mapping[str, Any]]) -> tuple[tuple[Placed, ...], int] | None:
    """Where each tensor lies in the bytes after the header, and their length; None: one is not numbers in bytes."""
    placed: list[Placed] = []
    at = 0
    for item in items:
        name, shape, parameters = _described(item)
        dtype, size, count = dtype_of(item.get("datatype"), name), parameters.get("binary_data_size"), math.prod(shape)
        if dtype.kind == "O" or type(size) is not int or size != count * dtype.itemsize:
            return None
        placed.append((name, dtype, shape, count, at))
        at += size
    return tuple(placed), at


def _described(item: Mapping[str, Any]) -> tuple[str, tuple[int, ...], Mapping[str, Any]]:
    """(name, shape, parameters) of a tensor."""
    name, shape = name_of(item), item.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > MOST_DIMENSIONS
        or not all(type(n) is int and n >= 0 for n in shape)
        or math.prod(n or 1 for n in shape) > MOST_ELEMENTS
    ):
        raise bad_input(f"tensor '{name}' has no valid shape")
    parameters = mapping(item.get("parameters"), f"parameters of tensor '{name}'")
    check_parameters(f"tensor '{name}'", parameters)
    return name, tuple(shape), parameters


def check_parameters(what: str, parameters: Mapping[str, Any]) -> None:
    """Of a tensor, over HTTP and gRPC; `WireError` 400 for what this server does not do."""
    if "shared_memory_region" in parameters:
        raise bad_input(f"{what} asks for shared memory, which this server does not do")
    if parameters.get("classification"):
        raise bad_input(f"{what} asks for classification, which this server does not do")


def mapping(found: object, what: str) -> Mapping[str, Any]:
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise bad_input(f"{what} must be an object")
    return found


def name_of(item: Mapping[str, Any]) -> str:
    name = item.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MOST_CHARACTERS or not name.isprintable():
        raise bad_input(f"a tensor has no name of 1 to {MOST_CHARACTERS} printable characters")
    return name
