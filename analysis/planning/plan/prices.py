"""What a fleet costs and emits: money per hour and per million requests, grams of CO2e. Pure arithmetic.

Nothing is made up: without a price there is no cost, without measured power no energy, without the grid's figure no
CO2e. A device's hour and its electricity are two prices that add up, so whoever rents gives `--gpu-hour` alone.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from tailrate.analysis.planning.plan.sizing import QuestionError

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Prices:
    """What was said; None where nothing was."""

    gpu_hour: float | None = None
    """Of one device (of a machine, where the CPU serves)."""
    kwh: float | None = None
    co2_kg_per_kwh: float | None = None
    currency: str = ""

    def __post_init__(self) -> None:
        for option, value in (
            ("--gpu-hour", self.gpu_hour),
            ("--kwh", self.kwh),
            ("--co2", self.co2_kg_per_kwh),
        ):
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise QuestionError(f"{option} {value:g} must be a price of zero or more")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def bill(self, gpus: float, mean_rps: float, power_w: float | None) -> Bill:
        """Of a fleet that stands all day and answers so many requests a second on average.

        >>> Prices(gpu_hour=2.0).bill(9, 5000, None).cost_per_hour
        18.0
        """
        rent = None if self.gpu_hour is None else gpus * self.gpu_hour
        kwh = None if power_w is None else power_w / 1000
        current = None if self.kwh is None or kwh is None else kwh * self.kwh
        parts = [part for part in (rent, current) if part is not None]
        per_hour = sum(parts) if parts else None
        joules = None if power_w is None else power_w / mean_rps
        grid = self.co2_kg_per_kwh
        return Bill(
            cost_per_hour=per_hour,
            cost_per_million=None if per_hour is None else per_hour / (mean_rps * 3600) * 1e6,
            energy_cost_per_hour=current,
            joules_per_request=joules,
            co2_g_per_million=None if joules is None or grid is None else joules * 1e6 / JOULES_PER_KWH * grid * 1000,
        )


@dataclass(frozen=True, slots=True)
class Bill:
    cost_per_hour: float | None
    cost_per_million: float | None
    energy_cost_per_hour: float | None
    """The part of it that is electricity."""
    joules_per_request: float | None
    co2_g_per_million: float | None
