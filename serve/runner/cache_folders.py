"""What lies in the cache folder: its size, its last use, whether a process uses it now; and its removal.

Ours is what has the place and the form of name that `artefacts`, `weights` or `profiling` give, and is this user's.
All else is told and stays, and no link is followed. What is removed is locked meanwhile, as by whoever would make it
anew; what somebody else has locked stays. The lock files themselves, all of them empty, stay too: a process may be
waiting for one, and another that finds none would make its own and not wait for the first.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from tailrate.serve import file_locks
from tailrate.serve.spec import ServeError

NAMES = {
    "compiled": re.compile(r".+-torch.+-[0-9a-f]{12}(\.aside)?"),
    "weights": re.compile(r".+-[0-9a-f]{8,12}-seed-?\d+\.(safetensors|part)"),
    "profiles": re.compile(r".+-\d{8}T\d{6}-\d{6}\.json\.gz"),
}
"""Of what may be removed, by the folder that it is in."""
IN_USE = "a process uses it"
UNITS_S = {"h": 3600.0, "d": 86_400.0, "w": 604_800.0}


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that is kept."""

    kind: str
    path: Path
    bytes: int
    used_s: float
    """When a process last took it up, on the wall clock: a server does so once, when it starts."""
    locked: bool
    """Whether a process is loading or making it at this moment."""

    @property
    def name(self) -> str:
        return self.path.name


@dataclass(frozen=True, slots=True)
class Removal:
    """What became of an item; `why` says for what reason it stays."""

    item: Item
    why: str = ""
    failed: bool = False
    """Whether it stays because the operating system refused."""


def age_s(text: str) -> float:
    """Seconds of an age.

    >>> age_s("30d"), age_s("1.5h")
    (2592000.0, 5400.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([hdw])", text.strip(), re.ASCII)
    if not found:
        raise ServeError(f"--older-than '{text}' is not understood; write for instance 12h, 30d or 8w")
    return float(found[1]) * UNITS_S[found[2]]


def listed(cache: Path) -> tuple[list[Item], list[Path]]:
    """What is ours, least recently used first; and everything else that lies there."""
    items, others = [], []
    for path in _inside(cache):
        name = NAMES.get(path.name)
        if name is None or path.is_symlink() or not path.is_dir():
            others.append(path)
            continue
        for found in _inside(path):
            if name.fullmatch(found.name) and _is_ours(path.name, found):
                with suppress(FileNotFoundError):  # removed since
                    items.append(_item(path.name, found))
            elif not (found.suffix == ".lock" and found.is_file() and not found.is_symlink()):
                others.append(found)
    return sorted(items, key=lambda item: item.used_s), others


def chosen(items: Sequence[Item], now_s: float, older_s: float | None, most_bytes: float | None) -> Iterator[Item]:
    """Those of `listed` to be removed: what was used before that age; then the oldest others, until the rest fits.

    What is locked stays, so others have to go for it.
    """
    if most_bytes is not None and not (isfinite(most_bytes) and most_bytes >= 0):
        raise ServeError("--keep-gb must be a number of gigabytes from 0 up")
    total = sum(item.bytes for item in items)
    for item in items:
        old = older_s is not None and now_s - item.used_s > older_s
        if old or (most_bytes is not None and total > most_bytes):
            total -= 0 if item.locked else item.bytes
            yield item


def removed(item: Item) -> Removal:
    """For good, with its lock held. What a process used since it was listed stays."""
    try:
        if item.kind == "profiles":  # written once, by a process that keeps no lock
            return _removed(item)
        with file_locks.at_once(_lock(item.kind, item.path)) as free:
            return _removed(item) if free else Removal(item, IN_USE)
    except FileNotFoundError:  # somebody else was faster
        return Removal(item)
    except OSError as problem:
        return Removal(item, f"it cannot be removed: {problem.strerror or problem}", failed=True)


def tried(item: Item) -> Removal:
    """What would become of it, by what the list says."""
    return Removal(item, IN_USE if item.locked else "")


def as_json(
    folder: Path, items: Sequence[Item], others: Sequence[Path], became: Mapping[Item, str], now_s: float
) -> dict[str, Any]:
    """What `tailrate cache --json` prints."""
    rows = [
        {"kind": item.kind, "path": str(item.path), "bytes": item.bytes, "age_s": round(now_s - item.used_s)}
        | {"in_use": item.locked, "outcome": became.get(item)}
        for item in items
    ]
    rest = [{"path": str(path), "bytes": size(path)} for path in others]
    return {"folder": str(folder), "bytes": sum(item.bytes for item in items), "items": rows, "others": rest}


def age(seconds: float) -> str:
    """In the largest unit of which there are two.

    >>> age(7000), age(47 * 3600), age(40 * 86400)
    ('1 h ago', '47 h ago', '40 d ago')
    """
    hours = int(max(0.0, seconds) // 3600)
    return f"{hours} h ago" if hours < 48 else f"{hours // 24} d ago"


def size(path: Path) -> int:
    """Bytes of a file, or of the files in a folder; links count as what they are."""
    if path.is_symlink() or not path.is_dir():
        return _bytes(path)
    return sum(_bytes(Path(where, name)) for where, _, names in os.walk(path) for name in names)


def _removed(item: Item) -> Removal:
    if _used_s(item.kind, item.path) != item.used_s:
        return Removal(item, "a process has used it meanwhile")
    if item.kind == "compiled":
        shutil.rmtree(item.path)  # which follows no link, not even one that has come in its place
    else:
        item.path.unlink()
    return Removal(item)


def _item(kind: str, path: Path) -> Item:
    lock = _lock(kind, path)
    held = False
    if kind != "profiles" and os.path.lexists(lock):
        grip = file_locks.grip(lock)
        held = grip is None
        if grip is not None:
            os.close(grip)
    return Item(kind, path, size(path), _used_s(kind, path), held)


def _lock(kind: str, path: Path) -> Path:
    """The file that its makers lock: of a folder beside it, of weights in place of their suffix."""
    return path.with_suffix(".lock") if kind == "weights" else path.with_name(path.name + ".lock")


def _used_s(kind: str, path: Path) -> float:
    """A lock's time is that of its last use; without one, as in an image, that of the making is all there is."""
    times = [path.lstat().st_mtime]
    if os.path.lexists(lock := _lock(kind, path)):
        times.append(lock.lstat().st_mtime)
    return max(times)


def _is_ours(kind: str, path: Path) -> bool:
    """Whether it is the kind of file that we make there, this user's, and no link."""
    try:
        right = path.is_dir() if kind == "compiled" else path.is_file()
        return right and not path.is_symlink() and path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise ServeError(f"{folder} cannot be read: {problem.strerror}") from None


def _bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # another process has removed it
        return 0
