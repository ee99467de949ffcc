"""The servers' metrics as tracks: one per page, metric and endpoint, whatever series the page has of it.

A counter becomes its increase since the first look: one that falls was begun anew and counts from zero, and a series
that was not there at an earlier look counts from zero too. A histogram is the quotient of two such increases. What a
metric is (kind, role, unit) stands in the manifest, where the load side put it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.records.folder import METRICS
from tailrate.analysis.run.arrays import Chunk
from tailrate.analysis.stats.array_types import Floats, Ints

if TYPE_CHECKING:
    from tailrate.analysis.run.recorded_run import RecordedRun

COUNTER, HISTOGRAM = "counter", "histogram"
LOOK = "up"
NO_VERSION = ("", "None")
"""What servers write where a request named no version."""
SLACK = 2.5
"""Periods by which the looks may miss an end of a window whose increase is told."""

Series = dict[str, tuple[Ints, Floats]]
"""Looks and values by labels."""


@dataclass(frozen=True, slots=True, eq=False)
class MetricTrack:
    """One metric over the looks at its page that found one."""

    source: str
    endpoint: str
    """Whose it is; nothing: the server's as a whole."""
    says: Mapping[str, Any]
    """What the manifest says of the metric."""
    time_ns: Ints
    values: Floats
    """A gauge's value, NaN where it had none; of other kinds the increase since the first look."""
    per: Floats | None = None
    """The increase of what `values` are divided by, where they are."""
    resets: int = 0
    """How often a series began anew."""

    @property
    def name(self) -> str:
        """With the labels that tell it from others of its name."""
        where = ",".join(f'{label}="{value}"' for label, value in (self.says.get("where") or {}).items())
        return f"{self.says['name']}{{{where}}}" if where else str(self.says["name"])

    @property
    def role(self) -> str:
        return str(self.says.get("role") or "")

    @property
    def title(self) -> str:
        return str(self.says.get("title") or self.name)

    @property
    def unit(self) -> str:
        return str(self.says.get("unit") or "")

    @property
    def is_gauge(self) -> bool:
        return self.says.get("kind") not in (COUNTER, HISTOGRAM)

    @property
    def is_quotient(self) -> bool:
        return self.per is not None

    def is_of(self, endpoint: str) -> bool:
        return self.endpoint in ("", endpoint)

    def inside(self, start_ns: int, end_ns: int) -> Floats:
        """A gauge's known values within [start, end)."""
        first, last = np.searchsorted(self.time_ns, [start_ns, end_ns])
        found = self.values[first:last]
        return found[~np.isnan(found)]

    def increase(self, start_ns: int, end_ns: int) -> float | None:
        """Of a counter, between looks in a straight line; None where there were none about both ends."""
        return self._increase(self.values, start_ns, end_ns)

    def quotient(self, start_ns: int, end_ns: int) -> float | None:
        """Of a histogram its mean; None where nothing was counted."""
        if self.per is None:
            return None
        above, below = (self._increase(values, start_ns, end_ns) for values in (self.values, self.per))
        return above / below if above is not None and below else None

    def counted(self, start_ns: int, end_ns: int) -> float | None:
        """How much a histogram's mean is of."""
        return None if self.per is None else self._increase(self.per, start_ns, end_ns)

    def _increase(self, values: Floats, start_ns: int, end_ns: int) -> float | None:
        if len(self.time_ns) < 2 or end_ns <= start_ns:
            return None
        slack = SLACK * float(np.median(np.diff(self.time_ns)))
        if self.time_ns[0] > start_ns + slack or self.time_ns[-1] < end_ns - slack:
            return None
        since = (self.time_ns - self.time_ns[0]).astype(np.float64)
        low, high = np.interp([start_ns - self.time_ns[0], end_ns - self.time_ns[0]], since, values)
        return float(high - low)

    def largest_jump(self, start_ns: int, end_ns: int) -> float:
        """Between two looks, from the one before the window to the one behind it: how unsure the ends of it are."""
        first, last = np.searchsorted(self.time_ns, [start_ns, end_ns])
        jumps = np.diff(self.values[max(0, first - 1) : last + 1])
        return float(jumps.max(initial=0.0))


def increases(looks: int, at: Ints, values: Floats) -> tuple[Floats, int]:
    """A counter's increase since the first look, at every look, and how often it began anew.

    `at` are the looks at which it was seen, in order.

    >>> increases(5, np.array([1, 2, 4]), np.array([3.0, 5.0, 1.0]))
    (array([0., 3., 5., 5., 6.]), 1)
    """
    steps = np.zeros(looks)
    if not len(at):
        return steps, 0
    before = np.concatenate([[values[0] if at[0] == 0 else 0.0], values[:-1]])
    fell = values < before
    steps[at] = np.where(fell, values, values - before)
    return np.cumsum(steps), int(fell.sum())


def tracks(run: RecordedRun) -> list[MetricTrack]:
    """Every metric that the manifest describes and of which there is a row, page by page."""
    entries = run.manifest.extra.get(METRICS)
    if not isinstance(entries, list) or not len(run.tables[METRICS]):
        return []
    rows = Chunk(run.reading(METRICS, lambda stored: stored.whole()))
    known = [_identity(entry) for entry in run.manifest.endpoints]
    return [track for entry in entries for track in _of_source(entry, rows, known)]


