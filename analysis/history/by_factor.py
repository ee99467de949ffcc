"""One fact across runs: what torch versions, GPUs, variants or commits do to a figure, with intervals.

Only what else is alike is compared: runs of one lineage but for the fact, and for what cannot but change along with it,
which is named. The first value seen is the base, of variants eager. Where both values were measured in the same runs,
as variants are, what a run did to both cancels; else the spread from run to run within a value says how sure the ratio
is. It is called a difference by Holm's procedure over all of a table, wrong about any in 5 of 100.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tailrate.analysis.history.figure_series import (
    KINDS,
    FigureKind,
    FigureReading,
    Load,
    common_load,
    environment,
    readers,
)
from tailrate.analysis.history.log import Key, key_of
from tailrate.analysis.history.regression import FINEST
from tailrate.analysis.history.run_summary import Entry
from tailrate.analysis.stats.distributions import student_p_value, student_quantile
from tailrate.analysis.stats.ratio import LEVEL, holm

VARIANT = "variant"
_ALONG = {
    "torch": ("cuda",),
    "device": ("cuda", "driver", "threads", "max batch", "buckets", "load cpus", "ray"),
    "driver": ("cuda",),
    "precision": ("compile mode",),
    VARIANT: ("compile mode", "precision"),
}
"""What changes along with a fact."""
_CALLED = {"gpu": "device", "device name": "device"}


Alike = tuple[str, tuple[tuple[str, str], ...]]
"""Endpoint, or model, and environment."""


class Measured(NamedTuple):
    entry: Entry
    endpoint: str
    along: dict[str, str]
    """Facts that change along."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One figure at one value of the fact, over that at the base."""

    endpoint: str
    """The endpoint; where variants are compared, the model alone."""
    key: str
    at: str
    base: str
    value: str
    base_runs: int
    runs: int
    base_usual: float
    """Geometric mean; of shares the mean on their scale."""
    usual: float
    ratio: float | None
    """Of shares there is none."""
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    differs: bool | None = None
    """None: one run each shows no interval."""
    along: tuple[str, ...] = ()
    """What else is different."""


def contrasts(entries: Sequence[Entry], by: str, endpoints: Iterable[str], keys: Iterable[str]) -> list[Contrast]:
    """Of runs in order of time; `by` is the name of a fact as `--json` lists it, gpu or variant."""
    fact = _CALLED.get(by.replace("_", " "), by.replace("_", " "))
    wanted, figures = set(endpoints), list(keys)
    groups: dict[Alike, dict[str, list[Measured]]] = {}
    for entry in entries:
        for endpoint in dict.fromkeys(level.endpoint for level in entry.levels if level.endpoint in wanted):
            value, alike, along = _told_apart(entry, endpoint, fact)
            if value is not None:
                groups.setdefault(alike, {}).setdefault(value, []).append(Measured(entry, endpoint, along))
    found: list[Contrast] = []
    for (endpoint, _), values in groups.items():
        base, *others = sorted(values.items(), key=lambda item: item[0] != "eager" or fact != VARIANT)  # stable
        for other in others:
            found += _compared(endpoint, base, other, figures)
    return _called(found)


def _told_apart(entry: Entry, endpoint: str, fact: str) -> tuple[str | None, Alike, dict[str, str]]:
    """The fact's value, everything that must be alike, and what may change along with the fact."""
    around = environment(entry, endpoint)
    model, _, variant = endpoint.rpartition("/")
    named = {name: said for (group, name), said in entry.origin.items() if group in ("version", "host", endpoint)}
    value = variant if fact == VARIANT else around.pop(fact, None) or named.get(fact)
    along = {name: around.pop(name) for name in _ALONG.get(fact, ()) if name in around}
    return value, (model if fact == VARIANT else endpoint, tuple(sorted(around.items()))), along


def _compared(
    endpoint: str, one: tuple[str, list[Measured]], other: tuple[str, list[Measured]], figures: Sequence[str]
) -> Iterator[Contrast]:
    (base, before), (value, after) = one, other
    every = [*before, *after]
    load = common_load([run.entry.of_endpoint(run.endpoint) for run in every], _in_both(before, after))
    starts = Counter(opened.start for run in every if (opened := run.entry.opened.get(run.endpoint)))
    changed = tuple(
        sorted({name for run in every for name in run.along if len({r.along.get(name) for r in every}) > 1})
    )
    for key, (at, read) in readers(load, max(starts, key=lambda start: starts[start], default="")).items():
        kind = KINDS[key]
        old, new = (
            {key_of(run.entry): r for run in runs if (r := read(run.entry, run.endpoint)) and kind.has(r.value)}
            for runs in (before, after)
        )
        if key in figures and old and new:
            by, reach, p_value = _difference(kind, old, new)
            base_usual, usual = (
                kind.value(float(np.mean([kind.scaled(r.value) for r in side.values()]))) for side in (old, new)
            )
            ratio, low, high = (
                None if kind.share or off is None else kind.value(by + off)
                for off in (0.0, None if reach is None else -reach, reach)
            )
            yield Contrast(
                endpoint, key, at, base, value, len(old), len(new), base_usual, usual, ratio, low, high, p_value,
                along=changed,
            )  # fmt: skip


def _in_both(before: Iterable[Measured], after: Iterable[Measured]) -> set[Load]:
    old, new = (
        {level.load for run in runs for level in run.entry.of_endpoint(run.endpoint) if not level.doubtful}
        for runs in (before, after)
    )
    return old & new


def _difference(
    kind: FigureKind, old: Mapping[Key, FigureReading], new: Mapping[Key, FigureReading]
) -> tuple[float, float | None, float | None]:
    """New − old on the figure's scale, how far its 95 % interval reaches, and how rare so much is by chance."""
    both = sorted(old.keys() & new.keys())
    paired = len(both) > 1
    a, b = ([kind.scaled(side[key].value) for key in (both if paired else side)] for side in (old, new))
    by, freedom = float(np.mean(b) - np.mean(a)), len(both) - 1 if paired else len(a) + len(b) - 2
    if freedom < 1:
        return by, None, None
    if paired:
        spread = float(np.std(np.subtract(b, a), ddof=1)) / math.sqrt(2)
    else:
        squares = sum(float(np.sum(np.square(np.subtract(side, np.mean(side))))) for side in (a, b))
        spread = math.sqrt(squares / freedom)
    within = float(np.median([reading.error for side in (old, new) for reading in side.values()]))
    error = max(spread, within, FINEST) * math.sqrt(1 / len(a) + 1 / len(b))
    reach = student_quantile(freedom, 1 - LEVEL / 2) * error
    return by, reach, student_p_value(freedom, by / error)


def _called(found: Sequence[Contrast]) -> list[Contrast]:
    tested = sorted((one for one in found if one.p_value is not None), key=lambda one: one.p_value or 0.0)
    called = {id(one) for one in tested[: holm([one.p_value or 0.0 for one in tested], of=len(tested))]}
    return [replace(one, differs=None if one.p_value is None else id(one) in called) for one in found]
