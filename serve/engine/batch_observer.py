"""Who is told of an engine's batches, such as to profile, to sample, or to count what the compiler did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from tailrate.serve.wire import Array

_NOTHING = nullcontext()


class Seen(Protocol):
    """A request that was in a batch."""

    compiled: bool
    """Set where it had to wait for the compiler."""

    @property
    def part_of(self) -> Any:
        """What asks for the whole that it is a part of; None: it is whole."""

    @property
    def tensors(self) -> Mapping[str, Array]: ...

    @property
    def outputs(self) -> Mapping[str, Array] | None:
        """None where this batch was not its last."""


class Onlooker:
    """Called in the engine's thread; this one takes no notice."""

    def batch(self) -> AbstractContextManager[None]:
        """Entered around each batch while it is begun."""
        return _NOTHING

    def ran(self, jobs: Sequence[Seen]) -> None:
        """They have their outputs and are about to be delivered."""
        return

    def idle(self) -> float | None:
        """Nothing waits and nothing runs. In how many seconds to be called again; None: after the next batch."""
        return None
