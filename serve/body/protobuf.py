"""Protocol buffers' wire format, as little of it as the Open Inference Protocol's messages take.

A message is read as its fields in the order in which they came: (number, value), a number or a view of bytes. The
package `protobuf` does the same for any message; without it, a base install needs nothing more for gRPC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from tailrate.serve.wire import Body, bad_input

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Value = int | memoryview


def varint(value: int) -> bytes:
    """Negative ones as they are in 64 bits."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def number(field: int, value: int) -> bytes:
    """Nothing for 0, as every reader takes it."""
    return varint(field << 3 | VARINT) + varint(value) if value else b""


def text(field: int, value: Body | str) -> bytes:
    """A text, bytes or a message; nothing where it is empty."""
    return item(field, value) if len(value) else b""


def item(field: int, value: Body | str) -> bytes:
    """One of several, empty or not."""
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | BYTES) + varint(len(raw)) + raw


def packed(field: int, values: Iterable[int]) -> bytes:
    return text(field, b"".join(map(varint, values)))


def fields(message: Body) -> Iterator[tuple[int, Value]]:
    """`WireError` 400 where it is no message."""
    view = memoryview(message)
    at, end = 0, len(view)
    while at < end:
        tag, at = read_varint(view, at)
        field, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = read_varint(view, at)
            yield field, value
            continue
        if kind == BYTES:
            size, at = read_varint(view, at)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise bad_input("it is no message of protocol buffers")
        if not field or size > end - at:
            raise bad_input("its message ends in the middle")
        yield field, view[at : at + size]
        at += size


def mapped(message: Body, field: int) -> dict[str, memoryview]:
    """A map from texts to messages."""
    entries = [dict(fields(as_message(value))) for key, value in fields(message) if key == field]
    empty = memoryview(b"")
    return {as_text(entry.get(1, empty)): as_message(entry.get(2, empty)) for entry in entries}


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """(number, what comes behind it)"""
    found = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            raise bad_input("its message ends in the middle")
        byte = view[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found & (1 << 64) - 1, at
    raise bad_input("its message has a number of more than 64 bits")


def as_text(value: Value) -> str:
    if isinstance(value, int):
        raise bad_input("its message has a number where a text should be")
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise bad_input("its message has a text that is not UTF-8") from None


def as_message(value: Value) -> memoryview:
    if isinstance(value, int):
        raise bad_input("its message has a number where bytes should be")
    return value


def signed(value: int, bits: int = 64) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def integers(value: Value) -> list[int]:
    """Of a repeated field: one, or several packed."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        one, at = read_varint(value, at)
        found.append(one)
    return found


def double(value: Value) -> float:
    raw = as_message(value)
    if len(raw) != 8:
        raise bad_input("its message has a double of another length than 8")
    return float(struct.unpack("<d", raw)[0])
