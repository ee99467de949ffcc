import gc
import weakref

import pytest
from litter import Ring

from tailrate.serve.deploy import app


@pytest.fixture
def frozen():
    thresholds = gc.get_threshold()
    app._freeze()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def looks():
    return sum(generation["collections"] for generation in gc.get_stats())


def test_requests_under_way_are_not_looked_through_for_garbage_and_garbage_goes(frozen):
    before = looks()
    for _ in range(20):
        under_way = [[number] for number in range(app.UNDER_WAY_OBJECTS - 3000)]
        del under_way
    assert looks() == before
    ring = Ring()
    gone = weakref.ref(ring)
    del ring
    kept = [[number] for number in range(app.UNDER_WAY_OBJECTS + 1)]
    assert looks() > before
    assert gone() is None
    del kept
