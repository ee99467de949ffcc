from __future__ import annotations

from argparse import Namespace
from typing import Self

from tailrate.loadtest.engine.modes.closed import Closed


class Single(Closed):
    name = "single"
    what = "closed loop with one request under way: latency of a lone request"
    options = ()

    @classmethod
    def read(cls, options: Namespace) -> Self:
        return cls((1,))
