"""What can wait lets everything go first that is due by now: rows are put together and written down behind a breath."""

from __future__ import annotations

import gevent

MOST_S = 2e-3
"""At 100 % of a core there is always something to do."""


def breath() -> None:
    gevent.with_timeout(MOST_S, gevent.idle, timeout_value=None)
