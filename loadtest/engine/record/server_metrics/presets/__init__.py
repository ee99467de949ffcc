"""Servers whose metrics are known, one file each with a `PRESET`; a new file is found here and needs nothing else.

A preset tells of a server's metrics: each one's kind, meaning, unit and role. What it says goes into the manifest with
the run, so that a folder can be read without the preset, and after that has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

ROLES = {
    "requests": "the server's own count of finished requests",
    "queue": "requests that wait at the server",
    "running": "requests that the server works on",
    "batch": "rows or requests in a batch",
    "cache": "share of the KV cache in use, 1 is full",
    "errors": "requests that the server refused or failed at",
}
"""What a metric is to the report; one without a role is shown and read no further."""


@dataclass(frozen=True, slots=True)
class ServerMetric:
    """One metric of a page. Of a histogram the mean is kept: its `_sum` and `_count`, not its buckets."""

    name: str
    """As samples of the page are called; of a histogram without `_sum` and `_count`."""
    kind: str
    title: str
    """A few words for headings."""
    meaning: str
    """One sentence for people who don't know the server."""
    unit: str = ""
    role: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    """Labels with the values that a sample must have to count."""
    per: str = ""
    """The counter that this one is divided by, where only their quotient says something: rows per batch."""
    factor: float = 1.0
    """What the page's figure is multiplied by to be in `unit`."""
    across: str = "sum"
    """What several series come to at one instant: `sum`, or `max` of shares."""

    @property
    def samples(self) -> tuple[str, ...]:
        """The names on the page that it is made from."""
        if self.kind == HISTOGRAM:
            return f"{self.name}_sum", f"{self.name}_count"
        return (self.name, self.per) if self.per else (self.name,)


@dataclass(frozen=True, slots=True)
class Preset:
    """One server's metrics."""

    title: str
    """The server's name."""
    metrics: Sequence[ServerMetric]
    model: tuple[str, ...] = ()
    """Labels that name the model, of which a series has one at most."""
    version: tuple[str, ...] = ()
    """Labels that name its version or variant."""

    def as_json(self, metric: ServerMetric) -> dict[str, Any]:
        """What the manifest says of one of its metrics."""
        said = {name: getattr(metric, name) for name in metric.__slots__} | {"where": dict(metric.where)}
        return said | {"model_labels": list(self.model), "version_labels": list(self.version)}


def names() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def every() -> Mapping[str, Preset]:
    """By the names of their files."""
    return {name: import_module(f"{__name__}.{name}").PRESET for name in names()}
