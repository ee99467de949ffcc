"""Who is told of an engine's batches, such as to profile, to sample, or to count what the compiler did."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from tailrate.serve.engine.job import Job

_NOTHING = nullcontext()


class Onlooker:
    """Called in the engine's thread; this one takes no notice."""

    def batch(self) -> AbstractContextManager[None]:
        """Entered around each batch while it is begun."""
        return _NOTHING

    def ran(self, jobs: Sequence[Job]) -> None:
        """They have their outputs and are about to be delivered."""
        return

    def idle(self) -> float | None:
        """Nothing waits and nothing runs. In how many seconds to be called again; None: after the next batch."""
        return None
