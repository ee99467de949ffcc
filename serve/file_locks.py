"""Files that a process holds locked as long as it lives, whatever ends it: one writer at a time, and proof of life."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
    """One process at a time; the others wait, and call `waits` before they do. Its time is that of its last use."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held = _open(path)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(held, fcntl.LOCK_EX)
        os.utime(held)
        yield
    finally:
        os.close(held)


@contextmanager
def at_once(path: Path) -> Iterator[bool]:
    """`locked` for who does not wait and does not use it: whether the lock was free, and is held now.

    Its time stays; one that was not there is made without.
    """
    fresh = not path.exists()
    held = _open(path)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        if fresh:
            os.utime(held, (0, 0))
        yield True
    finally:
        os.close(held)


def live(path: Path) -> int:
    """A file that is locked before it is there, and until the process ends or closes what this returns."""
    scratch = path.with_name(path.name + ".part")
    held = _open(scratch)
    fcntl.flock(held, fcntl.LOCK_EX)
    scratch.rename(path)
    return held


def grip(path: Path) -> int | None:
    """The lock of a file of this user's whose holder is gone; None where it is held, or no such file."""
    try:
        held = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(held).st_uid == os.geteuid():
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return held
    except OSError:
        pass
    os.close(held)
    return None


def _open(path: Path) -> int:
    """For this user, and no other file that a link may lead to; what is in it stays."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
