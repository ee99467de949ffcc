"""What looks on while an engine runs: the compiler's work, a profile that was asked for, responses to compare.

One `Onlooker` for all three, so that the engine knows of none of them. What it sees goes to the counters, to the
jobs that had to wait for it, and to the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tailrate.serve.engine.batch_observer import Onlooker, Seen
from tailrate.serve.engine.live_parity import Reference, Samples
from tailrate.serve.engine.profiling import Profiler
from tailrate.serve.options import ServeOptions
from tailrate.serve.runner.compile_watch import Compiler
from tailrate.serve.runner.parity import Parity
from tailrate.serve.spec import ModelSpec
from tailrate.serve.telemetry.statistics import Counters


class Observers(Onlooker):
    """Of one replica."""

    def __init__(self, options: ServeOptions, spec: ModelSpec, name: str, counters: Counters) -> None:
        self._counters = counters
        self._compiler: Compiler | None = None
        self.profiler = Profiler(options.cache_folder / "profiles", name, counters.event)
        self.profiled = self.profiler.profiled
        self.samples = Samples(
            options.parity_share, options.seed, [output.name for output in spec.outputs], counters.event
        )

    def opened(self, compiler: Compiler, reference: Reference | None, failure: Callable[[Parity], str | None]) -> None:
        """The model is ready; `failure` says what is wrong with a comparison, if anything."""
        self._compiler = compiler
        if reference is not None:
            self.samples.compare_with(reference, failure)

    def batch(self) -> AbstractContextManager[None]:
        return self.profiler.batch()

    def ran(self, jobs: Sequence[Seen]) -> None:
        # with several batches in flight it may have been the one behind that had to wait
        if self._compiler is not None and (kind := self._compiler.happened()) is not None:
            self._counters.compiled(kind, len(jobs))
            for job in jobs:
                job.compiled = True
                if job.part_of is not None and (whole := job.part_of()) is not None:
                    whole.compiled = True
        self.samples.batch(jobs)

    def idle(self) -> float | None:
        return self.samples.idle()

    def facts(self) -> dict[str, Any]:
        """For the metadata; what the compiler did is among the runner's own."""
        return self.samples.facts()
