"""Header blocks of HTTP/2 (RFC 7541): ours written as literals that change no state, the peer's read with their state.

A server sends the same blocks again and again, most of them a few indices; one that leaves the table as it was is
remembered with what it means.
"""

from __future__ import annotations

from collections import deque

from tailrate.loadtest.engine.endpoint.http2 import huffman

TABLE = 4096
"""Bytes of the peer's dynamic table, by the count of the RFC; we announce no other."""
OVERHEAD = 32
MOST_FIELDS = 1 << 16
"""Bytes that one block may become."""
REMEMBERED = 256

STATIC = tuple(
    (name.encode(), value.encode())
    for name, _, value in (
        line.partition(" ")
        for line in """\
:authority
:method GET
:method POST
:path /
:path /index.html
:scheme http
:scheme https
:status 200
:status 204
:status 206
:status 304
:status 400
:status 404
:status 500
accept-charset
accept-encoding gzip, deflate
accept-language
accept-ranges
accept
access-control-allow-origin
age
allow
authorization
cache-control
content-disposition
content-encoding
content-language
content-length
content-location
content-range
content-type
cookie
date
etag
expect
expires
from
host
if-match
if-modified-since
if-none-match
if-range
if-unmodified-since
last-modified
link
location
max-forwards
proxy-authenticate
proxy-authorization
range
referer
refresh
retry-after
server
set-cookie
strict-transport-security
transfer-encoding
user-agent
vary
via
www-authenticate""".splitlines()
    )
)


def literal(name: str, value: str) -> bytes:
    """A field that no table keeps."""
    return b"\x00" + _text(name.encode("latin-1")) + _text(value.encode("latin-1", "replace"))


def _text(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes((len(text),)) + text
    left, found = len(text) - 127, bytearray(b"\x7f")
    while left > 127:
        found.append(left & 127 | 128)
        left >>= 7
    found.append(left)
    return bytes(found) + text


class Decoder:
    """Of one connection: blocks have to come in their order, each of them."""

    def __init__(self) -> None:
        self._table: deque[tuple[bytes, bytes]] = deque()
        self._size = 0
        self._most = TABLE
        self._known: dict[bytes, bytes] = {}
        """Blocks that change no state, and what they mean as long as it is this state."""

    def lines(self, block: bytes) -> bytes:
        """The fields as `name: value`, lines apart by CR LF; `ValueError` where it is no block."""
        if (found := self._known.get(block)) is not None:
            return found
        try:
            fields, changed = self._fields(block)
        except IndexError:
            raise ValueError("a header block ends in the middle") from None
        found = b"".join([b"%s: %s\r\n" % field for field in fields])
        if changed or len(self._known) >= REMEMBERED:
            self._known.clear()
        if not changed:
            self._known[block] = found
        return found

    def _fields(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
        at, total, changed = 0, 0, False
        fields: list[tuple[bytes, bytes]] = []
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _number(block, at, 7)
                field = self._field(index)
            elif first & 0xE0 == 0x20:
                size, at = _number(block, at, 5)
                if size > TABLE or fields:
                    raise ValueError("the size of the header table is changed in a way that is not allowed")
                self._most, changed = size, True
                self._evict()
                continue
            else:
                kept = bool(first & 0x40)
                index, at = _number(block, at, 6 if kept else 4)
                if index:
                    name = self._field(index)[0]
                else:
                    name, at = _string(block, at)
                value, at = _string(block, at)
                field = name, value
                if kept:
                    self._keep(field)
                    changed = True
            total += len(field[0]) + len(field[1]) + OVERHEAD
            if total > MOST_FIELDS:
                raise ValueError("a header block is too large")
            fields.append(field)
        return [tuple(map(_one_line, field)) for field in fields], changed  # type: ignore[misc]

    def _field(self, index: int) -> tuple[bytes, bytes]:
        if 0 < index <= len(STATIC):
            return STATIC[index - 1]
        if not 0 < index - len(STATIC) <= len(self._table):
            raise ValueError(f"a header block names field {index}, which there is not")
        return self._table[index - len(STATIC) - 1]

    def _keep(self, field: tuple[bytes, bytes]) -> None:
        self._table.appendleft(field)
        self._size += len(field[0]) + len(field[1]) + OVERHEAD
        self._evict()

    def _evict(self) -> None:
        while self._size > self._most:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + OVERHEAD


def _one_line(text: bytes) -> bytes:
    return text.replace(b"\r", b" ").replace(b"\n", b" ")


def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    found, at = block[at] & most, at + 1
    if found < most:
        return found, at
    for shift in range(0, 35, 7):
        byte, at = block[at], at + 1
        found += (byte & 127) << shift
        if byte < 128:
            return found, at
    raise ValueError("a number in a header block is too large")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    coded = block[at] & 0x80
    size, at = _number(block, at, 7)
    text = block[at : at + size]
    if len(text) < size:
        raise ValueError("a header block ends in the middle")
    return huffman.decode(text) if coded else text, at + size
