"""What the values of `run.json` are, so far as anybody computes with them: a table, by where they stand.

`a.b` is a key within an object, `a[]` each of a list. What is absent or null may be so, but for what is `NEEDED`
and within a list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tailrate.analysis.records.rows import KINDS

Kind = tuple[str, Callable[[Any], bool]]


def _is_number(value: Any) -> bool:
    """One that a column of 64 bits could hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -(2**63) <= value < 2**63 if isinstance(value, int) else math.isfinite(value) and abs(value) < 2**63


TEXT: Kind = "a text", lambda value: isinstance(value, str)
WHOLE: Kind = "a whole number", lambda value: isinstance(value, int) and _is_number(value)
NUMBER: Kind = "a number", _is_number
AMOUNT: Kind = "a number of 0 or more", lambda value: _is_number(value) and value >= 0
PERCENTILE: Kind = "a number between 0 and 100", lambda value: _is_number(value) and 0 < value < 100
OBJECT: Kind = "an object", lambda value: isinstance(value, dict)
LIST: Kind = "a list", lambda value: isinstance(value, list)

SHAPES: dict[str, Kind] = {
    "id": TEXT,
    "status": TEXT,
    "started_ns": WHOLE,
    "finished_ns": WHOLE,
    "pid": WHOLE,
    "pid_since": WHOLE,
    "host": TEXT,
    "versions": OBJECT,
    "totals": OBJECT,
    **{f"totals.{kind}": WHOLE for kind in ("scheduled", *KINDS)},
    "hosts": LIST,
    "hosts[]": OBJECT,
    "endpoints": LIST,
    "endpoints[]": OBJECT,
    "endpoints[].parameters": OBJECT,
    "endpoints[].settings": OBJECT,
    "clock": LIST,
    "clock[]": OBJECT,
    **{f"clock[].{name}": NUMBER for name in ("offset_ns", "error_ns", "drift_ppm", "at_ns")},
    "device_sources": LIST,
    "device_sources[]": OBJECT,
    "device_sources[].changes_s": AMOUNT,
    "device_sources[].period_s": AMOUNT,
    "device_sources[].devices": LIST,
    "device_sources[].devices[]": TEXT,
    "resumed": LIST,
    "resumed[]": OBJECT,
    "resumed[].start_ns": WHOLE,
    "self_check": OBJECT,
    "self_check.safe_rps": AMOUNT,
    "scenario": OBJECT,
    "scenario.name": TEXT,
    "scenario.mode": TEXT,
    "scenario.slo": LIST,
    "scenario.slo[]": OBJECT,
    "scenario.slo[].percentile": PERCENTILE,
    "scenario.slo[].slice": TEXT,
    **{f"scenario.slo[].{name}": AMOUNT for name in ("latency_ms", "max_error_rate", "min_goodput", "min_rate_rps")},
    **{f"scenario.slo[].{name}": OBJECT for name in ("ttft", "tpot")},
    **{f"scenario.slo[].{name}.percentile": PERCENTILE for name in ("ttft", "tpot")},
    **{f"scenario.slo[].{name}.ms": AMOUNT for name in ("ttft", "tpot")},
    "scenario.steps": LIST,
    "scenario.steps[]": OBJECT,
    "scenario.steps[].index": WHOLE,
    "scenario.steps[].endpoint": TEXT,
    "scenario.steps[].rate": AMOUNT,
    "scenario.steps[].seconds": AMOUNT,
    "scenario.steps[].start_ns": WHOLE,
    "scenario.steps[].end_ns": WHOLE,
    "scenario.steps[].settle_s": AMOUNT,
    "scenario.steps[].block": WHOLE,
    "scenario.steps[].concurrency": WHOLE,
}
NEEDED = (
    *("id", "status", "scenario", "scenario.steps", "resumed[].start_ns"),
    *(f"scenario.steps[].{name}" for name in ("index", "endpoint", "rate", "seconds", "start_ns", "end_ns")),
    *(f"scenario.slo[].{name}.{part}" for name in ("ttft", "tpot") for part in ("percentile", "ms")),
)


def misfit(found: Mapping[str, Any]) -> str | None:
    """What is wrong with the first value that is not what it has to be; each is inside one that was seen before."""
    for path, (what, fits) in SHAPES.items():
        for name, value in _at(found, path.split("."), ""):
            if value is None and (path in NEEDED or path.endswith("[]")):
                return f"has no '{name}'"
            if value is not None and not fits(value):
                said = repr(value)
                return f"has a wrong '{name}': it must be {what}, not {said if len(said) < 60 else said[:60] + '…'}"
    return None


def _at(value: Any, path: list[str], where: str) -> Iterator[tuple[str, Any]]:
    """Every value at a path, with its name; what a list lacks is None."""
    if not path:
        yield where.removeprefix("."), value
    elif value is not None:
        key, each, _ = path[0].partition("[]")
        inner = value.get(key)
        if not each:
            yield from _at(inner, path[1:], f"{where}.{key}")
        else:
            for number, one in enumerate(inner or ()):
                yield from _at(one, path[1:], f"{where}.{key}[{number}]")
