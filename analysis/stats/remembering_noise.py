"""Noise of a series in which neighbouring blocks resemble each other: autoregressive, fitted and drawn again.

Pure: arrays in, arrays out. How much chance shows in these draws is what a change of the series is held against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tailrate.analysis.stats.array_types import Floats, Ints

DRAWS = 400
ORDER = 4
"""Blocks back that the noise remembers at most."""
MOST_CARRY = 0.97
"""Of a block that carries over to the next: more would be a random walk, of which nothing can be said."""
_EULER = 0.5772156649


@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """Autoregressive noise: what of the blocks before carries over, and the deviation of what is new."""

    carry: Floats
    fresh: float
    known: Ints

    @classmethod
    def of(cls, left: Floats, known: Ints, floor: float) -> Noise:
        """Fitted to what is left."""
        carry, fresh = fit(left, known)
        return cls(carry[0], float(fresh[0]), known) if fresh[0] > floor else cls(0 * carry[0], floor, known)

    def unbiased(self, carry: Floats, fresh: Floats) -> Noise:
        """Bias-corrected: adds what fitting again to simulated noise underestimates (Kilian 1998)."""
        better = 2 * self.carry - carry.mean(axis=0)
        for _ in range(50):
            if np.abs(np.roots(np.append(1.0, -better))).max(initial=0.0) < MOST_CARRY:
                break
            better = 0.5 * (better + self.carry)
        return Noise(better, self.fresh**2 / float(fresh.mean()), self.known)

    @property
    def long_run(self) -> float:
        return self.fresh / (1 - float(self.carry.sum()))

    def draw(self, rng: np.random.Generator) -> Floats:
        """As often as `DRAWS` says, a column each, at the known blocks."""
        order, settle = len(self.carry), 60
        places = self.known - self.known[0] + settle
        news = rng.normal(0.0, self.fresh, size=(int(places[-1]) + 1, DRAWS))
        for k in range(order, len(news)):
            news[k] += self.carry[::-1] @ news[k - order : k]
        drawn: Floats = news[places]
        return drawn


def fit(left: Floats, known: Ints) -> tuple[Floats, Floats]:
    """Of each column: how the blocks before carry over (Yule and Walker), and the deviation of what is new."""
    n, columns = left.shape
    order, places = min(ORDER, n // 12), known - known[0]
    length = int(places[-1]) + 1
    whole, there = np.zeros((length, columns)), np.zeros(length)
    whole[places], there[places] = left, 1.0
    cov = np.empty((order + 1, columns))
    for lag in range(order + 1):
        pairs = max(1.0, float(there[lag:] @ there[: length - lag]))
        cov[lag] = (whole[lag:] * whole[: length - lag]).sum(axis=0) / pairs * (1 - lag / n)
    variance = np.maximum(cov[0], 1e-300)
    rho = np.clip(cov / variance, -0.99, 0.99)
    rho[0] = 1.0 + 1e-6
    lags = np.abs(np.subtract.outer(np.arange(order), np.arange(order)))
    carry = np.linalg.solve(rho[lags].transpose(2, 0, 1), rho[1:].T[:, :, None])[:, :, 0]
    fresh = np.sqrt(variance * np.maximum(1e-6, 1 - (carry * rho[1:].T).sum(axis=1)))
    total = carry.sum(axis=1)
    carry *= np.where(total > MOST_CARRY, MOST_CARRY / np.maximum(total, 1e-9), 1.0)[:, None]
    return carry, fresh


def beyond(value: float, most: Floats) -> float:
    """How often chance shows as much, from the largest of each draw; beyond all of them by Gumbel's distribution."""
    width = float(most.std()) * math.sqrt(6) / math.pi
    at = (value - (float(most.mean()) - _EULER * width)) / max(width, 1e-12)
    return -math.expm1(-math.exp(-at)) if at > -6 else 1.0
