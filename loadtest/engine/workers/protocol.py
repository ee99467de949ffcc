"""Whom a conductor works with: the load processes, and what goes on beside the steps. Knows nothing of Locust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.workers.work_order import WorkOrder


class Crew(Protocol):
    """The load processes."""

    problem: str
    """Why one of them can go on no longer; empty where all can."""

    @property
    def distributed(self) -> bool:
        """They are other processes than this one."""

    def members(self) -> list[str]:
        """Those that are ready for orders, in a fixed order."""

    def give(self, member: str, order: WorkOrder) -> None:
        """To get ready for; its start is not said yet."""

    def start(self, member: str, start_ns: int | None) -> None:
        """Of what it was given; None: it is not to be begun."""

    def halt(self) -> None: ...

    def cut(self) -> None:
        """No more of the present order is sent; what is under way is answered."""

    def bases(self, members: Sequence[str], base: Base) -> Mapping[str, Base]:
        """The run's time base for each member's clock."""

    def kill(self, member: str) -> bool:
        """At once, as SIGKILL does; whether that is possible."""

    def priority(self) -> str:
        """How the operating system treats them, for the record."""

    def forget(self) -> None:
        """Lets go of what grows with a run's length."""


class Companion(Protocol):
    """What goes on beside a run's steps."""

    def start(self) -> None: ...

    def stop(self) -> None: ...
