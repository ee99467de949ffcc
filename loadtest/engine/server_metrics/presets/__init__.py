"""Servers whose metrics are known, one file each with a `PRESET`; a new file is found here and needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from tailrate.loadtest.engine.server_metrics.preset import Preset


def names() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def load(name: str) -> Preset:
    found: Preset = import_module(f"{__name__}.{name}").PRESET
    return found


def every() -> Mapping[str, Preset]:
    return {name: load(name) for name in names()}
