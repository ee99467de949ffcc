"""Sessions of several turns: an arrival begins one, and each further turn is due a think time after the last answer.

Open between sessions, as arrivals are scheduled whatever the server does, and closed within one, as nobody goes on
before the answer. All that was said before goes along. Pure: who asks for the same session gets the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailrate.loadtest.engine.scenario.arrivals import Arrival
from tailrate.loadtest.engine.workers.input.lengths import Lengths
from tailrate.loadtest.engine.workers.input.requests import ReadyRequest

TURN_BITS = 41
"""Of the number of a prompt: which session's it is; above them, which turn it is of."""


@dataclass(frozen=True)
class Dialogue:
    seed: int
    turns: Lengths
    think_s: Lengths

    def count(self, session: int) -> int:
        return self.turns.draw(np.random.default_rng([self.seed, session, 0]))

    def think(self, session: int, turn: int) -> float:
        """Seconds before a turn."""
        return self.think_s.measure(np.random.default_rng([self.seed, session, turn]))


@dataclass(frozen=True, slots=True)
class Turn(Arrival):
    """One that was not scheduled, but came of an answer."""

    session: int
    turn: int
    said: tuple[str, ...]
    """By both, in turns, up to its own prompt."""
    request: ReadyRequest


def prompt_number(session: int, turn: int) -> int:
    return session | turn << TURN_BITS
