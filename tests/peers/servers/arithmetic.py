"""What every peer computes: two layers of a small network with fixed weights, in numpy alone."""

import numpy as np

WIDTH, OUT = 64, 10
GAP_S = 0.01
"""Between two words of what streams."""
_RNG = np.random.default_rng(7)
_FIRST, _SECOND = _RNG.standard_normal((WIDTH, 128)) / 8, _RNG.standard_normal((128, OUT)) / 11


def answer(x: np.ndarray) -> np.ndarray:
    return (np.tanh(x.astype(np.float64) @ _FIRST) @ _SECOND).astype(np.float32)
