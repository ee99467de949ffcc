import random

import pytest

from tailrate.loadtest.engine.clock import WINDOW_NS, Base, Offset

AHEAD = 1_700_000_000


def exchange(offset, at, there, back, ahead=AHEAD):
    """One exchange whose way there and back take what is said; the server answers at once."""
    t2 = at + there + ahead
    offset.see(at, t2, t2, at + there + back)


def test_the_truth_lies_inside_the_error_bound_whatever_the_asymmetry():
    rng = random.Random(1)
    for _ in range(200):
        offset = Offset(0)
        for n in range(20):
            exchange(offset, n * 10_000_000, rng.randrange(10_000, 5_000_000), rng.randrange(10_000, 5_000_000))
        found = offset.as_json("gpu-host")
        assert found is not None
        assert abs(found["offset_ns"] - AHEAD) <= found["error_ns"] + 1


@pytest.mark.parametrize(
    ("ours", "theirs", "exchanges"),
    [*((4_000_000, theirs, count) for theirs in (1, 4_000_000) for count in (1, 20, 3000)), (1, 4_000_000, 3000)],
)
def test_clocks_that_move_in_steps_are_within_the_error_bound_too(ours, theirs, exchanges):
    """Round trips come out as nothing or less; how coarse the other's clock is shows but for the shortest way."""
    unseen = 1 if ours >= theirs else 1_000_000
    rng = random.Random(2)
    for _ in range(50):
        offset, ahead = Offset(ours), AHEAD + rng.randrange(4_000_000)
        for n in range(exchanges):
            at, there, back = n * 3_300_000 + rng.randrange(4_000_000), rng.randrange(10**6), rng.randrange(10**6)
            here = at, at + there + 110_000 + back
            other = at + there + ahead, at + there + 110_000 + ahead
            (t1, t4), (t2, t3) = ([t - t % step for t in times] for times, step in ((here, ours), (other, theirs)))
            offset.see(t1, t2, t3, t4)
        found, least = offset.as_json("gpu-host"), offset.least()
        assert found is not None
        assert least is not None
        assert abs(found["offset_ns"] - ahead) <= found["error_ns"] + unseen
        assert abs(least[0] - ahead) <= least[1] + unseen


def test_the_least_round_trip_wins():
    offset = Offset(0)
    exchange(offset, 0, 5_000_000, 100_000)
    exchange(offset, 1_000_000, 20_000, 20_000)
    exchange(offset, 2_000_000, 100_000, 9_000_000)
    found = offset.as_json("gpu-host")
    assert found == {"host": "gpu-host", "offset_ns": AHEAD, "error_ns": 20_000, "drift_ppm": 0.0, "at_ns": 1_020_000}


def test_drift_is_found_over_windows():
    offset = Offset(0)
    for n in range(12):
        at = n * WINDOW_NS
        exchange(offset, at, 50_000, 50_000, AHEAD + int(at * 50e-6))
    found = offset.as_json("gpu-host")
    assert found is not None
    assert abs(found["drift_ppm"] - 50) < 0.1


def test_the_error_holds_to_both_ends_of_the_run():
    """The one way slow at first, the other at last: the line is as wrong as it can be, and more so beyond its ends."""
    windows, middle = 10, WINDOW_NS // 2
    offset = Offset(0)
    for n in range(windows):
        share = n / (windows - 1)
        exchange(offset, n * WINDOW_NS + middle, round(2e6 * (1 - share)), round(2e6 * share))
    found = offset.as_json("gpu-host")
    assert found is not None
    for at in range(0, windows * WINDOW_NS + 1, WINDOW_NS // 4):
        said = found["offset_ns"] + (at - found["at_ns"]) * found["drift_ppm"] * 1e-6
        assert abs(said - AHEAD) <= found["error_ns"] + 1000
    assert found["error_ns"] < 1.5e6


def test_two_processes_see_together_what_one_would():
    one, other, both = Offset(0), Offset(0), Offset(0)
    for n, offset in ((0, one), (1, other), (2, one)):
        exchange(offset, n * 1_000_000, 100_000 - n * 10_000, 90_000)
        exchange(both, n * 1_000_000, 100_000 - n * 10_000, 90_000)
    one.merge(other.best())
    assert one.as_json("h") == both.as_json("h")


def test_nothing_seen_is_nothing_said():
    assert Offset(0).as_json("gpu-host") is None


def test_base_maps_both_ways():
    base = Base.here()
    assert base.monotonic_ns(base.wall_ns(123)) == 123


def test_a_process_of_this_machine_shares_the_base_and_another_gets_its_own():
    base = Base.here()
    assert base.for_clock(40_000, 120_000) == base
    ahead = base.for_clock(5_000_000_000, 120_000)
    assert ahead.wall_ns(5_000_000_123) == base.wall_ns(123)
