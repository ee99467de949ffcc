"""One file per fault that the server does on request: its name is the file's, its `FAULT` a `ServerFault`.

The load side reads here what a plan may ask for, so nothing but the standard library and the wire is imported.
"""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol

from tailrate.serve.wire import WireError

MOST_SECONDS = 3600.0
"""How long a fault may last."""

Kill = Callable[[str], str]
"""Kills what the target names and says what it was; raises `WireError` 409 where that cannot be."""


def number(text: str, below: float = math.inf) -> float | None:
    """None for what is no number of at least 0 and below that."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < below else None


def amount(text: str, name: str) -> float:
    """A number that the server was asked for."""
    value = number(text)
    if value is None:
        raise WireError(400, f"{name} must be a number of at least 0, not '{text[:64]}'")
    return value


@dataclass(frozen=True, slots=True)
class Target:
    """What a fault may be aimed at."""

    what: str
    empty: str = ""
    """What is hit where none is named; without this, one must be."""
    below: float | None = None
    """It is a number from 0 to below this; None: a text."""

    def __str__(self) -> str:
        return f"{self.what}; empty: {self.empty}" if self.empty else self.what

    def takes(self, target: str) -> bool:
        if not target:
            return bool(self.empty)
        return self.below is None or number(target, self.below) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One way in which something breaks, as far as a plan has to know it."""

    word: str
    """What it is called in a plan of names, where it needs no target."""
    seconds: float = 0
    """How long it lasts where nothing else is said; 0: it happens at once."""
    target: Target | None = None
    place: int = 100
    """In lists; of one place, they stand by name."""

    def takes(self, target: str) -> bool:
        return self.target.takes(target) if self.target else not target


class Board(Protocol):
    """What is known of the replicas."""

    endpoints: tuple[tuple[str, str], ...]

    def reports(self, name: tuple[str, str], now_s: float) -> list[Mapping[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class ServerSide:
    """What a fault can break here, and what it has begun."""

    board: Board
    kills: Mapping[str, Kill]
    """Given by whoever knows Ray: a replica (by its id), the ingress, a node (by its host; empty: any but the head)."""
    later: set[asyncio.Task[None]] = field(default_factory=set)
    """What happens after the answer."""
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def killing(self, what: str) -> Kill:
        if what not in self.kills:
            raise WireError(409, f"this server has no {what} that could be killed")
        return self.kills[what]

    async def kill(self, what: str, target: str) -> str:
        return await asyncio.to_thread(self.killing(what), target)

    def start(self, pipe: int, *words: str) -> subprocess.Popen[str]:
        """A Python of its own, which ends by itself, or with this process."""
        self.processes[:] = [process for process in self.processes if process.poll() is None]
        command = [sys.executable, *words]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFault(FaultKind):
    strike: Callable[[ServerSide, str, float], Awaitable[str]]
    """(what can be broken, target, seconds) → the sentence that says what was done; `WireError` 409 says why not."""


def declared(package: str) -> dict[str, Any]:
    """By the names of a package's files, in their places, the `FAULT` that each declares."""
    files = [file.name for file in iter_modules(sys.modules[package].__path__)]
    found = {name: import_module(f"{package}.{name}").FAULT for name in files}
    return dict(sorted(found.items(), key=lambda item: (item[1].place, item[0])))


def server_faults() -> dict[str, ServerFault]:
    return declared(__name__)
