"""What a model says of the knee, as one line of JSON: from the program that asks the model to the search that wants it.

`planning.knee_guess` prints the line, `scenario.knee_guide` reads it; neither imports the other.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class KneeGuess:
    """With `reason` the model cannot say, and the rest may be missing."""

    knee_rps: float | None = None
    """Requests per second, as the rates below."""
    low_rps: float | None = None
    high_rps: float | None = None
    """Between these with 99 %; None while no step near the knee has corrected it."""
    near: int = 0
    """Steps that corrected it."""
    error: float | None = None
    """By how much, beyond chance, the rate was off before the correction."""
    reason: str | None = None

    def as_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> KneeGuess:
        return cls(**json.loads(line))
