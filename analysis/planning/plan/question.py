"""What a capacity plan is asked: a rate and how it changes and grows, what may be lost, and what things cost."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from tailrate.analysis.planning.plan.prices import Prices
from tailrate.analysis.planning.plan.sizing import QuestionError, Sizing
from tailrate.analysis.records.objective import Slo

MOST_LOST = 100
"""Replicas at once; each is simulated, and a thousand take minutes."""
PER_YEAR = {"week": 52.0, "month": 12.0, "quarter": 4.0, "year": 1.0}


@dataclass(frozen=True, slots=True)
class DemandGrowth:
    """How many times as much there is a quarter later."""

    text: str
    per_quarter: float

    @classmethod
    def parse(cls, text: str) -> DemandGrowth:
        """
        >>> round(Growth.parse("100%/year").per_quarter, 4)
        1.1892
        """
        found = re.fullmatch(r"\s*([+-]?\d+(?:\.\d+)?)\s*%\s*/\s*(week|month|quarter|year)\s*", text)
        if not found or float(found[1]) <= -100:
            raise QuestionError(f"--growth '{text}' is not understood; write for instance 20%/quarter or 100%/year")
        return cls(text, (1 + float(found[1]) / 100) ** (PER_YEAR[found[2]] / PER_YEAR["quarter"]))


@dataclass(frozen=True, slots=True)
class Question:
    """What a plan is for."""

    rate_rps: float
    sizing: Sizing
    prices: Prices = field(default_factory=Prices)
    n_plus: int = 0
    """Replicas that may be lost at once."""
    shape: str = "flat"
    peak: float = 1.0
    """The highest rate that the shape comes to, …"""
    mean: float = 1.0
    """… and the average one, as factors of the rate."""
    growth: DemandGrowth | None = None

    def __post_init__(self) -> None:
        if not 0 < self.rate_rps < 1e8:
            raise QuestionError(f"--rate {self.rate_rps:g} must be requests per second, above 0 and below 1e8")
        if not self.peak_rps < 1e8:
            raise QuestionError(f"--shape {self.shape} comes to {self.peak_rps:g} requests per second; stay below 1e8")
        if not 0 <= self.n_plus <= MOST_LOST:
            raise QuestionError(f"--n-plus {self.n_plus} must be from 0 to {MOST_LOST} replicas that may be lost")

    @property
    def peak_rps(self) -> float:
        """Replicas are counted for the top of the curve."""
        return self.rate_rps * self.peak

    @property
    def mean_rps(self) -> float:
        """What is paid for runs all day, and answers this."""
        return self.rate_rps * self.mean

    @property
    def slo(self) -> Slo:
        return self.sizing.objective.slo

    def as_json(self) -> dict[str, Any]:
        burstiness = self.sizing.traffic.burstiness
        return {
            "rate_rps": self.rate_rps,
            "peak_rps": self.peak_rps,
            "mean_rps": self.mean_rps,
            "slo": str(self.slo),
            "percentile": self.slo.percentile,
            "latency_ms": self.slo.latency_ms,
            "burstiness": burstiness if math.isfinite(burstiness) else None,
            "shape": self.shape,
            "growth": None if self.growth is None else self.growth.text,
            "n_plus": self.n_plus,
        }
