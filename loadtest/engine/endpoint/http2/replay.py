"""An answer as the frames that a server sends of it, for one that plays it back to any stream."""

from __future__ import annotations

from collections.abc import Sequence

from tailrate.loadtest.engine.endpoint.http2 import frames
from tailrate.loadtest.engine.endpoint.http2.hpack import literal

STREAM = 0
"""Whoever plays it back puts its own there."""


def as_frames(fields: bytes, pieces: Sequence[bytes]) -> list[bytes]:
    """Header, each piece of the body, and gRPC's status, of an answer that had no other trailers than those of gRPC."""
    lines = [line.partition(": ") for line in fields.decode("latin-1").split("\r\n") if line]
    trailers = [line for line in lines if line[0].startswith("grpc-")]
    head, tail = (
        b"".join(literal(name, value) for name, _, value in some)
        for some in ([line for line in lines if line not in trailers], trailers)
    )
    data = [
        b"".join(
            frames.frame(frames.DATA, 0, STREAM, piece[at : at + frames.LONGEST])
            for at in range(0, len(piece), frames.LONGEST)
        )
        for piece in pieces
    ]
    begin = frames.frame(frames.HEADERS, frames.END_HEADERS, STREAM, head)
    end = frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, STREAM, tail)
    return [begin, *data, end]
