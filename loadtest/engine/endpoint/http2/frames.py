"""Frames of HTTP/2 (RFC 9113) as bytes."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
ENABLE_PUSH, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME = 2, 3, 4, 5
"""Settings."""
PROTOCOL_ERROR, REFUSED, CANCEL = 1, 7, 8
REASONS = (
    "no error", "protocol error", "internal error", "flow control error", "settings timeout", "stream closed",
    "frame size error", "refused", "cancelled", "compression error", "connect error", "enhance your calm",
    "inadequate security", "HTTP/1.1 required",
)  # fmt: skip
HEAD = 9
LONGEST = 1 << 14
"""Bytes of a frame's payload where nothing else was agreed upon."""
WINDOW = 65_535
"""That each stream and the connection begin with."""
MOST_WINDOW = (1 << 31) - 1

_HEAD = struct.Struct(">HBBBI")
_SETTING = struct.Struct(">HI")


def head(size: int, kind: int, flags: int, stream: int) -> bytes:
    return _HEAD.pack(size >> 8, size & 255, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return head(len(payload), kind, flags, stream) + payload


def read_head(data: bytes, at: int) -> tuple[int, int, int, int]:
    """(size, kind, flags, stream)"""
    high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
    return high << 8 | low, kind, flags, stream & MOST_WINDOW


def number(value: int) -> bytes:
    """As RST_STREAM and WINDOW_UPDATE hold it."""
    return value.to_bytes(4, "big")


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    return list(_SETTING.iter_unpack(payload))


def reason(code: int) -> str:
    return REASONS[code] if code < len(REASONS) else f"code {code}"


def unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ValueError("a frame has more padding than bytes")
    return payload[1 : len(payload) - payload[0]]


def u32(payload: bytes, at: int) -> int:
    if len(payload) < at + 4:
        raise ValueError("a frame is too short")
    return int.from_bytes(payload[at : at + 4], "big")
