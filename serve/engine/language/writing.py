"""One answer on its way: what was asked for, what has been written, and when."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tailrate.serve.engine.job import is_over, late
from tailrate.serve.engine.language.sampling import Likely, Sampling
from tailrate.serve.wire import Array, WireError

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Token:
    """One that was chosen."""

    number: int
    likely: Likely = ()
    """Where that is asked: itself and the most likely ones, each with the logarithm of its probability."""
    finish: Finish | None = None
    """Of the last one."""


@dataclass(slots=True, eq=False)
class Writing:
    """Instants are `time.perf_counter_ns`; what follows `waiter` is the engine's, but for `stopped`."""

    prompt: list[int]
    most: int
    """Tokens of the answer."""
    least: int = 0
    ends: frozenset[int] = frozenset()
    """Tokens that end it, once it has the least."""
    silent: tuple[int, ...] = ()
    """Tokens that show nothing, such as the ends: not chosen before it has the least."""
    sampling: Sampling = field(default_factory=Sampling)
    likely: int | None = None
    """How many likely tokens are wanted beside each; None: not even its own probability."""
    received_ns: int = field(default_factory=time.perf_counter_ns)
    deadline_ns: int | None = None
    gone: Callable[[], bool] | None = None
    waiter: Any = None
    """The submitter's own."""
    number: int = 0
    """By which the engine's process knows it."""
    stopped: bool = False
    """Set by who reads it: nothing more is wanted."""
    tokens: list[int] = field(default_factory=list)
    read: int = 0
    """Of the prompt, and of what was written before it had to begin anew: tokens that are in the cache."""
    begun_ns: int = 0
    first_ns: int = 0
    """When its first token was known."""
    done_ns: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    """Time of the device's in its own prompt's chunks, and in steps that it was in."""
    finish: Finish | None = None
    error: WireError | None = None
    scores: Any = None
    """Those that the last token was chosen by."""
    compiled: bool = False
    """Whether a step that it was in had to wait for the compiler."""
    part_of: None = None

    # what is kept of some, to be compared with the model as it is (see `engine.live_parity`)

    @property
    def tensors(self) -> dict[str, Array]:
        return {"text": np.array([self.all[:-1]], np.int64)}

    @property
    def outputs(self) -> dict[str, Array] | None:
        return None if self.scores is None else {"text": self.scores[None].float().cpu().numpy()}

    @property
    def times(self) -> tuple[int, int, int, int, int, bool]:
        """What the engine notes, for a copy of this in another process."""
        return self.begun_ns, self.first_ns, self.done_ns, self.prefill_ns, self.decode_ns, self.compiled

    @times.setter
    def times(self, noted: tuple[int, int, int, int, int, bool]) -> None:
        self.begun_ns, self.first_ns, self.done_ns, self.prefill_ns, self.decode_ns, self.compiled = noted

    @property
    def all(self) -> list[int]:
        """What the next token follows."""
        return self.prompt + self.tokens

    def take(self, token: int) -> None:
        self.tokens.append(token)
        if len(self.tokens) >= self.least and token in self.ends:
            self.finish = "stop"
        elif len(self.tokens) >= self.most:
            self.finish = "length"

    @property
    def banned(self) -> tuple[int, ...]:
        """Tokens that the next one cannot be."""
        return self.silent if len(self.tokens) < self.least else ()

    def pointless(self, now_ns: int) -> WireError | None:
        """Why it need not be written any further, or None."""
        if is_over(self.deadline_ns, now_ns):
            return late("was written" if self.begun_ns else "was queued")
        if self.stopped or (self.gone is not None and self.gone()):
            return WireError(499, "the client has gone")
        return None
