"""A language model's server in virtual time: so many slots, one step for all that are in one, prompts in between.

Each turn of its loop takes in what waits and has a slot (`prefill_s` each), then makes a token for every answer that
has begun (`step_s`, and `each_s` for each of them). The first token of an answer comes with its own turn. So time to
the first token grows with the queue for slots, and time per token with how many answers are under way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Slots:
    name: str
    slots: int
    prefill_s: float
    step_s: float
    each_s: float
    least: int
    """Tokens of an answer, two or more: from, …"""
    most: int
    """… to, each equally likely."""
    ttft_ms: float
    """P99 at most."""
    tpot_ms: float

    @property
    def slo(self) -> str:
        return f"p99 ttft<{self.ttft_ms:g}ms, p99 tpot<{self.tpot_ms:g}ms"

    @property
    def most_rps(self) -> float:
        """With all slots full all the time."""
        return 1 / (self.prefill_s + (self.step_s / self.slots + self.each_s) * (self.least + self.most) / 2)

    def answers(self, at_s: Floats, rng: np.random.Generator) -> tuple[Floats, Floats, Ints]:
        """When the first and the last token of each arrival come, and how many there are."""
        tokens = rng.integers(self.least, self.most + 1, len(at_s))
        first, last = _answers(at_s, tokens, self.slots, self.prefill_s, self.step_s, self.each_s)
        return first, last, tokens

    def figures_ms(self, at_s: Floats, rng: np.random.Generator) -> dict[str, Floats]:
        first, last, tokens = self.answers(at_s, rng)
        return {"ttft": (first - at_s) * 1e3, "tpot": (last - first) * 1e3 / (tokens - 1)}

    def missed(self, at_s: Floats) -> float:
        """The larger share of those that miss a limit; the same answers at every rate."""
        found = self.figures_ms(at_s, np.random.default_rng(1))
        return max(float((found["ttft"] > self.ttft_ms).mean()), float((found["tpot"] > self.tpot_ms).mean()))


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _answers(
    at_s: Floats, tokens: Ints, slots: int, prefill_s: float, step_s: float, each_s: float
) -> tuple[Floats, Floats]:
    n = len(at_s)
    first, last = np.empty(n), np.empty(n)
    held, left = np.empty(slots, np.int64), np.zeros(slots, np.int64)
    now, waiting, active = 0.0, 0, 0
    while waiting < n or active:
        if not active and waiting < n and at_s[waiting] > now:
            now = at_s[waiting]
        begun = active
        while waiting < n and active < slots and at_s[waiting] <= now:
            held[active], left[active] = waiting, tokens[waiting]
            active += 1
            waiting += 1
            now += prefill_s
        now += step_s + each_s * active
        kept = 0
        for k in range(active):
            i = held[k]
            if k >= begun:
                first[i] = now
            left[k] -= 1
            if left[k] == 0:
                last[i] = now
            else:
                held[kept], left[kept] = i, left[k]
                kept += 1
        active = kept
    return first, last


@cache
def true_knee(system: Slots, arrivals: int = 1_000_000) -> float:
    """The rate at which just a hundredth misses either limit; the same arrivals at every rate."""
    gaps = np.random.default_rng(0).exponential(1.0, arrivals)
    low, high = 0.0, system.most_rps
    for _ in range(14):
        rate = (low + high) / 2
        low, high = (low, rate) if system.missed(np.cumsum(gaps / rate)) > 0.01 else (rate, high)
    return (low + high) / 2


BY_QUEUE = Slots("slots by TTFT", 16, 0.0025, 0.001, 0.00005, 20, 60, 40.0, 15.0)
BY_BATCH = Slots("slots by TPOT", 64, 0.001, 0.001, 0.00015, 20, 60, 500.0, 5.5)
