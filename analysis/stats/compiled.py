"""Python compiled to machine code by numba, kept for the next process where there is a place to keep it."""

from __future__ import annotations

from collections import Counter
from functools import cache
from threading import Lock
from types import FunctionType
from typing import Any

import numpy as np

ENOUGH = 8192
"""Rows that Python goes through in the half second that numba takes to find machine code which was kept."""


def compiled(function: Any) -> Any:
    """For a loop that is taken apart into functions, each of them compiled so.

    State of a score of arrays lies in a named tuple: handing it from function to function is free where all become one,
    and where nobody counts who holds an array. Together that is a factor of thirty.
    """
    import numba

    options: Any = {"nogil": True, "error_model": "numpy", "forceinline": True, "_nrt": False}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither beside this file nor in a folder of the user's own
        return numba.njit(**options)(function)


_gone: Counter[Any] = Counter()
"""By loop: rows so far in this process."""
_making = Lock()


def run(loop: Any, rows: int, *arguments: Any) -> None:
    """A loop over so many rows that is plain Python: as it stands for the first ones of a process, then compiled."""
    _gone[loop] += rows
    if _gone[loop] > ENOUGH:
        with _making:  # of all threads one
            machine_code = in_machine_code(loop)
        machine_code(*arguments)
    else:
        with np.errstate(all="ignore"):  # nor does machine code say so
            loop(*arguments)


@cache
def in_machine_code(loop: Any) -> Any:
    """With the functions of its module, all compiled."""
    names = dict(loop.__globals__)
    for name, each in loop.__globals__.items():
        if isinstance(each, FunctionType) and each.__module__ == loop.__module__:
            names[name] = compiled(FunctionType(each.__code__, names, name))
    return names[loop.__name__]
