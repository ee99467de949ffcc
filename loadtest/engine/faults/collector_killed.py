"""The collector dies, and with its greenlets what it knew of where it had read to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailrate.loadtest.engine.faults import LoadFault, LoadSide
from tailrate.loadtest.engine.faults.telemetry_cut import paused


@contextmanager
def lasting(here: LoadSide, target: str, seconds: float) -> Iterator[str]:
    with paused(here):
        try:
            yield "the collector is dead; what is sampled until it is started anew is lost"
        finally:
            here.collector.forget()


FAULT = LoadFault(place=3, word="collector", seconds=5, lasting=lasting)