def _identity(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    """(name, model, version) of an endpoint."""
    model, version = str(entry.get("model") or ""), str(entry.get("variant") or entry.get("version") or "")
    return str(entry.get("name") or f"{model}/{version}"), model, version


def _of_source(entry: Mapping[str, Any], rows: Chunk, known: Sequence[tuple[str, str, str]]) -> Iterator[MetricTrack]:
    source = str(entry["source"])
    (source_of, sources), (name_of, names), (labels_of, labels) = map(rows.text, ("source", "name", "labels"))
    mine = source_of == sources.index(source) if source in sources else np.zeros(len(rows), dtype=bool)
    values = rows.number("value")
    if values is None or not mine.any():
        return
    times, values = rows.whole("time_ns")[mine], values[mine]
    name_of, labels_of = name_of[mine], labels_of[mine]
    up = name_of == names.index(LOOK) if LOOK in names else np.zeros(len(times), dtype=bool)
    looks = np.unique(times[up & (values == 1)])
    if not len(looks):
        return

    def series(name: str, where: Mapping[str, str]) -> Series:
        if name not in names:
            return {}
        found = {}
        chosen = np.flatnonzero((name_of == names.index(name)) & np.isfinite(values))
        for code in np.unique(labels_of[chosen]):
            text = labels[code] if code >= 0 else "{}"
            said = json.loads(text)
            if all(said.get(label) == value for label, value in where.items()):
                places = chosen[labels_of[chosen] == code]
                at, first = np.unique(np.searchsorted(looks, times[places]), return_index=True)
                there = at < len(looks)
                found[text] = (at[there], values[places[first[there]]])
        return found

    for says in entry.get("metrics") or ():
        where = says.get("where") or {}
        top = f"{says['name']}_sum" if says.get("kind") == HISTOGRAM else says["name"]
        below = f"{says['name']}_count" if says.get("kind") == HISTOGRAM else says.get("per") or ""
        found, divisors = series(top, where), series(below, where) if below else {}
        for endpoint, owned in _owners(found, says, entry, known).items():
            yield _track(source, endpoint, says, looks, owned, divisors if below else None)


def _owners(
    found: Series, says: Mapping[str, Any], entry: Mapping[str, Any], known: Sequence[tuple[str, str, str]]
) -> dict[str, Series]:
    """The series by the endpoint whose model and version their labels name; all of them where they name none of ours.

    Of a page that is one endpoint's, no other's are taken.
    """
    own = str(entry.get("endpoint") or "")
    owners: dict[str, Series] = {}
    for name, model, version in known:
        if own in ("", name):
            mine = {text: pair for text, pair in found.items() if _names(json.loads(text), says, model, version)}
            if mine:
                owners[name] = mine
    return owners or ({own: found} if found else {})


def _names(labels: Mapping[str, str], says: Mapping[str, Any], model: str, version: str) -> bool:
    models = [labels[label] for label in says.get("model_labels") or () if label in labels]
    versions = [labels[label] for label in says.get("version_labels") or () if label in labels]
    same = (model, f"{model}-{version}", f"{model}/{version}")
    return bool(models) and models[0] in same and all(said in (version, *NO_VERSION) for said in versions)


def _track(
    source: str, endpoint: str, says: Mapping[str, Any], looks: Ints, owned: Series, divisors: Series | None
) -> MetricTrack:
    factor = float(says.get("factor") or 1.0)
    if says.get("kind") in (COUNTER, HISTOGRAM):
        values, resets = _sum(len(looks), owned)
        mine = None if divisors is None else {text: pair for text, pair in divisors.items() if text in owned}
        per = None if mine is None else _sum(len(looks), mine)[0]
        return MetricTrack(source, endpoint, says, looks, factor * values, per, resets)
    grid = np.full((len(owned), len(looks)), math.nan)
    for row, (at, values) in zip(grid, owned.values(), strict=True):
        row[at] = values
    seen = ~np.isnan(grid)
    together = np.where(seen, grid, -math.inf).max(axis=0) if says.get("across") == "max" else np.nansum(grid, axis=0)
    return MetricTrack(source, endpoint, says, looks, np.where(seen.any(axis=0), factor * together, math.nan))


def _sum(looks: int, owned: Series) -> tuple[Floats, int]:
    found = [increases(looks, at, values) for at, values in owned.values()]
    return np.sum([steps for steps, _ in found], axis=0) if found else np.zeros(looks), sum(n for _, n in found)


def seen_share(run: RecordedRun) -> dict[str, tuple[int, int]]:
    """By source: the looks that found a page, and all."""
    if not len(run.tables[METRICS]):
        return {}
    rows = run.metrics
    looks = rows[rows["name"] == LOOK]
    return {
        str(source): (int((mine["value"] == 1).sum()), len(mine))
        for source, mine in looks.groupby("source", observed=True)
    }
