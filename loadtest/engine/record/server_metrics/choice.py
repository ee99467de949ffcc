"""Which samples of a page are kept: those that a preset knows, and those whose names a pattern fits.

Ten thousand lines a second are looked at by their names alone; only lines that are kept are taken apart.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from typing import Any

from tailrate.loadtest.engine.record.exposition import parse
from tailrate.loadtest.engine.record.server_metrics.presets import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    Preset,
    ServerMetric,
    every,
)

MOST_SERIES = 500
"""Kept of one page at a time: with names and labels 100 KB a second."""
MOST_LINE = 4096
MOST_WORDS = 200
"""Of a metric's own help."""

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?=[{ \t])")
OWN = ("up", "scrape_duration_seconds")
"""What the reader itself says of each look, as Prometheus calls it."""
SUMS = re.compile(r"_(sum|count|bucket)$")


class Choice:
    """Of one page; grows as names come that were not there before."""

    def __init__(self, match: str = "") -> None:
        self.presets: list[str] = []
        """Titles of the servers whose metrics were found."""
        self.metrics: list[dict[str, Any]] = []
        """What is kept, as the manifest says it."""
        self.left_out = 0
        """Lines of the last page that were too many or too long, or not what they seemed to be."""
        self.names: set[str] = set()
        """All names on the last page."""
        self._match = re.compile(match) if match else None
        self._kept: dict[str, bool] = {}
        self._kinds: dict[str, str] = {}
        self._help: dict[str, str] = {}
        self._known: dict[str, list[tuple[Preset, ServerMetric]]] = defaultdict(list)
        for preset in every().values():
            for metric in preset.metrics:
                for name in metric.samples:
                    self._known[name].append((preset, metric))

    def take(self, text: str) -> list[tuple[str, str, float]]:
        """(name, labels, value) of what is kept; a series that comes twice counts once."""
        lines: list[str] = []
        self.left_out, self.names = 0, set()
        for line in text.split("\n"):
            if line.startswith("#"):
                self._declare(line)
            elif found := NAME.match(line):
                self.names.add(found[0])
                if self._keeps(found[0]):
                    lines.append(line)
        short = [line for line in lines if len(line) <= MOST_LINE]
        self.left_out = len(lines) - len(short)
        skipped: Counter[str] = Counter()
        series: dict[tuple[str, str], float] = {}
        for name, labels, value in parse("\n".join(short), skipped):
            if len(series) < MOST_SERIES:
                series.setdefault((name, json.dumps(labels, sort_keys=True)), value)
            else:
                self.left_out += 1
        self.left_out += skipped.total()
        return [(*key, value) for key, value in series.items()]

    def _declare(self, line: str) -> None:
        """Kind and meaning of what a pattern may choose, in the page's own words."""
        if self._match is not None and len(line) <= MOST_LINE:
            _, _, rest = line.partition(" ")
            word, _, rest = rest.lstrip().partition(" ")
            name, _, said = rest.strip().partition(" ")
            if word in ("TYPE", "HELP") and name not in self._kept:
                (self._kinds if word == "TYPE" else self._help)[name] = said.strip()[:MOST_WORDS]

    def _keeps(self, name: str) -> bool:
        if name not in self._kept:
            self._kept[name] = name not in OWN and (self._by_preset(name) or self._by_pattern(name))
        return self._kept[name]

    def _by_preset(self, name: str) -> bool:
        for preset, metric in self._known.get(name, ()):
            if name == metric.samples[0]:
                if preset.title not in self.presets:
                    self.presets.append(preset.title)
                self._add(preset, metric)
        return name in self._known

    def _by_pattern(self, name: str) -> bool:
        if self._match is None or not self._match.search(name):
            return False
        family = SUMS.sub("", name)
        if self._kinds.get(family) in ("histogram", "summary"):
            if name == family or name.endswith("_bucket"):  # quantiles and buckets add up to nothing
                return False
            kind, called = HISTOGRAM, family
        else:
            counts = self._kinds.get(name) == COUNTER or name.endswith("_total")
            kind, called = COUNTER if counts else GAUGE, name
        said = self._help.get(called) or self._help.get(called.removesuffix("_total")) or ""
        self._add(Preset("", ()), ServerMetric(called, kind, called, said))
        return True

    def _add(self, preset: Preset, metric: ServerMetric) -> None:
        found = preset.as_json(metric)
        if found not in self.metrics:
            self.metrics.append(found)
