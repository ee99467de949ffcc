"""One file per fault of the load side, which needs nobody's consent: its name is the file's, its `FAULT` a `LoadFault`.

Those that the server is asked for are `tailrate.serve.faults`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tailrate.serve.faults import FaultKind, declared, server_faults


class RefusedError(Exception):
    """A fault that was not injected: one sentence that says why."""


class Endpoint(Protocol):
    """The client of the endpoint, as far as faults go past it."""

    url: str
    prefix: str
    access: Any

    @property
    def fields(self) -> bytes:
        """What each request's header begins with."""


class Crew(Protocol):
    """The load processes, as far as one of them can be killed."""

    def members(self) -> list[str]: ...

    def kill(self, member: str) -> bool:
        """At once, as SIGKILL does; whether that is possible."""


class Collector(Protocol):
    """What asks for device samples, as far as it can be interrupted."""

    @property
    def host(self) -> str:
        """Empty: nobody sends any."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def forget(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LoadSide:
    """What a fault can break here."""

    client: Endpoint
    crew: Crew
    collector: Collector
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFault(FaultKind):
    lasting: Callable[[LoadSide, str, float], AbstractContextManager[str]]
    """(what can be broken, target, seconds) → a context that lasts as long as the fault does: it yields the sentence
    that says what was done, and undoes it at its end; `RefusedError` says why it was not."""


def kinds() -> dict[str, FaultKind]:
    """By name, what a plan may ask for: of the server first, then of the load side."""
    return {**server_faults(), **declared(__name__)}
