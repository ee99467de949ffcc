"""A wall clock of this process that is ahead, and drifts."""

import time


def shift_clock(ahead_s: float, drift_ppm: float) -> int:
    """From now on, which it returns in true ns."""
    began_ns = time.time_ns()
    if ahead_s or drift_ppm:
        real = time.time_ns

        def shifted() -> int:
            now = real()
            return now + int(ahead_s * 1e9) + int((now - began_ns) * drift_ppm * 1e-6)

        time.time_ns = shifted
    return began_ns
