"""How many tokens a prompt or an answer is to have, how many turns a session, how long its user thinks: the same for
all, or drawn."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np

from tailrate.loadtest.engine.scenario.scenario import ScenarioError

MOST = 1_000_000
EXAMPLES = "512, uniform:100:900, normal:512:128, lognormal:512:0.6 (median, sigma)"
SHAPES = {"uniform": 2, "normal": 2, "lognormal": 2}
"""With how many numbers each is written."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """
    >>> Lengths.parse("512", "--prompt-tokens")
    Lengths(shape='', numbers=(512.0,))
    """

    shape: str
    numbers: tuple[float, ...]

    @classmethod
    def parse(cls, text: str, option: str, least: float = sys.float_info.min) -> Lengths:
        shape, *words = ["", *text.split(":")] if ":" not in text else text.split(":")
        try:
            numbers = tuple(map(float, words))
        except ValueError:
            numbers = ()
        right = len(numbers) == (SHAPES.get(shape, 0) if shape else 1)
        if (
            not right
            or not all(least <= number <= MOST for number in numbers)
            or (shape == "uniform" and numbers[0] > numbers[1])
        ):
            raise ScenarioError(f"{option} '{text}' is not understood; write for instance {EXAMPLES}")
        return cls(shape, numbers)

    def __str__(self) -> str:
        return ":".join(filter(None, [self.shape, *(f"{number:g}" for number in self.numbers)]))

    def draw(self, rng: np.random.Generator) -> int:
        """A number of things."""
        if self.shape == "uniform":
            return max(int(rng.integers(int(self.numbers[0]), int(self.numbers[1]) + 1)), 1)
        return max(round(self.measure(rng)), 1)

    def measure(self, rng: np.random.Generator) -> float:
        """Such as of seconds."""
        first, *more = self.numbers
        match self.shape:
            case "uniform":
                found = rng.uniform(first, more[0])
            case "normal":
                found = rng.normal(first, more[0])
            case "lognormal":
                found = first * math.exp(more[0] * rng.standard_normal())
            case _:
                found = first
        return min(max(found, 0.0), MOST)
