"""Money, energy and CO2e by hand; what was not said or measured is absent."""

from __future__ import annotations

import math

import pytest

from tailrate.analysis.planning.plan.prices import Prices
from tailrate.analysis.planning.plan.sizing import QuestionError


def test_a_bill_by_hand() -> None:
    """Nine devices at 2 an hour, 3.6 kW at 0.25 a kilowatt-hour, for 5000/s: 18 million requests an hour."""
    bill = Prices(gpu_hour=2.0, kwh=0.25, co2_kg_per_kwh=0.4).bill(9, 5000, 3600.0)
    assert bill.energy_cost_per_hour == pytest.approx(3.6 * 0.25)
    assert bill.cost_per_hour == pytest.approx(18 + 0.9)
    assert bill.cost_per_million == pytest.approx(18.9 / 18)
    assert bill.joules_per_request == pytest.approx(0.72)
    assert bill.co2_g_per_million == pytest.approx(0.72e6 / 3.6e6 * 400)


def test_nothing_is_made_up() -> None:
    nothing = Prices().bill(9, 5000, None)
    assert (nothing.cost_per_hour, nothing.cost_per_million, nothing.joules_per_request) == (None, None, None)
    unmeasured = Prices(gpu_hour=2.0, kwh=0.25, co2_kg_per_kwh=0.4).bill(9, 5000, None)
    assert unmeasured.cost_per_hour == 18
    assert unmeasured.energy_cost_per_hour is None
    assert unmeasured.co2_g_per_million is None
    unpriced = Prices().bill(9, 5000, 3600.0)
    assert unpriced.cost_per_hour is None
    assert unpriced.joules_per_request == pytest.approx(0.72)
    assert unpriced.co2_g_per_million is None


def test_what_is_free_is_not_absent() -> None:
    assert Prices(gpu_hour=0.0).bill(9, 5000, None).cost_per_hour == 0


@pytest.mark.parametrize("key", ["gpu_hour", "kwh", "co2_kg_per_kwh"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_prices_that_are_none(key: str, value: float) -> None:
    with pytest.raises(QuestionError, match="must be a price of zero or more"):
        Prices(**{key: value})  # type: ignore[arg-type]
