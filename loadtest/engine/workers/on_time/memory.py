"""What Python and Arrow do about memory of their own accord, put off: it holds arrivals up for milliseconds.

Python looks for garbage after each seven hundred new objects, which are mostly rows that wait to be written down; once
they have gone, there is little to look at. Arrow's own allocator takes 5 ms now and then, and the system's never did.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from tailrate.loadtest.engine.workers.on_time.breath import breath

MOST_NEW = 5_000
"""Objects after which Python looks all the same, as where many streams are under way."""


@contextmanager
def tidied_by_hand() -> Iterator[None]:
    """What is there by now stays: to look at all of it would hold the schedule up by tens of milliseconds."""
    pool, often = pa.default_memory_pool(), gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(MOST_NEW, *often[1:])
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(pool)
        gc.set_threshold(*often)


def tidy() -> None:
    """Looks for garbage among the youngest objects, and among older ones as rarely as Python does."""
    breath()
    (_, younger, oldest), (_, most_younger, most_oldest) = gc.get_count(), gc.get_threshold()
    gc.collect(2 if oldest > most_oldest else 1 if younger > most_younger else 0)
