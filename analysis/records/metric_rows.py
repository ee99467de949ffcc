"""The rows of `metrics`: what the servers said of themselves, series by series, at each look."""

from __future__ import annotations

from typing import NamedTuple

from tailrate.analysis.records.rows import Int64, Number, Text, columns_of


class MetricSample(NamedTuple):
    """One series of a page at one instant of the load generator's clock."""

    time_ns: Int64
    source: Text
    """Which page it is from: an entry of the manifest's `metrics`."""
    name: Text
    """As the page calls it; `up` is 1 for each look that found a page, else 0."""
    labels: Text
    """As JSON, in the order of their names."""
    value: Number | None = None


METRIC_COLUMNS = columns_of(MetricSample)
