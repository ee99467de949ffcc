"""A tensor as bytes and as a list of JSON, and back. Decoded numbers are views into the body, never copies."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import numpy as np

from tailrate.serve.wire import DTYPES, Array, WireError, bad_input, datatype_of

MOST_STRINGS = 1 << 16
"""Elements of a BYTES tensor, each of which becomes an object."""


def dtype_of(datatype: object, name: str) -> np.dtype[Any]:
    found = DTYPES.get(datatype) if isinstance(datatype, str) else None
    if found is None:
        shown = f"datatype '{datatype[:64]}'" if isinstance(datatype, str) else "no datatype"
        raise bad_input(f"tensor '{name}' has {shown}; known are {', '.join(DTYPES)}")
    return found


def read_as(datatype: Any) -> Any:
    """What an answer's datatype is read as: BF16, which numpy doesn't have, as the bits of its numbers."""
    return "UINT16" if datatype == "BF16" else datatype


def to_bytes(tensor: Array) -> bytes | memoryview:
    if datatype_of(tensor) != "BYTES":
        flat = np.ascontiguousarray(tensor, dtype=tensor.dtype.newbyteorder("<")).reshape(-1)
        return flat.view(np.uint8).data
    pieces = []
    for item in tensor.reshape(-1):
        raw = item.encode() if isinstance(item, str) else bytes(item)
        pieces += [len(raw).to_bytes(4, "little"), raw]
    return b"".join(pieces)


def from_bytes(raw: memoryview, datatype: str, shape: tuple[int, ...], name: str) -> Array:
    dtype, count = dtype_of(datatype, name), math.prod(shape)
    if datatype != "BYTES":
        if len(raw) != count * dtype.itemsize:
            raise bad_input(
                f"tensor '{name}' of shape {list(shape)} needs {count * dtype.itemsize} bytes, not {len(raw)}"
            )
        return np.frombuffer(raw, dtype=dtype).reshape(shape)
    _check_strings(count, name)
    items: list[bytes] = []
    at = 0
    while at < len(raw) and len(items) <= count:
        length = int.from_bytes(raw[at : at + 4], "little")
        if at + 4 + length > len(raw):
            raise bad_input(f"tensor '{name}' ends inside its element {len(items)}")
        items.append(bytes(raw[at + 4 : at + 4 + length]))
        at += 4 + length
    return _objects(items, shape, name)


def _check_strings(count: int, name: str) -> None:
    if count > MOST_STRINGS:
        raise WireError(413, f"tensor '{name}' has {count} strings, but at most {MOST_STRINGS} are taken")


def _objects(items: list[bytes], shape: tuple[int, ...], name: str) -> Array:
    if len(items) != math.prod(shape):
        raise bad_input(f"tensor '{name}' of shape {list(shape)} does not have as many elements")
    tensor = np.empty(len(items), dtype=object)
    tensor[:] = items
    return tensor.reshape(shape)


_TYPES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}, "O": {str}}
"""What JSON values become in Python that fit numpy's kind of element."""


def from_list(values: object, datatype: str, shape: tuple[int, ...], name: str) -> Array:
    dtype = dtype_of(datatype, name)
    if not isinstance(values, list):
        raise bad_input(f"tensor '{name}' has no list of values in 'data'")
    does_not = bad_input(f"tensor '{name}' does not hold {datatype} values of shape {list(shape)}")
    # by hand: numpy would take all the memory there is for many short strings and a long one
    while (types := set(map(type, values))) == {list}:
        if len(set(map(len, values))) > 1:
            raise does_not
        values = list(chain.from_iterable(values))
    if not types <= _TYPES[dtype.kind]:
        raise bad_input(f"tensor '{name}' is {datatype}, but its values are not")
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


def as_list(tensor: Array, name: str) -> list[Any]:
    try:
        return [value.decode() if isinstance(value, bytes) else value for value in tensor.reshape(-1).tolist()]
    except UnicodeDecodeError:
        raise bad_input(f"tensor '{name}' holds bytes that are no text; ask for binary data") from None
