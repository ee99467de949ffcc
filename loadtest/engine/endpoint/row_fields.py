"""What the header of an answer says about its request: stages, the server's clock, the batch, the replica, the device.

Any server may send them. A field that is empty says nothing; one that cannot be meant counts, and is empty in the row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from tailrate.analysis.records.manifest import formerly
from tailrate.serve import wire

TIMED = {**{name: f"{name}_ms" for name in wire.STAGES}, "total": "server_ms"}
"""Columns of what is timed."""
_AS_WE_WRITE_IT = re.compile(", ".join(rf"{name};dur=(\d{{1,9}}\.\d+)" for name in TIMED), re.ASCII)
FORMER_HEADERS = {name: formerly(name) for name in (wire.CLOCK_HEADER, wire.BATCH, wire.REPLICA, wire.DEVICE)}
"""As servers of before the project's own name send them."""
_parse_count, _parse_label = lru_cache(1024)(wire.parse_count), lru_cache(1024)(wire.parse_label)
"""Thousands come in a second, and few differ."""
Value = TypeVar("Value")


def row_fields(fields: Mapping[str, str], bad: Counter[str]) -> dict[str, Any]:
    """Columns of the row; `bad` counts fields that cannot be meant, by their names."""
    found: dict[str, Any] = _timed(fields.get(wire.TIMING, ""), bad)
    found["batch_rows"] = _value(fields, wire.BATCH, _parse_count, bad)
    found["replica"] = _value(fields, wire.REPLICA, _parse_label, bad)
    found["device"] = _value(fields, wire.DEVICE, _parse_label, bad)
    return found


def server_clock(fields: Mapping[str, str], bad: Counter[str]) -> tuple[int, int] | None:
    """When the server received the request and sent the answer, in ns of its wall clock."""
    return _value(fields, wire.CLOCK_HEADER, wire.parse_clock, bad)


def _timed(text: str, bad: Counter[str]) -> dict[str, Any]:
    if plain := _AS_WE_WRITE_IT.fullmatch(text):  # thousands come in a second
        return dict(zip(TIMED.values(), map(float, plain.groups()), strict=True))
    found = wire.parse_timing(text)
    for name in TIMED if text else ():
        if name not in found and f"{name};dur=" in text:
            bad[name] += 1
    return {column: found.get(name) for name, column in TIMED.items()}


def _value(
    fields: Mapping[str, str], name: str, parse: Callable[[str], Value | None], bad: Counter[str]
) -> Value | None:
    if not (text := fields.get(name) or fields.get(FORMER_HEADERS[name])):
        return None
    if (value := parse(text)) is None:
        bad[name] += 1
    return value
