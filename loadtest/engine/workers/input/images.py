"""A folder of images as rows: their bytes, as the files have them, their names, and the folders that they lie in.

Nothing is decoded, which takes a library that the load side does without; whether a file is what its suffix says is
told from its first bytes, and from its last ones whether it was cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailrate.loadtest.engine.scenario.scenario import ScenarioError

BEGINS = {
    ".jpg": (b"\xff\xd8\xff",),
    ".jpeg": (b"\xff\xd8\xff",),
    ".png": (b"\x89PNG\r\n\x1a\n",),
    ".webp": (b"RIFF",),
    ".gif": (b"GIF87a", b"GIF89a"),
    ".bmp": (b"BM",),
}
"""What a file of each suffix begins with."""
ENDS = {".jpg": b"\xff\xd9", ".jpeg": b"\xff\xd9", ".png": b"IEND"}
"""What is near its end, where it has all of its bytes."""
NEAR = 64 << 10
"""Cameras and editors put notes behind an image."""
IMAGE, NAME, FOLDER = "image", "name", "folder"


def image_columns(folder: Path) -> tuple[int, int, dict[str, Callable[[int], Any]]]:
    """How many images lie in it and the folders below, in the order of their names; their bytes; what gives columns."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in BEGINS and path.is_file())
    for path in paths:
        _check(path)
    names = [path.relative_to(folder).as_posix() for path in paths]
    nbytes = sum(path.stat().st_size for path in paths)
    return (
        len(paths),
        nbytes,
        {
            IMAGE: lambda row: _read(paths[row]),
            NAME: lambda row: names[row],
            FOLDER: lambda row: names[row].rpartition("/")[0],
        },
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise ScenarioError(f"--data: image {path} cannot be read: {problem.strerror or problem}") from None


def _check(path: Path) -> None:
    suffix = path.suffix.lower()
    try:
        with path.open("rb") as file:
            begins = file.read(16)
            file.seek(max(0, path.stat().st_size - NEAR))
            ends = file.read()
    except OSError as problem:
        raise ScenarioError(f"--data: image {path} cannot be read: {problem.strerror or problem}") from None
    if not begins.startswith(BEGINS[suffix]):
        raise ScenarioError(f"--data: {path} is no {suffix[1:].upper()} image: it begins with {begins[:8]!r}")
    if ENDS.get(suffix, b"") not in ends:
        raise ScenarioError(f"--data: image {path} is cut off: its end is missing")
