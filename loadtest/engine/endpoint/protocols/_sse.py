"""Server-sent events, as a body holds them: split at lines of LF, CR LF or CR, wherever the network split it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

MARK = b"\xef\xbb\xbf"
"""Of byte order, which a stream may begin with."""


class ServerEvent(NamedTuple):
    name: bytes
    """Empty of an ordinary one."""
    data: bytes
    end: int
    """Bytes of the body up to its last line's end: what had come when it could be read."""


def events(body: bytes) -> Iterator[ServerEvent]:
    """Those that hold data; comments and other fields are passed over, and the last may lack its empty line.

    >>> [tuple(event) for event in events(b": hello\\n\\nevent: error\\r\\ndata: 1\\r\\ndata: 2\\r\\n\\r\\ndata:3")]
    [(b'error', b'1\\n2', 41), (b'', b'3', 49)]
    """
    name, at, end = b"", len(MARK) * body.startswith(MARK), 0
    lines: list[bytes] = []
    for line in body[at:].splitlines(keepends=True):  # of bytes: at these three alone
        at += len(line)
        text = line.rstrip(b"\r\n")
        if not text:
            if lines:
                yield ServerEvent(name, lines[0] if len(lines) == 1 else b"\n".join(lines), end)
            name, lines = b"", []
        elif text.startswith(b"data"):
            field, _, value = text.partition(b":")
            if field == b"data":
                lines.append(value.removeprefix(b" "))
                end = at
        elif text.startswith(b"event:"):
            name = text[6:].removeprefix(b" ")
    if lines:
        yield ServerEvent(name, b"\n".join(lines), end)
