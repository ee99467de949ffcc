"""What a load process did is told of each step's own time."""

import time
from itertools import count

import gevent

from tailrate.loadtest.engine.workers.on_time.stall_watch import StallWatch


def test_one_late_look_in_a_hundred_is_their_p99():
    watch = StallWatch()
    watch._looks = [(second, 0, 95_000_000 if second == 50 else 0) for second in range(100)]
    assert watch.figures(0, 99)["lag_p99_ms"] == 95


def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_cpu_and_lateness_are_those_of_the_time_that_is_asked_for():
    watch = StallWatch()
    with watch.looking():
        begun = time.monotonic_ns()
        gevent.sleep(0.3)
        middle = time.monotonic_ns()
        busy(0.3 + 2e-3 * watch.figures(begun, middle)["lag_max_ms"])  # longer than the machine stood still
        gevent.sleep(0.03)  # it hears of it
        end = time.monotonic_ns()
    quiet, spike, whole = watch.figures(begun, middle), watch.figures(middle, end), watch.figures(begun, end)
    assert quiet["cpu_pct"] < whole["cpu_pct"] < spike["cpu_pct"]
    assert spike["lag_max_ms"] == whole["lag_max_ms"] > max(100, quiet["lag_max_ms"])
    assert watch.figures(end, end + 10**9)["cpu_pct"] <= 100


def at_depth(frames, then):
    return at_depth(frames - 1, then) if frames else then()


def fits(frames):
    try:
        return at_depth(frames, lambda: True)
    except RecursionError:
        return False


def test_a_collection_for_which_there_is_no_frame_left_is_no_error_and_not_counted_wrongly():
    watch = StallWatch()
    deepest = next(frames for frames in count(1) if not fits(frames))
    for room in range(2, 9):
        at_depth(deepest - room, lambda: watch._on_collection("start", {}))
        watch._on_collection("stop", {})
    assert all(0 <= took_ns < 60e9 for _, took_ns in watch._pauses)
    at_depth(deepest - 2, lambda: watch._on_collection("start", {}))
    kept = len(watch._pauses)
    at_depth(deepest - 2, lambda: watch._on_collection("stop", {}))
    watch._on_collection("stop", {})
    assert len(watch._pauses) <= kept + 1, "none of which the begin is not known"
