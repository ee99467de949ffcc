"""Where a request's time went, by stage and percentile: rows of `breakdown`; and what grew from one rate to the next.

The requests that are as slow as a percentile says (those in the narrowest band of latency around it that holds enough)
are averaged stage by stage, so a row adds up to the latency of that percentile and not to a sum of percentiles, which
no request ever had. A stage that the server does not tell is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.counting.order_statistics import PERCENTS
from tailrate.analysis.run.bins import PARTS
from tailrate.analysis.stats.trend import rank

if TYPE_CHECKING:
    from tailrate.analysis.counting.counts import Tally
    from tailrate.analysis.steps.measure import MeasuredStep

LEAST = 30
"""Requests that a row rests on, at least, where so many are as slow."""
STAGES = {
    "client_ms": "waiting in the load generator",
    "network_ms": "the way to the server and back, with the proxy before it",
    "ingress_ms": "inside the server before and after its stages",
    "queue_ms": "waiting in the replica's queue",
    "batch_ms": "waiting for and building the batch, or while others' prompts are read",
    "h2d_ms": "copying from host to device",
    "compute_ms": "running the model",
    "d2h_ms": "copying from device to host",
    "prefill_ms": "reading the prompt",
    "decode_ms": "writing tokens",
    "text_ms": "making text of the last token and sending it",
}


@dataclass(frozen=True, slots=True)
class Breakdown:
    index: int
    endpoint: str
    percentile: float
    n: int
    """Successes that the row rests on."""
    latency_ms: float
    """Their mean latency: that of the percentile, but for the width of the band."""
    client_ms: float | None
    network_ms: float | None
    """All of the service time outside of the server's stages where the server does not tell when it was at work."""
    ingress_ms: float | None
    queue_ms: float | None
    batch_ms: float | None
    h2d_ms: float | None
    compute_ms: float | None
    d2h_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    text_ms: float | None
    grew: str | None = None
    """The stage that grew most since the next lower rate of this endpoint."""
    grew_by_ms: float | None = None


def breakdown(steps: Iterable[MeasuredStep]) -> list[Breakdown]:
    """A row for the usual percentiles of every step that has successes there."""
    known = [(step, {row.percentile: row for row in _rows(step)}) for step in steps]
    found: list[Breakdown] = []
    for step, rows in known:
        same = [(other.rate, its) for other, its in known if other.summary.endpoint == step.summary.endpoint]
        lower = [(rate, its) for rate, its in same if rate < step.rate]
        _, before = max(lower, key=itemgetter(0), default=(0.0, dict[float, Breakdown]()))
        found += [replace(row, **_grown(before.get(percent), row)) for percent, row in rows.items()]
    return found


def _rows(step: MeasuredStep) -> Iterator[Breakdown]:
    for percent in PERCENTS:
        latency = step.order.latency_ms.get(percent)
        # a percentile of so few requests is that of one of them
        if latency is not None and math.isfinite(latency) and step.tally.n * (1 - percent / 100) >= 1:
            yield _row(step, percent)


def _grown(before: Breakdown | None, after: Breakdown) -> dict[str, Any]:
    rises = {
        name: new - old
        for name in STAGES
        if before and (old := getattr(before, name)) is not None and (new := getattr(after, name)) is not None
    }
    most = max(rises, key=lambda name: rises[name], default=None)
    # less is what the next run would have the other way round
    if most is None or rises[most] <= 0.02 * after.latency_ms:
        return {}
    return {"grew": most.removesuffix("_ms"), "grew_by_ms": rises[most]}


def _row(step: MeasuredStep, percent: float) -> Breakdown:
    tally = step.tally
    first, last = _band(tally, percent)
    sums = tally.by_latency[first : last + 1].sum(axis=0)
    n = int(sums[0])
    every = {name: tally.known(name) == tally.ok for name in PARTS}

    def mean(name: str) -> float | None:
        return float(sums[1 + PARTS.index(name)]) / n if every[name] else None

    latency, service, handled, server = (mean(f"{name}_ms") for name in ("latency", "service", "handled", "server"))
    inside = server if handled is None else handled
    return Breakdown(
        step.summary.index,
        step.summary.endpoint,
        percent,
        n,
        latency or 0.0,
        client_ms=None if latency is None or service is None else max(0.0, latency - service),
        network_ms=None if service is None or inside is None else max(0.0, service - inside),
        ingress_ms=None if handled is None or server is None else max(0.0, handled - server),
        queue_ms=mean("queue_ms"),
        batch_ms=mean("batch_ms"),
        h2d_ms=mean("h2d_ms"),
        compute_ms=mean("compute_ms"),
        d2h_ms=mean("d2h_ms"),
        prefill_ms=mean("prefill_ms"),
        decode_ms=mean("decode_ms"),
        text_ms=mean("text_ms"),
    )


def _band(tally: Tally, percent: float) -> tuple[int, int]:
    """The bins of latency around a percentile, widened on both sides until they hold enough requests."""
    counts = tally.by_latency[:, 0]
    below = np.cumsum(counts)
    place = int(np.searchsorted(below, rank(tally.n, percent), side="right"))
    first = last = min(place, len(counts) - 1)
    enough = min(LEAST, max(5, 2 * tally.n * (1 - percent / 100)), float(below[-1]))
    while counts[first : last + 1].sum() < enough:
        first, last = max(0, first - 1), min(len(counts) - 1, last + 1)
    return first, last
