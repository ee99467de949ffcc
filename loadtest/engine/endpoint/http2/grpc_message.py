"""gRPC's five bytes before each message, put there and looked at."""

from __future__ import annotations

from collections.abc import Iterator

PREFIX = 5
"""Bytes before each message: whether it is compressed, and its length."""
CUT_SHORT = "the answer's message does not come whole"
COMPRESSED = "the answer is compressed, which nobody asked for"


def framed(message: bytes) -> bytes:
    return b"\x00" + len(message).to_bytes(4, "big") + message


def messages(body: bytes) -> Iterator[tuple[memoryview, int]]:
    """Each whole one, and where in the body it ends; `ValueError` at one that is compressed."""
    at, view = 0, memoryview(body)
    while at + PREFIX <= len(body) and (end := at + PREFIX + int.from_bytes(body[at + 1 : at + PREFIX], "big")) <= len(
        body
    ):
        if body[at]:
            raise ValueError(COMPRESSED)
        yield view[at + PREFIX : end], end
        at = end
    if at < len(body):
        raise ValueError(CUT_SHORT)


def message_flaw(body: bytes) -> str | None:
    """Why it is not one whole message."""
    if len(body) < PREFIX:
        return "the answer has no message" if not body else CUT_SHORT
    if body[0]:
        return COMPRESSED
    said, found = int.from_bytes(body[1:PREFIX], "big"), len(body) - PREFIX
    return None if said == found else f"the answer's message is said to be {said} bytes long, but {found} came"
