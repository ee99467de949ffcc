"""What the compiled loop and those who call it agree on: marks, bins of latency, and the figures of a request."""

from __future__ import annotations

import numpy as np

from tailrate.analysis.stats.array_types import Ints

NEVER = -(2**62)
"""An instant that was not recorded."""
SLICE_BITS = 12
FAILED = (1 << 51) - 1
"""Latency in ns of what failed: more than any other."""

FIRST_OCTAVE, OCTAVES, SPLIT = -10, 41, 5
BINS = OCTAVES << SPLIT
"""Bins of latency from a microsecond to three weeks, each 3 % wide."""
LOWEST = (1023 + FIRST_OCTAVE) << SPLIT


def latency_bins(ns: Ints) -> Ints:
    """The bin of each; failures come behind the last."""
    found: Ints = np.clip((np.maximum(ns, 1) * 1e-6).view(np.int64) >> (52 - SPLIT), LOWEST, LOWEST + BINS - 1) - LOWEST
    return np.where(ns >= FAILED, BINS, found)


FIGURES = (
    "handled_ms", "server_ms", "queue_ms", "batch_ms", "h2d_ms", "compute_ms", "d2h_ms", "prefill_ms",
    "decode_ms", "text_ms", "batch_rows",
)  # fmt: skip
COMPUTE, BATCH = FIGURES.index("compute_ms"), FIGURES.index("batch_rows")
MOST_ROWS = 1024
"""Rows of a batch; larger ones count as this."""
BY_BATCH = 3
"""Sums by rows of the batch: requests, requests whose computing time is known, and that time."""
PARTS = ("latency_ms", "service_ms", *FIGURES)
"""What is summed by latency."""
