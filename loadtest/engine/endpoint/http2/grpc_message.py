"""gRPC's five bytes before each message, put there and looked at."""

from __future__ import annotations

PREFIX = 5
"""Bytes before each message: whether it is compressed, and its length."""


def framed(message: bytes) -> bytes:
    return b"\x00" + len(message).to_bytes(4, "big") + message


def message_flaw(body: bytes) -> str | None:
    """Why it is not one whole message."""
    if len(body) < PREFIX:
        return "the answer has no message" if not body else "the answer's message does not come whole"
    if body[0]:
        return "the answer is compressed, which nobody asked for"
    said, found = int.from_bytes(body[1:PREFIX], "big"), len(body) - PREFIX
    return None if said == found else f"the answer's message is said to be {said} bytes long, but {found} came"
