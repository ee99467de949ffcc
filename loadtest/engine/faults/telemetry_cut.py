"""Nobody asks for device samples; what the server keeps of them follows afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailrate.loadtest.engine.faults import LoadFault, LoadSide, RefusedError


@contextmanager
def paused(here: LoadSide) -> Iterator[None]:
    if not here.collector.host:
        raise RefusedError("the endpoint sends no device samples, so there is nothing to miss")
    here.collector.pause()
    try:
        yield
    finally:
        here.collector.resume()


@contextmanager
def lasting(here: LoadSide, target: str, seconds: float) -> Iterator[str]:
    with paused(here):
        yield "device samples and clocks are not asked for; what the server keeps of them follows afterwards"


FAULT = LoadFault(place=2, word="telemetry", seconds=15, lasting=lasting)
