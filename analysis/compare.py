"""Variants of one model at one rate, side by side: rows of `pairs`.

Every ratio is a ÷ b: above 1 means that b is faster. a is `eager` where the model has it, else the variant
that the manifest names first. The interval is that of `p99_ratio`: over rounds by paired t on the logarithms,
or, where each was driven once, by a bootstrap over blocks of time; it is None where the sample cannot carry
it. A step that is overloaded or cannot be trusted has no P99 to compare, and its pair says so in `note`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from analysis.stats import Floats, block_ratio, paired_ratio

if TYPE_CHECKING:
    from analysis.steps import MeasuredStep
    from analysis.store import Run


@dataclass(frozen=True, slots=True)
class Pair:
    a: str
    b: str
    rate: float
    p50_ratio: float | None
    p99_ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    smallest_visible: float | None
    """The smallest relative change of P99 that this comparison would have shown (0.05: five percent)."""
    rounds: int
    note: str | None = None
    """Why a ratio or its interval is missing."""
    concurrency: int = 0
    """Of a closed loop, which has no rate."""

    @property
    def differs(self) -> bool | None:
        """Whether the interval excludes 1; None without an interval."""
        if self.ratio_low is None or self.ratio_high is None:
            return None
        return not self.ratio_low <= 1 <= self.ratio_high


def pairs(run: Run) -> list[Pair]:
    by_endpoint: dict[str, list[MeasuredStep]] = {}
    for step in run.measured:
        by_endpoint.setdefault(step.summary.endpoint, []).append(step)
    found = []
    for a, b in _partners(run, by_endpoint):
        for level in sorted(set(map(_level, by_endpoint[a])) & set(map(_level, by_endpoint[b]))):
            rounds = list(zip(_at(by_endpoint[a], level), _at(by_endpoint[b], level), strict=False))
            found.append(_pair(run, a, b, level, rounds))
    return found + list(_noise(run, by_endpoint))


def _noise(run: Run, endpoints: dict[str, list[MeasuredStep]]) -> Iterator[Pair]:
    """Each endpoint against itself, where it was driven twice in a row on the same arrivals."""
    for endpoint, steps in endpoints.items():
        levels = {_level(step) for step in steps if step.twin}
        for level in sorted(levels):
            mine = {step.summary.index: step for step in steps if _level(step) == level}
            twins = [(mine[index - 1], step) for index, step in mine.items() if step.twin and index - 1 in mine]
            if twins:
                yield _pair(run, endpoint, endpoint, level, twins)


Level = tuple[int, float]


def _level(step: MeasuredStep) -> Level:
    """What steps must have in common to be compared: the rate asked for, or how many requests were under way."""
    return (step.concurrency, 0.0 if step.concurrency else step.rate)


def _partners(run: Run, endpoints: dict[str, list[MeasuredStep]]) -> Iterator[tuple[str, str]]:
    order = [f"{entry.get('model')}/{entry.get('variant')}" for entry in run.manifest.endpoints]
    known = [name for name in order if name in endpoints] + [name for name in endpoints if name not in order]
    # stable: the others keep their order
    known.sort(key=lambda name: _split(name)[1] != "eager")
    return ((a, b) for a, b in combinations(known, 2) if _split(a)[0] == _split(b)[0])


def _split(endpoint: str) -> tuple[str, str]:
    model, _, variant = endpoint.rpartition("/")
    return model, variant


def _at(steps: list[MeasuredStep], level: Level) -> list[MeasuredStep]:
    found = (step for step in steps if _level(step) == level and not step.twin)
    return sorted(found, key=lambda step: (step.summary.block, step.summary.index))


def _pair(run: Run, a: str, b: str, level: Level, rounds: list[tuple[MeasuredStep, MeasuredStep]]) -> Pair:
    concurrency, rate = level
    usable = [both for both in rounds if not any(_fault(step) for step in both)]
    if not usable:
        faults = [(step.summary.endpoint, _fault(step)) for both in rounds for step in both]
        note = "; ".join(dict.fromkeys(f"{endpoint} {fault}" for endpoint, fault in faults if fault))
        return Pair(a, b, rate, None, None, None, None, None, len(rounds), note, concurrency)
    p50 = [(_figure(one.summary.p50_ms), _figure(other.summary.p50_ms)) for one, other in usable]
    p99 = [(_figure(one.summary.p99_ms), _figure(other.summary.p99_ms)) for one, other in usable]
    if len(usable) > 1:
        ratio = paired_ratio([one for one, _ in p99], [other for _, other in p99])
    else:
        ratio = block_ratio(_latency(run, usable[0][0]), _latency(run, usable[0][1]), 99)
    value = _geometric(p99)
    unsure = None if ratio else "there are too few independent arrivals for an interval"
    return Pair(
        a=a,
        b=b,
        rate=rate,
        p50_ratio=_geometric(p50),
        p99_ratio=value,
        ratio_low=ratio.low if ratio else None,
        ratio_high=ratio.high if ratio else None,
        smallest_visible=ratio.smallest_visible if ratio else None,
        rounds=len(usable),
        note=unsure if value else "so many arrivals failed that P99 is infinite",
        concurrency=concurrency,
    )


def _fault(step: MeasuredStep) -> str | None:
    if not step.summary.n:
        return "has no arrivals"
    if not step.summary.trusted:
        return "cannot be trusted"
    return "was overloaded" if step.overloaded else None


def _latency(run: Run, step: MeasuredStep) -> Floats:
    rows = run.requests
    found: Floats = np.where(rows["ok"].to_numpy()[step.rows], rows["latency_ms"].to_numpy()[step.rows], math.inf)
    return found


def _geometric(both: list[tuple[float, float]]) -> float | None:
    """The geometric mean of a ÷ b, None where any is infinite, zero or unknown."""
    values = np.asarray(both)
    if not (np.isfinite(values) & (values > 0)).all():
        return None
    return float(np.exp(np.diff(np.log(values[:, ::-1]), axis=1).mean()))


def _figure(value: float | None) -> float:
    return math.nan if value is None else value
