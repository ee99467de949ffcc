"""How much a process's memory grew, from what was noted of it."""

import numpy as np
import pytest

from tailrate.analysis.soak.memory_growth import _growth


def told(per_hour, seed, minutes=60, since=0, pid=1):
    """Every ten seconds, with noise that carries over and garbage that comes and goes; some hundred megabytes."""
    rng, noise = np.random.default_rng(seed), 0.0
    for k in range(6 * minutes):
        noise = 0.7 * noise + rng.normal(0, 5e4)
        size = 150e6 + per_hour * k / 360 + noise + rng.exponential(3e5)
        yield {"pid": pid, "time_ns": (since + 10 * k) * 10**9, "rss_bytes": int(size)}


@pytest.mark.parametrize("per_hour", [0, 5_000_000])
def test_the_interval_holds_the_truth(per_hour):
    found = [_growth(list(told(per_hour, seed))) for seed in range(60)]
    assert sum(low <= per_hour <= high for _, low, high in found) >= 54
    assert np.median([by for by, _, _ in found]) == pytest.approx(per_hour, abs=3e5)
    if per_hour:
        assert all(low > 0 for _, low, _ in found)


def test_what_fills_at_first_is_no_growth():
    found = []
    for seed in range(40):
        rows = list(told(0, seed))
        for k, row in enumerate(rows):
            row["rss_bytes"] -= int(40e6 * max(0, 1 - k / 100))
        found.append(_growth(rows))
    assert sum(low <= 0 <= high for _, low, high in found) >= 36


def test_of_several_lives_the_longest_counts_and_a_short_one_says_nothing():
    both = [*told(0, 1, minutes=14, pid=1), *told(9e6, 2, minutes=40, since=1000, pid=2)]
    by, low, high = _growth(both)
    assert low <= 9e6 <= high
    assert by > 8e6
    assert _growth(list(told(0, 1, minutes=10))) == (None, None, None)
    assert _growth([{"pid": 1, "time_ns": 5}]) == (None, None, None)


def test_memory_that_never_moves_did_not_grow():
    rows = [{"pid": 1, "time_ns": k * 10**10, "rss_bytes": 10**8} for k in range(200)]
    assert _growth(rows) == (0, 0, 0)
