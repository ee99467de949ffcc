"""What came back from an endpoint. Knows nothing of how."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tailrate.serve import wire

OK = "200"
MOST_ERROR = 500
"""Characters of an error that are kept."""
SHUT = ("401", "403")


class Decoder(Protocol):
    """Who knows what is in an answer: its protocol."""

    def outputs(self, answer: EndpointAnswer) -> dict[str, wire.Array]: ...


@dataclass(slots=True)
class EndpointAnswer:
    """What came back: an HTTP status, or what else `status` of a row may be; monotonic send and receive times."""

    status: str
    sent_ns: int
    done_ns: int
    fields: bytes = b""
    """The header as it came, lines apart by CR LF."""
    body: bytes = b""
    error: str | None = None
    protocol: Decoder | None = None
    arrivals: Sequence[tuple[int, int]] = ()
    """Of one that comes in pieces: the instant of each, and bytes of the body that had come by then."""
    read: Any = None
    """What its protocol has made of the body, so that it is made once."""

    def outputs(self) -> dict[str, wire.Array]:
        """Named tensors of a result; `wire.WireError` where it is none."""
        assert self.protocol is not None
        return self.protocol.outputs(self)

    def headers(self) -> dict[str, str]:
        """By their names in lower case; one that comes again is a longer list."""
        found: dict[str, str] = {}
        for line in self.fields.decode("latin-1").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon:
                name, value = name.lower(), value.strip()
                found[name] = f"{found[name]}, {value}" if name in found else value
        return found


def parse_json(body: bytes) -> Any:
    """What a server sent; a `ValueError` where it is none, or deeper than anybody can read."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("it is too deep") from None


def error_sentence(body: bytes) -> str:
    """The `error` of a v2 error body, or the body's beginning."""
    try:
        found = parse_json(body)
        if isinstance(found, dict) and isinstance(found.get("error"), str):
            return str(found["error"])[:MOST_ERROR]
    except ValueError:
        pass
    return body[:200].decode("utf-8", "replace").strip() or "no reason given"
