"""Prompts that no request before had: words drawn for each, so that no server's cache of prefixes does the work.

Without a tokenizer (`--tokenizer`) nobody here knows how many tokens a word is; what the server counts is in the rows.
A prefix that all prompts share is there only where it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from tailrate.loadtest.engine.workers.input.dialogue import TURN_BITS, Dialogue
from tailrate.loadtest.engine.workers.input.lengths import Lengths
from tailrate.loadtest.engine.workers.input.request_trace import BLOCK, Recorded, RequestTrace
from tailrate.loadtest.engine.workers.input.tokenizer import Tokenizer
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
    recorded: RequestTrace | None = None
    """Whose lengths count instead, request by request."""
    dialogue: Dialogue | None = None
    """Where a session has several turns."""
    tokenizer: Tokenizer | None = None
    """Which says what a token is."""

    own: ClassVar[bool] = False
    labels: ClassVar[Sequence[str | None]] = ()
    name: ClassVar[str] = "the prompts"

    @property
    def file(self) -> str:
        return repr(self)

    def as_json(self) -> dict[str, Any]:
        lengths = {"prompt_tokens": str(self.prompt_tokens), "output_tokens": str(self.output_tokens)}
        found: dict[str, Any] = {"lengths": str(self.recorded)} if self.recorded else lengths
        found |= {"shared_prefix": self.shared_prefix}
        if self.tokenizer:
            found |= {"tokenizer": str(self.tokenizer.path)}
        if self.dialogue:
            found |= {"turns": str(self.dialogue.turns), "think_s": str(self.dialogue.think_s)}
        return {"prompts": found}

    def label(self, row: int) -> str | None:
        return None

    def shares(self) -> dict[str, float]:
        return {}

    def inputs(self, rows: Sequence[int]) -> dict[str, Array]:
        (number,) = rows
        rng = np.random.default_rng([self.seed, number])
        if self.recorded:
            text, most = self._as_recorded(self.recorded.requests, number, rng)
        else:
            length, most = self.prompt_tokens.draw(rng), self.output_tokens.draw(rng)
            later_turn = number >> TURN_BITS
            text = " ".join(_words(rng, length) if later_turn else self._with_shared(length, rng))
            if self.tokenizer:  # a word is a token or more
                text = self.tokenizer.cut(text, length)
        return {"prompt": np.array([text], object), "max_tokens": np.array([most])}

    def _as_recorded(self, requests: Sequence[Recorded], number: int, rng: np.random.Generator) -> tuple[str, int]:
        """Blocks that were equal are equal, but not those of another time through the trace."""
        turn, row = divmod(number, len(requests))
        found = requests[row]
        if found.text:
            return " ".join([*self._shared, found.text]), found.output_tokens
        if not found.blocks:
            return " ".join(self._with_shared(found.prompt_tokens, rng)), found.output_tokens
        words = list(self._shared)
        for block in found.blocks:
            words += _words(np.random.default_rng([self.seed, SHARED, turn, block % SHARED]), BLOCK)
        return " ".join(words[: len(self._shared) + found.prompt_tokens]), found.output_tokens

    def _with_shared(self, length: int, rng: np.random.Generator) -> list[str]:
        return [*self._shared[:length], *_words(rng, max(0, length - self.shared_prefix))]

    @cached_property
    def _shared(self) -> list[str]:
        return _words(np.random.default_rng([self.seed, SHARED]), self.shared_prefix)


def _words(rng: np.random.Generator, many: int) -> list[str]:
    """Of two syllables each."""
    drawn = rng.integers(0, len(SYLLABLES), (many, 2)).tolist()
    return [SYLLABLES[first] + SYLLABLES[last] for first, last in drawn]
