"""Prompts that no request before had: words drawn for each, so that no server's cache of prefixes does the work.

Without a tokenizer nobody here knows how many tokens a word is; what the server counts is in the rows. A prefix that
all prompts share is there only where it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from tailrate.loadtest.engine.workers.input.lengths import Lengths
from tailrate.serve.wire import Array

SYLLABLES = ("ba", "co", "di", "fu", "ga", "he", "jo", "ku", "la", "mi", "no", "pe", "ra", "so", "ti", "vu", "we", "za")
SHARED = 1 << 40
"""The number, as it were, of the prompt that all begin with."""


@dataclass(frozen=True)
class Prompts:
    """Stands where a file's rows do: prompt number n is the same wherever it is asked for."""

    seed: int
    prompt_tokens: Lengths
    output_tokens: Lengths
    shared_prefix: int = 0
    """Words that all begin with."""

    own: ClassVar[bool] = False
    labels: ClassVar[Sequence[str | None]] = ()
    name: ClassVar[str] = "the prompts"

    @property
    def file(self) -> str:
        return repr(self)

    def as_json(self) -> dict[str, Any]:
        lengths = {"prompt_tokens": str(self.prompt_tokens), "output_tokens": str(self.output_tokens)}
        return {"prompts": {**lengths, "shared_prefix": self.shared_prefix}}

    def label(self, row: int) -> str | None:
        return None

    def shares(self) -> dict[str, float]:
        return {}

    def inputs(self, rows: Sequence[int]) -> dict[str, Array]:
        (number,) = rows
        rng = np.random.default_rng([self.seed, number])
        length, most = self.prompt_tokens.draw(rng), self.output_tokens.draw(rng)
        words = [*self._shared[:length], *_words(rng, max(0, length - self.shared_prefix))]
        return {"prompt": np.array([" ".join(words)], object), "max_tokens": np.array([most])}

    @cached_property
    def _shared(self) -> list[str]:
        return _words(np.random.default_rng([self.seed, SHARED]), self.shared_prefix)


def _words(rng: np.random.Generator, many: int) -> list[str]:
    """Of two syllables each."""
    drawn = rng.integers(0, len(SYLLABLES), (many, 2)).tolist()
    return [SYLLABLES[first] + SYLLABLES[last] for first, last in drawn]
