"""What a load process is told to do: a block of steps, when it begins, and which share is its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.endpoint.target import Endpoint
from tailrate.loadtest.engine.scenario.arrivals import Pattern
from tailrate.loadtest.engine.scenario.steps import LoadStep
from tailrate.loadtest.engine.workers.null_server import Pace


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """A block's steps, when it starts (the run's wall clock), and which share of them is ours."""

    number: int
    start_ns: int
    """0 until it is said."""
    base: Base
    """For the clock of the process that gets it."""
    index: int
    count: int
    pattern: Pattern
    steps: tuple[LoadStep, ...]
    endpoints: tuple[Endpoint, ...]
    """Of each step."""
    answer: bytes = b""
    """Given: not at the endpoint, but at a null server on this machine that answers so, to see what it can do."""
    pace: Pace = ()
    """In pieces: where each ends, and its ms after the request."""

    def begun_ns(self, step: LoadStep) -> int:
        """When it begins, by the clock of the process that has the order."""
        return self.base.monotonic_ns(self.start_ns) + step.begin_ns

    def as_message(self) -> dict[str, Any]:
        return asdict(self) | {"endpoints": [endpoint.as_message() for endpoint in self.endpoints]}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> WorkOrder:
        steps = tuple(LoadStep(**step) for step in message["steps"])
        pattern = Pattern(**{**message["pattern"], "trace_ns": tuple(message["pattern"]["trace_ns"])})
        endpoints = tuple(Endpoint(**endpoint) for endpoint in message["endpoints"])
        whole = {"base": Base(**message["base"]), "pattern": pattern, "steps": steps, "endpoints": endpoints}
        whole["pace"] = tuple(tuple(piece) for piece in message["pace"])
        return cls(**{**message, **whole})
