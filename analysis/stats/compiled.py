"""Python compiled to machine code by numba, kept for the next process where there is a place to keep it."""

from __future__ import annotations

from typing import Any

import numba


def compiled(function: Any) -> Any:
    """For a loop that is taken apart into functions, each of them compiled so.

    State of a score of arrays lies in a named tuple: handing it from function to function is free where all become one,
    and where nobody counts who holds an array. Together that is a factor of thirty.
    """
    options: Any = {"nogil": True, "error_model": "numpy", "forceinline": True, "_nrt": False}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither beside this file nor in a folder of the user's own
        return numba.njit(**options)(function)
