"""A request's body, written and read, and undone where it came compressed.

A client sends the same JSON header again and again, so it is remembered with what it means.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from tailrate.serve.body.json_head import (
    REMEMBERED,
    Placed,
    check_parameters,
    decode,
    encode,
    mapping,
    name_of,
    numbers,
    parse,
    split,
    tensor_list,
)
from tailrate.serve.wire import MOST_CHARACTERS, Array, Body, WireError, bad_input

MOST_JSON_BYTES = 16 << 20
"""Of a request. Parsing holds the interpreter: a quarter of a second for numbers, a whole for the worst."""
REMEMBERED_BYTES = 1024
MOST_MEMBERS = 1024
"""Of a gzip body, which may be many behind one another; each costs a look at what is left."""
INFLATED_AT_ONCE = 1 << 16


@dataclass(slots=True)
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
    return encode(head, "inputs", inputs, dict.fromkeys(inputs, binary))


def decode_infer(body: Body, header_length: int | None) -> InferRequest:
    """Reads a request; raises `WireError` 400 with one sentence for anything malformed."""
    if header_length is not None and 0 <= header_length <= min(REMEMBERED_BYTES, len(body)):
        layout = _layout(bytes(body[:header_length]))
        if layout is not None and header_length + layout.size == len(body):
            return InferRequest(layout.id, layout.views(body, header_length), layout.outputs, layout.binary_default)
    head, tail = split(body, header_length, MOST_JSON_BYTES)
    wanted, binary_default = _wanted(head)
    inputs = decode(tensor_list(head, "inputs"), tail)
    _check_rows({name: tensor.shape for name, tensor in inputs.items()})
    return InferRequest(_id(head), inputs, wanted, binary_default)


@dataclass(frozen=True, slots=True)
class _Layout:
    """What a request's JSON header says of the bytes behind it, when all of them are numbers."""

    id: str
    tensors: tuple[Placed, ...]
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
        head = parse(header)
        wanted, binary_default = _wanted(head)
        found = numbers(tensor_list(head, "inputs"))
        if found is None:
            return None
        tensors, size = found
        _check_rows({name: shape for name, _, shape, _, _ in tensors})
        if len({name for name, *_ in tensors}) < len(tensors):
            return None
        return _Layout(_id(head), tensors, size, wanted, binary_default)
    except WireError:
        return None


def _id(head: Mapping[str, Any]) -> str:
    found = head.get("id")
    if found is None:
        return ""
    if not isinstance(found, str) or len(found) > MOST_CHARACTERS:
        raise bad_input(f"'id' must be a text of at most {MOST_CHARACTERS} characters")
    return found


def _wanted(head: Mapping[str, Any]) -> tuple[dict[str, bool] | None, bool]:
    """Which outputs a request names, each True where as bytes, and how it wants those that it doesn't name."""
    parameters = mapping(head.get("parameters"), "parameters")
    binary_default = parameters.get("binary_data_output") is True
    wanted: dict[str, bool] | None = None
    if head.get("outputs"):
        wanted = {}
        for item in tensor_list(head, "outputs"):
            name = name_of(item)
            if name in wanted:
                raise bad_input(f"output '{name}' is asked for twice")
            how = mapping(item.get("parameters"), f"parameters of output '{name}'")
            check_parameters(f"output '{name}'", how)
            wanted[name] = how.get("binary_data", binary_default) is True
    return wanted, binary_default


def _check_rows(shapes: Mapping[str, tuple[int, ...]]) -> None:
    if not shapes:
        raise bad_input("the request has no inputs")
    rows = {shape[0] if shape else -1 for shape in shapes.values()}
    if len(rows) != 1 or min(rows) < 1:
        found = ", ".join(f"'{name}' {list(shape)}" for name, shape in islice(shapes.items(), 8))
        raise bad_input(f"every input needs the same first dimension (rows), at least 1; got {found}")


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
                raise bad_input(f"the body is not valid {encoding}") from None
            found.append(plain)
            size += len(plain)
            if size > limit:
                raise WireError(413, f"the body grows past {limit} bytes when decompressed")
            if unused := len(stream.unused_data):
                left = memoryview(body)[len(body) - len(left) - unused :]
        if not stream.eof or not left:
            break
    if not stream.eof or left:
        raise bad_input(f"the {encoding} body ends early or goes on after its end")
    return b"".join(found)
