"""The steps of a run: all of them before it starts, or, for a search, the next one when the last has been answered."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tailrate.analysis.records.manifest import in_ns
from tailrate.loadtest.engine.scenario.arrivals import Offsets, Pattern
from tailrate.loadtest.engine.scenario.knee_search import ProbeOutcome
from tailrate.loadtest.engine.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class LoadStep:
    """One endpoint at one rate, or in a closed loop; steps of one `block` belong to one order."""

    index: int
    endpoint: str
    rate: float
    """Requests per second; 0 in a closed loop."""
    seconds: float
    settle_s: float
    block: int
    seed: int
    start_s: float = 0.0
    """When it begins, after its block does."""
    concurrency: int = 0
    """Requests always under way in a closed loop; 0: arrivals follow a schedule."""
    requests: int = 0
    """A closed loop ends after so many, if not 0."""
    twin: bool = False
    """The same endpoint on the same arrivals once more, for the noise between two equal steps."""
    shape: str = ""
    """How its rate changes, where that is not the run's: a chapter's piece of a curve over the whole soak."""
    phase: float = 0.0
    """By which part of a gap even arrivals come later, so that those of steps at once fall between each other."""
    sessions: bool = False
    """Its arrivals begin sessions, whose further turns have no schedule."""
    data_from: int = 0
    """Where requests carry rows of a file: the number of its first arrival's request among those of the run."""

    @classmethod
    def of_manifest(cls, entry: Mapping[str, Any]) -> LoadStep:
        """As a run's manifest has it, among other things of it."""
        return cls(**{key: entry[key] for key in cls.__dataclass_fields__ if key in entry})

    @property
    def begin_ns(self) -> int:
        """When it begins, after its block does."""
        return in_ns(self.start_s)

    @property
    def length_ns(self) -> int:
        """Nothing is sent from then on, after it has begun."""
        return in_ns(self.seconds)

    @property
    def scheduled(self) -> bool:
        """Each of its requests has an instant of its own, whatever is answered."""
        return not (self.concurrency or self.sessions)

    def offsets(self, pattern: Pattern) -> Offsets:
        pattern = replace(pattern, shape=self.shape) if self.shape else pattern
        return pattern.offsets(self.rate, self.seconds, self.seed, self.phase)

    def arrivals(self, pattern: Pattern) -> int:
        """How many there will be; 0 of a closed loop of which nobody knows."""
        return self.requests if self.concurrency else len(self.offsets(pattern))


Blocks = Generator[list[LoadStep], list[ProbeOutcome], None]
"""Gets what the last block showed, for a mode whose next one depends on it."""


def known(blocks: Sequence[list[LoadStep]]) -> Blocks:
    """That are all known before."""
    for block in blocks:  # noqa: UP028 -- `yield from` would send the outcomes to a list
        yield block


class StepPlan:
    """Numbers steps and blocks as they come."""

    def __init__(self, scenario: Scenario, blocks: int = 0, steps: int = 0) -> None:
        """`blocks` and `steps` that were planned before a run was resumed; numbering goes on from there."""
        self.scenario = scenario
        self.blocks: list[list[LoadStep]] = [[]] * blocks
        self._steps = steps

    def step(
        self,
        endpoint: str,
        rate: float,
        seed: int,
        *,
        seconds: float | None = None,
        settle_s: float | None = None,
        **more: Any,
    ) -> LoadStep:
        """As long as the options say where nothing else is; `more` are further fields of it."""
        seconds = self.scenario.step_seconds if seconds is None else seconds
        settle_s = min(self.scenario.settle_seconds if settle_s is None else settle_s, seconds / 2)
        step = LoadStep(self._steps, endpoint, rate, seconds, settle_s, len(self.blocks), seed, **more)
        self._steps += 1
        return step

    def add_at_once(self, endpoints: Sequence[str], rate: float, seed: int, **more: Any) -> list[LoadStep]:
        """A block of all endpoints, each at an equal share of the rate, on arrivals independent of the others'.

        The same instants for all would make every endpoint's requests wait for those of the one that is named first.
        """
        count = len(endpoints)
        steps = [
            self.step(name, rate / count, seed + number, phase=number / count, **more)
            for number, name in enumerate(endpoints)
        ]
        return self.add(*steps)

    def add(self, *steps: LoadStep) -> list[LoadStep]:
        self.blocks.append(list(steps))
        return self.blocks[-1]
