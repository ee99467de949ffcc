"""What answers wait for others' prompts: the gaps of each step that another prompt was read in, and all other gaps.

A server that says how long a request was queued read its prompt from then on, until its first token came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.stats.array_types import Bools, Ints
from tailrate.analysis.stats.select import ENOUGH

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("endpoint", "replica", "intended_ns", "sent_ns", "queue_ms", "prefill_ms", "first_ns", "gaps_us", "ok")


@dataclass(frozen=True, slots=True)
class BesidePrompts:
    index: int
    endpoint: str
    gaps: int
    """Without a prompt."""
    p50_ms: float | None
    p99_ms: float | None
    """None of fewer than a hundred."""
    beside: int
    beside_p50_ms: float | None
    beside_p99_ms: float | None


def beside_prompts(
    requests: pd.DataFrame, index: int, endpoint: str, start_ns: int, end_ns: int
) -> BesidePrompts | None:
    """Of an endpoint's answers to what was intended within these instants of a step; None where it has no such."""
    rows = requests[(requests["endpoint"] == endpoint) & requests["ok"] & requests["prefill_ms"].notna()]
    within = rows["intended_ns"].between(start_ns, end_ns)
    gaps, beside = [np.zeros(0, np.int64)], [np.zeros(0, np.bool_)]
    for _, mine in rows.groupby("replica", observed=True):
        sent, queued, first = (mine[name] for name in ("sent_ns", "queue_ms", "first_ns"))
        begins = sent.to_numpy(np.int64) + (queued.to_numpy(np.float64) * 1e6).astype(np.int64)
        reading = merged(begins, first.to_numpy(np.int64))
        told = mine[within[mine.index]]
        from_ns, to_ns = _gaps(told["first_ns"].to_numpy(np.int64), told["gaps_us"].tolist())
        gaps.append(to_ns - from_ns)
        beside.append(overlaps(from_ns, to_ns, *reading))
    ns, some = np.concatenate(gaps), np.concatenate(beside)
    if not len(ns):
        return None
    alone, shared = ns[~some], ns[some]
    return BesidePrompts(
        index, endpoint, len(alone), _at(alone, 50), _at(alone, 99), len(shared), _at(shared, 50), _at(shared, 99)
    )


def _gaps(first_ns: Ints, gaps_us: list[Any]) -> tuple[Ints, Ints]:
    """When each began and ended, one answer's behind the other's."""
    ends = [first + 1000 * np.cumsum(each, dtype=np.int64) for first, each in zip(first_ns, gaps_us, strict=True)]
    begins = [np.concatenate([[first], end[:-1]]) for first, end in zip(first_ns, ends, strict=True) if len(end)]
    none = np.zeros(0, np.int64)
    return np.concatenate([none, *begins]), np.concatenate([none, *ends])


def merged(begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Spans of time as those that don't touch, in order.

    >>> merged(np.array([5, 0, 1]), np.array([9, 2, 4]))
    (array([0, 5]), array([4, 9]))
    """
    order = np.argsort(begins, kind="stable")
    begins, until = begins[order], np.maximum.accumulate(ends[order])
    new = np.concatenate([[True], begins[1:] > until[:-1]])[: len(begins)]
    last = np.concatenate([new[1:], [True]])[: len(begins)]
    return begins[new], until[last]


def overlaps(from_ns: Ints, to_ns: Ints, begins: Ints, ends: Ints) -> Bools:
    """Which of these has any of those spans in it, which don't touch and are in order."""
    place = np.searchsorted(ends, from_ns, side="right")
    next_ns = np.append(begins, np.iinfo(np.int64).max)[place]
    found: Bools = next_ns < to_ns
    return found


def _at(ns: Ints, percent: int) -> float | None:
    if not len(ns) or (percent == 99 and len(ns) < ENOUGH):
        return None
    return float(np.percentile(ns, percent, method="inverted_cdf")) / 1e6
