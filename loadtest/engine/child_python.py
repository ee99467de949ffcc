"""Our own programs as Python processes, which find this very package and nothing of the working directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tailrate

ROOT = Path(tailrate.__file__).absolute().parents[1]
"""What holds the package: a checkout, or a folder of installed packages."""


def command(module: str, *words: str) -> list[str]:
    # -P: a file there that is named like a module would run instead of it
    return [sys.executable, "-P", "-m", module, *words]


def locust(*words: str) -> list[str]:
    return command("tailrate.loadtest._locust", *words)


def environment() -> dict[str, str]:
    """Also where the package was not installed but found by a path."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
