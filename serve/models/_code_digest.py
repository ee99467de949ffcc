"""What the code of a model is: a digest of its file and of what that imports of its own, however far.

So that what is kept for a model (weights, compiled code) is another's as soon as any of it is written anew. Its own is
what lies in the file's folder, or in the package that the file is part of: what is installed has versions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def installed(package: str) -> str | None:
    """Its version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def digest(file: Path) -> str:
    """Sixteen hex digits."""
    own = folder = file.resolve().parent
    top = folder
    while (top / "__init__.py").is_file():
        own, top = top, top.parent
    seen: set[Path] = set()
    todo = [file.resolve()]
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            todo += (found for found in _imported(path, {folder, top}) if found.is_relative_to(own))
    found = blake2b(digest_size=8)
    for path in sorted(seen):
        found.update(f"{path.relative_to(top)}\0{_read(*_state(path))[0]}\0".encode())
    return found.hexdigest()


def _imported(path: Path, starts: set[Path]) -> Iterator[Path]:
    """The files that one names; `starts` are where names are looked for that don't begin with a dot."""
    for level, name in _read(*_state(path))[1]:
        for start in {path.parents[level - 1]} if level else starts:
            yield from _files(start, name.split("."))


def _files(start: Path, words: list[str]) -> Iterator[Path]:
    """A module, and the packages that it is in; of a name in a module, that module."""
    for word in words:
        start = start / word
        if (file := start.with_name(f"{word}.py")).is_file():
            yield file.resolve()
        if not start.is_dir():
            return
        if (file := start / "__init__.py").is_file():
            yield file.resolve()


def _state(path: Path) -> tuple[Path, int, int]:
    found = path.stat()
    return path, found.st_mtime_ns, found.st_size


@lru_cache(512)
def _read(path: Path, mtime_ns: int, size: int) -> tuple[str, tuple[tuple[int, str], ...]]:
    """The digest of a file in that state, and (level, name) of each import in it."""
    source = path.read_bytes()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # whoever imports it will say so
        tree = ast.Module([], [])
    names: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names += [(node.level, ".".join(filter(None, (module, alias.name)))) for alias in node.names]
    return blake2b(source, digest_size=8).hexdigest(), tuple(names)
