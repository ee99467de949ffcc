"""A load process dies, and its share of the arrivals with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailrate.loadtest.engine.faults import LoadFault, LoadSide, RefusedError
from tailrate.serve.faults import Target


@contextmanager
def lasting(here: LoadSide, target: str, seconds: float) -> Iterator[str]:
    members = here.crew.members()
    number = int(float(target)) if target else len(members) - 1
    if len(members) < 2 or not 0 <= number < len(members):
        raise RefusedError(f"there is no load process {max(0, number)} to spare: {len(members)} in all")
    if not here.crew.kill(members[number]):
        raise RefusedError("this crew's processes cannot be killed from here")
    yield f"load process {number} of {len(members)} was killed"


PROCESS = Target("number of the load process", "the last one", below=1e6)
FAULT = LoadFault(place=4, word="load", target=PROCESS, lasting=lasting)
