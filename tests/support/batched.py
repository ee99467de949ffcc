"""A batching endpoint in virtual time, slow and plain, and the run folders that it would have left behind.

What the analysis says of batches is held against it: when each began, which requests were in it, and the rule that made
them are known. It shares nothing with `tailrate.analysis.planning.simulator.simulate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from folders import GPU, START_NS, Load, make_run, rewrite

from tailrate.analysis.records.manifest import Manifest

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Server:
    """One replica takes `service_s(requests, generator)` for a batch, and `gap_s` more before it begins another."""

    service_s: Callable[[int, np.random.Generator], float]
    max_batch: int = 8
    wait_s: float = 0.0
    rule: str = "company"
    gap_s: float = 0.0
    way_s: float = 0.0004
    """There and back, each; half of it again at random."""
    replicas: int = 1
    """Taken in turn."""
    waking: tuple[float, float, float] = (0.0, 1.0, 0.0)
    """After so many seconds of idleness a batch takes longer, after so many by so much."""
    telling_s: float = 0.0
    """For so long each answer of a batch makes the next one longer, but for what was idle between …"""
    telling_most: int = 1 << 30
    """… so many of them at most."""
    wake_s: float = 0.0
    """After a request came, where it was idle and waits for nobody."""
    said: dict[str, Any] = field(default_factory=dict)
    """More parameters of the endpoint."""


def linear(fixed_s: float, each_s: float, spread: float = 0.0) -> Callable[[int, np.random.Generator], float]:
    """Lognormal around its mean."""
    if not spread:
        return lambda requests, rng: fixed_s + each_s * requests
    sigma = float(np.sqrt(np.log1p(spread**2)))
    return lambda requests, rng: (fixed_s + each_s * requests) * float(np.exp(sigma * rng.normal() - sigma**2 / 2))


def poisson(rate: float, seconds: float, seed: int) -> Floats:
    at_s = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, int(rate * seconds * 1.5) + 50))
    return at_s[at_s < seconds]


def batched(received_s: Floats, server: Server, rng: np.random.Generator) -> list[tuple[float, float, int, int]]:
    """(begun, service, first, end) of each batch of one replica; requests go in the order of their coming."""
    n, most, wait = len(received_s), server.max_batch, server.wait_s
    found: list[tuple[float, float, int, int]] = []
    free = closed = -np.inf
    leftover, i = 0, 0

    def until(instant: float) -> int:
        """The end of those from `i` on who were there by then, `most` at most."""
        end = i
        while end < n and end < i + most and received_s[end] <= instant:
            end += 1
        return end

    while i < n:
        first = received_s[i]
        full = received_s[i + most - 1] if i + most <= n else np.inf
        ready = max(free, first)
        if server.rule == "company":
            second = received_s[i + 1] if most > 1 and i + 1 < n else -np.inf if most == 1 else np.inf
            asleep_s = 0.0 if wait or first <= free else server.wake_s
            at = max(ready + asleep_s, min(ready + wait, second))
            begun, end = at, until(at)
        elif server.rule == "opportunistic":
            at = max(ready, min(ready + wait, full))
            begun, end = at, until(at)
        elif server.rule == "awaiting":
            taken = max(closed, first)
            closed = max(taken, min(taken + wait, full))
            begun, end = max(closed, free), until(closed)
        else:  # blocking: the timer of what was left over ran out while the loop was blocked
            late = closed + wait <= free
            if late and leftover == 0 and first <= closed:
                begun, end = free, until(closed)
                leftover = 1 if end - i < most else 0
            elif late and leftover == 1 and first <= free:
                begun, end, leftover = free, until(free), 0
            else:
                begun = max(ready, min(ready + wait, full))
                end, leftover = until(begun), 0
            closed = begun
        from_s, full_s, extra_s = server.waking
        asleep = min(1.0, max(0.0, (begun - free - from_s) / (full_s - from_s)))
        service = server.service_s(end - i, rng) + extra_s * asleep
        told = min(server.telling_most, found[-1][3] - found[-1][2]) if found else 0
        service += max(0.0, server.telling_s * told - (begun - free)) if found else 0.0
        found.append((begun, service, i, end))
        free = begun + service + server.gap_s
        i = end
    return found


def rows_of(arrivals_s: Floats, server: Server, step: int, endpoint: str, begin_s: float, seed: int) -> pd.DataFrame:
    """The rows of one step whose arrivals are these, sent on time."""
    rng = np.random.default_rng(seed)
    n = len(arrivals_s)
    there, back = (server.way_s * (1 + 0.5 * rng.random(n)) for _ in range(2))
    received = arrivals_s + there
    columns = {name: np.zeros(n) for name in ("begun", "service", "size", "answered")}
    replica = np.empty(n, dtype=object)
    for number in range(server.replicas):
        mine = np.arange(number, n, server.replicas)
        mine = mine[np.argsort(received[mine], kind="stable")]
        for begun, service, first, end in batched(received[mine], server, rng):
            inside = mine[first:end]
            replica[inside] = f"replica-{number}"
            for name, value in (("begun", begun), ("service", service), ("size", end - first)):
                columns[name][inside] = value
            # answers are written one after the other, while the next batch may be under way
            columns["answered"][inside] = begun + service + 20e-6 * np.arange(1, end - first + 1)
    intended = START_NS + np.rint((begin_s + arrivals_s) * 1e9).astype(np.int64)
    queue_ms = 1e3 * (columns["begun"] - received)
    total_ms = 1e3 * (columns["answered"] - received)
    return pd.DataFrame({
        "worker": 0, "seq": np.arange(n), "step": step, "endpoint": endpoint,
        "intended_ns": intended, "sent_ns": pd.array(intended, dtype="Int64"),
        "done_ns": pd.array(
            START_NS + np.rint((begin_s + columns["answered"] + back) * 1e9).astype(np.int64), dtype="Int64"
        ),
        "status": "200", "error": None, "bytes_in": 512, "bytes_out": 64, "rows": 1,
        "queue_ms": queue_ms, "batch_ms": 0.0, "h2d_ms": 0.0, "compute_ms": np.round(1e3 * columns["service"], 4),
        "d2h_ms": 1e3 * (columns["answered"] - columns["begun"] - columns["service"]),
        "server_ms": total_ms, "batch_rows": columns["size"].astype(np.int64), "replica": replica, "device": GPU,
        "handled_ms": total_ms + 0.05,
    })  # fmt: skip


def batched_run(
    folder: Path, server: Server, rates: Sequence[float], *, seconds: float = 30.0, settle_s: float = 2.0,
    endpoint: str = "m/a", slo: Sequence[str] = (), seed: int = 1,
) -> pd.DataFrame:  # fmt: skip
    """A run with a step at each rate; its rows."""
    loads = [Load(endpoint, rate, seconds=seconds, settle_s=settle_s) for rate in rates]
    make_run(folder, loads, slo=slo, mode="hold", poisson=True)
    tables = [
        rows_of(poisson(rate, seconds, 100 * seed + step), server, step, endpoint, step * seconds, 7 * seed + step)
        for step, rate in enumerate(rates)
    ]
    rows = pd.concat(tables, ignore_index=True)
    rewrite(folder, rows)
    manifest = Manifest.read(folder)
    ours = {"max_wait_ms": 1e3 * server.wait_s, "max_queue": 256} if server.rule == "company" else {}
    manifest.endpoints[0] |= {"max_batch": server.max_batch, "parameters": ours | server.said}
    manifest.totals = {"scheduled": len(rows), "ok": len(rows), "failed": 0, "timed_out": 0, "dropped": 0, "lost": 0}
    manifest.write(folder)
    return rows
