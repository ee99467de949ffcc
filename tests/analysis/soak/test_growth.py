"""By how much a series grew in all: the closed form of ramps and stairs, and how often noise is taken for growth."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from often import at_most, counts
from soaks import remembering

from tailrate.analysis.run.arrays import Floats
from tailrate.analysis.soak.growth import growth

CELLS = 480


def noise(seed: int, carry: float = 0.5) -> Floats:
    return remembering(np.random.default_rng(seed), CELLS, carry, 1.0)


@pytest.mark.parametrize("carry", [0.0, 0.5, 0.9])
@counts(200, 2000)
def test_noise_is_seldom_growth(carry: float, seeds: int) -> None:
    found = [growth(noise(seed, carry), 0.0) for seed in range(seeds)]
    assert sum(one is not None and one.p_value < 0.02 for one in found) <= at_most(0.02, seeds)


@pytest.mark.parametrize(
    "shape",
    [
        lambda at: at,
        lambda at: 0.5 * (at >= 0.3) + 0.5 * (at >= 0.7),
        lambda at: 1.0 * (at >= 0.9),
        lambda at: np.maximum(0, at - 0.5) / 0.5,
        lambda at: np.sqrt(at),
    ],
    ids=["a ramp", "stairs", "one late step", "a late ramp", "slower and slower"],
)
def test_growth_is_that_of_the_shape_whatever_it_is(shape: Callable[[Floats], Floats]) -> None:
    at = np.linspace(0, 1, CELLS)
    for seed in range(20):
        found = growth(20 * shape(at) + 0.1 * noise(seed), 0.0)
        assert found is not None
        part = CELLS // 16
        wanted = 20 * (np.median(shape(at)[-part:]) - np.median(shape(at)[:part]))
        assert abs(found.by - wanted) < 0.5
        assert found.p_value < 1e-6
        assert found.cells == CELLS * 15 / 16


def test_what_goes_up_and_down_is_no_growth() -> None:
    """A slow sawtooth, as of a garbage collector that comes each hour: the last part may be high, the first low."""
    saw = np.arange(CELLS) % 60 / 60
    found = growth(saw + np.linspace(0, 0.3, CELLS), 0.0)
    assert found is not None
    assert found.p_value > 0.01


def test_what_was_fitted_wrongly_is_no_noise() -> None:
    """A ramp laid through stairs leaves falls; the stairs themselves have none."""
    at = np.linspace(0, 1, CELLS)
    stairs = np.asarray(20.0 * ((at >= 0.2).astype(float) + (at >= 0.5) + (at >= 0.8)))
    for fitted in (0.0, 60 * at, stairs):
        found = growth(stairs + 0.1 * noise(1), 0.0, fitted)
        assert found is not None
        assert found.error < 1
    # and what comes back after it was found is none, either
    spell = np.where((at > 0.3) & (at < 0.6), 20.0, 0.0)
    came_back, not_found = growth(spell + 0.1 * noise(1), 0.0, spell), growth(spell + 0.1 * noise(1), 0.0)
    assert came_back is not None
    assert not_found is not None
    assert came_back.error < 1 < not_found.error


def test_holes_are_left_out_and_too_few_parts_say_nothing() -> None:
    values = np.linspace(0, 1, CELLS)
    values[60:200] = math.nan
    found = growth(values, 1e-6)
    assert found is not None
    assert found.by == pytest.approx(15 / 16, rel=0.01)
    values[60:400] = math.nan
    assert growth(values, 0.0) is None
    assert growth(np.full(CELLS, math.nan), 0.0) is None


def test_no_level_is_known_better_than_its_floor() -> None:
    steps = np.where(np.arange(CELLS) < 200, 5.0, 5.001)
    found = growth(steps, 0.1)
    assert found is not None
    assert (found.error, found.p_value > 0.9) == (0.1, True)
