"""A run whose requests have been counted, in one pass over its rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from tailrate.analysis.records.folder import REQUESTS
from tailrate.analysis.run.recorded_run import RecordedRun
from tailrate.analysis.run.window import read

if TYPE_CHECKING:
    from tailrate.analysis.counting.counts import Grid, Key, Tallies
    from tailrate.analysis.counting.order_statistics import OrderStatistics
    from tailrate.analysis.counting.slices import SliceFigures
    from tailrate.analysis.counting.stream_tally import StreamFigures
    from tailrate.analysis.counting.streams import CountedStreams


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

    @cached_property
    def _slices(self) -> dict[Key, Mapping[str, SliceFigures]]:
        return {}

    def slices_of(self, plan: Mapping[str, Any], endpoint: str, grid: Grid) -> Mapping[str, SliceFigures]:
        """A step's window by label, where arrivals have any; its rows are read once more for that."""
        from tailrate.analysis.counting.slices import slices

        if not self.manifest.labelled:
            return {}
        key = int(plan["index"]), endpoint
        if key not in self._slices:
            asked = partial(read, endpoint=endpoint, steps=[plan], span=(grid.start_ns, grid.end_ns), tokens=True)
            self._slices[key] = slices(self.reading(REQUESTS, asked), grid, grid.seconds, self.manifest.slos)
        return self._slices[key]

    @cached_property
    def counted_streams(self) -> CountedStreams:
        """What their events say; nothing where no endpoint streams."""
        from tailrate.analysis.counting.streams import CountedStreams, count_streams

        if not self.manifest.streams:
            return CountedStreams()
        return self.reading(REQUESTS, lambda _: count_streams(self))

    @cached_property
    def streams(self) -> dict[Key, StreamFigures]:
        """What the streams of each step and endpoint did."""
        from tailrate.analysis.counting.stream_tally import figures

        return {key: figures(tally, self.manifest.slos) for key, tally in self.counted_streams.tallies.items()}

    @property
    def orders(self) -> dict[Key, OrderStatistics]:
        """The percentiles of each step and endpoint."""
        return self._gathered[1]
