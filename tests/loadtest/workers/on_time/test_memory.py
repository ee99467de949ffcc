import gc
import weakref

import pyarrow as pa
import pytest
from litter import Ring

from tailrate.loadtest.engine.workers.on_time.memory import MOST_NEW, tidied_by_hand, tidy


@pytest.fixture
def looks():
    """The generations that were looked through since the latest `clear`."""
    found = []

    def note(phase, of):
        if phase == "start":
            found.append(of["generation"])

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.unfreeze()


def test_python_and_arrow_leave_memory_alone_meanwhile_and_then_are_as_before(looks):
    before = gc.get_threshold(), pa.default_memory_pool().backend_name
    with tidied_by_hand():
        assert pa.default_memory_pool().backend_name == "system"
        looks.clear()
        rows = [[number] for number in range(MOST_NEW - 1000)]
        assert (len(rows), looks) == (MOST_NEW - 1000, [])
        rows += [[number] for number in range(1001)]
        assert 0 in looks  # but not without any limit
    assert (gc.get_threshold(), pa.default_memory_pool().backend_name) == before


def test_garbage_goes_with_what_tidies_and_older_objects_are_looked_at_as_rarely_as_by_python(looks):
    with tidied_by_hand():
        ring = Ring()
        gone = weakref.ref(ring)
        del ring
        assert gone() is not None
        tidy()
        assert gone() is None
        gc.collect()
        looks.clear()
        for _ in range(2 * (11 * 12 + 1)):
            tidy()
    assert {generation: looks.count(generation) for generation in (0, 1, 2)} == {0: 2 * 11 * 11, 1: 2 * 11, 2: 2}
