"""Changes of a series against the truth that it was made with, in noise that remembers; and noise alone."""

from __future__ import annotations

import numpy as np
import pytest
from often import counts
from soaks import remembering

from tailrate.analysis.run.arrays import Floats
from tailrate.analysis.stats.changepoints import LEAST, Drift, drift

N = 480


def noisy(rng: np.random.Generator, truth: Floats, carry: float = 0.5, deviation: float = 0.03) -> Floats:
    return truth + remembering(rng, len(truth), carry, deviation)


def of(values: Floats, **how: object) -> Drift:
    found = drift(values, **how)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize("carry", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("at", [60, 190, 400])
def test_a_step_of_a_tenth_is_found_where_it_is(at: int, carry: float) -> None:
    values = noisy(np.random.default_rng(at), 1 + 0.1 * (np.arange(N) >= at), carry)
    first, *more = of(values).changes
    assert (first.kind, first.end, more) == ("step", None, [])
    assert abs(first.start - at) <= 5
    assert abs(first.size - 0.1) < 4 * first.error
    assert first.p_value < 1e-3


def test_a_leak_is_found_with_its_start_and_a_smaller_noise_is_not_believed() -> None:
    cells = np.arange(720)
    for start in (0, 240):
        values = noisy(np.random.default_rng(start), 1 + 0.0003 * np.maximum(0, cells - start), 0.5, 0.004)
        (found,) = of(values, by="least", floor=0.0005).changes
        assert found.kind == "trend"
        assert abs(found.start - start) <= 15
        assert found.size == pytest.approx(0.0003, rel=0.03)
    bare, floored = (of(np.full(N, 5.0), floor=floor) for floor in (0.0, 0.5))
    assert bare.changes == floored.changes == ()
    assert bare.slope_error < 1e-9
    assert floored.slope_error > 1e-5


def test_a_spell_has_two_ends() -> None:
    truth = 1 + 0.3 * ((np.arange(N) >= 190) & (np.arange(N) < 215))
    (found,) = of(noisy(np.random.default_rng(1), truth)).changes
    assert found.kind == "spell"
    assert found.end is not None
    assert abs(found.start - 190) <= 2
    assert abs(found.end - 215) <= 2
    assert found.size == pytest.approx(0.3, abs=0.05)


def test_two_steps_that_hide_each_other_are_both_found() -> None:
    truth = 1 + 0.1 * (np.arange(N) >= 100) + 0.1 * (np.arange(N) >= 333)
    found = of(noisy(np.random.default_rng(8), truth, 0.5, 0.02)).changes
    assert [change.kind for change in found] == ["step", "step"]
    assert sorted(change.start for change in found) == [pytest.approx(100, abs=4), pytest.approx(333, abs=4)]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_follows_the_load_is_no_change_and_a_step_on_top_of_it_is(seed: int) -> None:
    """As P99 of a queue that is half full in the mean does, in logarithms."""
    cells = np.arange(N)
    load = 1 + 0.5 * np.sin(2 * np.pi * cells / 240)
    values = noisy(np.random.default_rng(seed), -np.log(1 - 0.5 * load))
    plain, beside = of(values), of(values, load=load)
    assert beside.changes == ()
    assert plain.step_error > 10 * beside.step_error  # without it, the curve is noise in which nothing shows
    assert of(values, load=np.ones(N)).step_error == plain.step_error
    (found,) = of(values + 0.1 * (cells >= 190), load=load).changes
    assert (found.kind, found.start) == ("step", pytest.approx(190, abs=6))
    assert abs(found.size - 0.1) < 4 * found.error


def test_over_a_piece_of_a_curve_a_drift_is_not_told_from_it() -> None:
    cells = np.arange(N)
    load = 1 + 0.5 * np.sin(2 * np.pi * cells / (8 * N))
    values = noisy(np.random.default_rng(1), 0.5 * load)
    found, even = of(values, load=load), of(values - 0.5 * load)
    assert found.changes == ()
    assert found.slope_error > 20 * even.slope_error
    assert found.step_error < 5 * even.step_error


def test_holes_are_no_values() -> None:
    values = noisy(np.random.default_rng(3), 1 + 0.1 * (np.arange(N) >= 300))
    values[100:160] = np.nan
    values[::17] = np.nan
    (found,) = of(values).changes
    assert (found.kind, abs(found.start - 300) <= 4) == ("step", True)
    late = np.append(np.full(N // 2, np.nan), values[N // 2 :])
    assert [abs(change.start - 300) <= 4 for change in of(late).changes] == [True]


def test_lone_outliers_are_nothing() -> None:
    values = noisy(np.random.default_rng(4), np.ones(N), 0.0)
    values[[40, 41, 200, 333]] = 50.0
    assert of(values).changes == ()


def test_too_few_values_say_nothing() -> None:
    assert drift(np.ones(LEAST - 1)) is None
    assert drift(np.append(np.ones(LEAST - 1), np.full(100, np.nan))) is None
    assert drift(np.full(N, np.nan)) is None
    assert drift(np.ones(LEAST)) is not None


def test_the_same_values_say_the_same_twice() -> None:
    values = noisy(np.random.default_rng(5), 1 + 0.1 * (np.arange(N) >= 190))
    assert of(values).changes == of(values).changes


@counts(10, 40)
@pytest.mark.parametrize("carry", [0.0, 0.5, 0.8, 0.95])
def test_noise_alone_is_seldom_called_a_change(carry: float, seeds: int) -> None:
    rng = np.random.default_rng(7)
    p_values = []
    for _ in range(seeds):
        changes = of(noisy(rng, np.ones(N), carry)).changes
        p_values.append(changes[0].p_value if changes else 1.0)
    assert sum(p < 0.001 for p in p_values) <= 1
    assert sum(p < 0.01 for p in p_values) <= seeds / 10
