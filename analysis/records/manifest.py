"""The manifest `run.json`: what was driven, where, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tailrate.analysis.records.folder import MANIFEST, RunError, read_json, write_atomically
from tailrate.analysis.records.objective import MAX_RECOVERY_S, Slo
from tailrate.analysis.records.shapes import misfit

SCHEMA = 2
"""Of run folders: 2 has the columns of streams."""
READABLE = (1, 2)
DERIVED_SCHEMA = 1
"""Of what is made of them: `report.json`, the log of runs."""


def formerly(name: str) -> str:
    """The name before the project had its own: run folders of schema 1 and older servers still say it.

    >>> formerly("x-tailrate-clock")
    'x-headroom-clock'
    """
    return name.replace("tailrate", "headroom")


def endpoint_name(entry: Mapping[str, Any]) -> str:
    """What rows call an endpoint of the manifest: the name that it was given, or `model/variant`.

    >>> endpoint_name({"model": "bert", "variant": "eager"}), endpoint_name({"name": "old", "model": "bert"})
    ('bert/eager', 'old')
    """
    return str(entry.get("name") or f"{entry.get('model')}/{entry.get('variant')}")


def in_ns(seconds: float) -> int:
    """A setting as a time: the nearest nanosecond, of 4.1 s not 4,099,999,999."""
    return round(seconds * 1e9)


def settled_ns(step: Mapping[str, Any]) -> int:
    """When the settle time of a step of the manifest is over: its first arrival that counts is due from then on."""
    return int(step["start_ns"]) + in_ns(float(step.get("settle_s") or 0))


STATUSES = ("running", "complete", "aborted")
WRITER = ("pid", "pid_since", "host")
"""Who writes the folder, as long as it is written: its process, when that began (`process.began`), and where."""


@dataclass(slots=True)
class Manifest:
    """`run.json`. Keys beside these are kept in `extra` and written back."""

    id: str
    status: str
    """running, complete or aborted"""
    scenario: dict[str, Any]
    endpoints: list[dict[str, Any]] = field(default_factory=list)
    started_ns: int = 0
    finished_ns: int = 0
    clock: list[dict[str, Any]] = field(default_factory=list)
    hosts: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, Any] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    schema: int = SCHEMA
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def slos(self) -> list[Slo]:
        return [Slo.from_json(found) for found in self.scenario.get("slo") or []]

    @property
    def labelled(self) -> bool:
        """Whether arrivals have labels, which make slices of the report."""
        said = self.scenario.get("data")
        return isinstance(said, dict) and bool(said.get("label"))

    @property
    def streams(self) -> bool:
        """Whether answers of any endpoint come token by token."""
        return any(entry.get("streams") for entry in self.endpoints)

    @property
    def max_recovery_s(self) -> float:
        """How long after a planned fault users may be served worse than before."""
        found = self.scenario.get("max_recovery_s")
        return float(found) if isinstance(found, int | float) and found >= 0 else MAX_RECOVERY_S

    @property
    def max_failed(self) -> float:
        """The share of requests that may fail from a planned fault until users are served as before."""
        found = self.scenario.get("max_failed")
        return float(found) if isinstance(found, int | float) and found >= 0 else 1.0

    def release(self) -> None:
        """Nobody writes the folder any more."""
        for key in WRITER:
            self.extra.pop(key, None)

    def write(self, folder: Path) -> None:
        """Replaces `run.json` at once: a reader sees the old one or the new one, never half."""
        whole = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"} | self.extra
        write_atomically(folder / MANIFEST, json.dumps(whole, indent=1, sort_keys=False) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        path = folder / MANIFEST
        if not folder.is_dir():
            raise RunError(f"{folder} is not a folder; give a run folder, such as runs/20261120T101500Z-bert")
        try:
            found = read_json(path)
        except FileNotFoundError:
            raise RunError(f"{folder} is not a run folder: it has no {MANIFEST}") from None
        if not isinstance(found, dict):
            raise RunError(f"{path} holds no JSON object")
        if found.get("schema") not in READABLE:
            these = " and ".join(map(str, READABLE))
            raise RunError(f"{path} has schema {found.get('schema')!r}, but this version reads schemas {these}")
        # an absent value may be written as null, and the clock of a lone host as one entry
        found = {key: value for key, value in found.items() if value is not None}
        if isinstance(found.get("clock"), dict):
            found["clock"] = [found["clock"]]
        if wrong := misfit(found):
            raise RunError(f"{path} {wrong}")
        if found["status"] not in STATUSES:
            raise RunError(f"{path}: status '{found['status']}' is not one of {', '.join(STATUSES)}")
        known = {f.name for f in fields(cls)} - {"extra"}
        return cls(
            **{key: value for key, value in found.items() if key in known},
            extra={key: value for key, value in found.items() if key not in known},
        )
