"""Kinds of arrays, named once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
