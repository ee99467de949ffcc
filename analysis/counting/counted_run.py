"""A run whose requests have been counted, in one pass over its rows."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tailrate.analysis.records.folder import REQUESTS
from tailrate.analysis.run.recorded_run import RecordedRun

if TYPE_CHECKING:
    from tailrate.analysis.counting.counts import Key, Tallies
    from tailrate.analysis.counting.order_statistics import OrderStatistics


class CountedRun(RecordedRun):
    """The pass is made when its first figure is asked for."""

    @cached_property
    def _gathered(self) -> tuple[Tallies, dict[Key, OrderStatistics]]:
        from tailrate.analysis.counting.order_statistics import gather

        return self.reading(REQUESTS, lambda _: gather(self))

    @property
    def tallies(self) -> Tallies:
        """Everything that is known of the requests without holding them."""
        return self._gathered[0]

    @property
    def orders(self) -> dict[Key, OrderStatistics]:
        """The percentiles of each step and endpoint."""
        return self._gathered[1]
