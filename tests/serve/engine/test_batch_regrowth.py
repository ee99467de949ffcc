"""When a batch size is tried again, in virtual time."""

from tailrate.serve.engine.batch_regrowth import FIRST_S, LONGEST_S, Regrowth


def test_a_size_comes_back_when_the_largest_that_is_left_has_fitted_for_a_while() -> None:
    again = Regrowth()
    again.gave_up(16, 0)
    assert again.ran(largest=True, now_s=FIRST_S - 1) is None
    assert again.ran(largest=True, now_s=FIRST_S) == 16
    assert again.ran(largest=True, now_s=10 * FIRST_S) is None  # there is no other


def test_small_batches_prove_nothing() -> None:
    again = Regrowth()
    again.gave_up(16, 0)
    assert again.ran(largest=False, now_s=10 * FIRST_S) is None
    assert again.ran(largest=True, now_s=11 * FIRST_S) == 16


def test_sizes_come_back_one_by_one_smallest_first() -> None:
    again = Regrowth()
    for size in (16, 8, 4):
        again.gave_up(size, 0)
    found = [(now, size) for now in range(1000) if (size := again.ran(largest=True, now_s=now)) is not None]
    assert found == [(60, 4), (120, 8), (180, 16)]


def test_a_size_that_fails_again_waits_twice_as_long_up_to_an_hour() -> None:
    """Memory that is gone for good: tried ever more rarely."""
    again, now_s, waits = Regrowth(), 0.0, []
    again.gave_up(16, now_s)
    for _ in range(9):
        began_s = now_s
        while again.ran(largest=True, now_s=now_s) is None:
            now_s += 1
        waits.append(now_s - began_s)
        again.gave_up(16, now_s)
    assert waits == [60, 120, 240, 480, 960, 1920, LONGEST_S, LONGEST_S, LONGEST_S]


def test_a_single_row_that_does_not_fit_begins_the_wait_anew() -> None:
    again = Regrowth()
    again.gave_up(2, 0)
    for now_s in range(10, 600, 10):
        again.ran_out(now_s)
        assert again.ran(largest=True, now_s=now_s + 1) is None
    assert again.ran(largest=True, now_s=590 + FIRST_S) == 2


def test_what_went_well_for_a_while_is_forgotten() -> None:
    again = Regrowth()
    again.gave_up(2, 0)
    assert again.ran(largest=True, now_s=60) == 2
    assert again.ran(largest=True, now_s=61) is None
    assert again.ran(largest=True, now_s=120) is None  # all is as it was
    again.gave_up(2, 500)
    assert again.ran(largest=True, now_s=560) == 2
