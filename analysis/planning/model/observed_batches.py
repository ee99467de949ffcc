"""What ran together: the batches of one endpoint in one step, put together again from the rows of its requests.

The answers of one batch carry the same stage times (to 0.1 µs) from the same replica. When a batch was begun lies
between two bounds that each of its rows gives: it was sent before it was received, and answered after it was ready; so
the middle of what all rows leave is good to a fraction of the way there and back, and the same error is in every batch.

Owns instants and sizes; what a batch costs is `fit`, and by which rule it was made `batching_rule`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tailrate.analysis.run.columns import WHOLE
from tailrate.analysis.stats.array_types import Bools, Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

    from tailrate.analysis.steps.measure import MeasuredStep
    from tailrate.analysis.verdicts.run import Run


COLUMNS = (
    "intended_ns", "sent_ns", WHOLE, "ok", "endpoint", "replica", "rows", "batch_rows",
    "queue_ms", "batch_ms", "h2d_ms", "compute_ms", "server_ms", "handled_ms",
)  # fmt: skip
JITTER_S = 1e-3
"""How far apart the rows of one batch may place its begin, at least."""


@dataclass(frozen=True, slots=True, eq=False)
class ObservedBatches:
    """By replica, then in the order in which they were begun; instants are seconds since the step's start."""

    replica: Ints
    requests: Ints
    begun_s: Floats
    stages_s: Floats
    """From its begin to the end of its compute: forming it, copying it in, computing."""
    compute_s: Floats
    first_s: Floats
    """When the first of its requests was received."""
    second_s: Floats
    """The second; infinity where there is none."""
    last_s: Floats
    whole: Bools
    """Whether all of its requests are among the rows."""

    def __len__(self) -> int:
        return len(self.begun_s)

    def only(self, which: npt.NDArray[Any]) -> ObservedBatches:
        return ObservedBatches(**{one.name: getattr(self, one.name)[which] for one in fields(self)})

    @classmethod
    def joined(cls, parts: Sequence[ObservedBatches]) -> ObservedBatches:
        """One after the other; equal numbers of replicas in two parts are two replicas."""
        columns = {one.name: np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(cls)}
        which = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        return cls(**columns | {"replica": columns["replica"] + (which << 20)})

    @property
    def follows(self) -> Bools:
        """Whether the batch before it in the arrays ran on the same replica."""
        found = np.zeros(len(self), dtype=bool)
        found[1:] = self.replica[1:] == self.replica[:-1]
        return found

    @property
    def ended_before_s(self) -> Floats:
        """When the compute of the one before it on its replica had ended; minus infinity for the first."""
        found = np.full(len(self), -np.inf)
        found[1:] = (self.begun_s + self.stages_s)[:-1]
        return np.where(self.follows, found, -np.inf)

    @property
    def idle_s(self) -> Floats:
        """For how long its replica had been idle; 0 for the first, of which that is not known."""
        return np.where(self.follows, self.begun_s - self.ended_before_s, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """One endpoint in one step: every arrival, and of what was answered the batches."""

    run: str
    index: int
    rate: float
    """Asked for; in a closed loop what came of it."""
    closed: bool
    seconds: float
    settle_s: float
    arrivals_s: Floats
    """Every one since the step's start, ascending, the settle time included."""
    latency_s: Floats
    """Of each; infinity for what failed."""
    rows: float
    """Per request, in the mean."""
    sizes: tuple[int, int]
    """The fewest and the most rows of a request."""
    batches: ObservedBatches
    """Those begun after the settle time."""
    batch: Ints
    """Of each answer with stage times: its place in `batches`."""
    queued_s: Floats
    answered_s: Floats
    """Latency of each of these answers."""
    overloaded: bool = False
    doubt: str | None = None
    """Why the step cannot be trusted."""
    beside: tuple[str, ...] = ()
    """Other endpoints that were driven at the same time."""
    power_w: float | None = None
    idle_w: float | None = None
    """Of the endpoint's devices: with what it adds, and without load, which is all of it whoever shares them."""

    @property
    def window(self) -> Bools:
        """Which arrivals are measured."""
        return self.arrivals_s >= self.settle_s

    @property
    def replicas(self) -> int:
        return len(np.unique(self.batches.replica))

    @property
    def offered_rps(self) -> float:
        return float(self.window.sum()) / (self.seconds - self.settle_s)


def observe(run: Run, measured: MeasuredStep) -> Observed:
    row = measured.summary
    steps = run.manifest.scenario["steps"]
    step = next(one for one in steps if one["index"] == row.index)
    others = [one for one in steps if one["start_ns"] < step["end_ns"] and step["start_ns"] < one["end_ns"]]
    rows = run.requests(row.index, COLUMNS)
    rows = rows[(rows["endpoint"] == row.endpoint).to_numpy(dtype=bool)]
    start_ns = int(step["start_ns"])
    idle_w, added_w = measured.idle_w, measured.added_w
    found = of_rows(rows, start_ns, (measured.end_ns - start_ns) / 1e9, (measured.start_ns - start_ns) / 1e9)
    return replace(
        found,
        run=run.manifest.id,
        index=row.index,
        rate=measured.rate,
        closed=bool(measured.concurrency),
        overloaded=measured.overloaded,
        doubt=None if row.trusted else next(iter(row.reasons), "it cannot be trusted"),
        beside=tuple(sorted({str(one["endpoint"]) for one in others} - {row.endpoint})),
        power_w=None if idle_w is None or added_w is None else idle_w + added_w,
        idle_w=idle_w,
    )


def of_rows(rows: pd.DataFrame, start_ns: int, seconds: float, settle_s: float) -> Observed:
    """From `Run.requests` of one endpoint in one step, in the columns above."""
    rows = rows.sort_values("intended_ns", kind="stable")
    intended_s = since(rows["intended_ns"], start_ns)
    ok = rows["ok"].to_numpy(dtype=bool)
    latency_s = np.where(ok, since(rows[WHOLE], start_ns) - intended_s, np.inf)
    told = ok & (rows["rows"] <= rows["batch_rows"]).to_numpy(dtype=bool, na_value=False)  # larger ones go in chunks
    for stage in ("queue_ms", "compute_ms"):
        told &= rows[stage].notna().to_numpy()
    batches, batch = _batches(rows[told], start_ns)
    kept = batches.begun_s >= settle_s
    mine = kept[batch]
    size = rows["rows"].dropna()  # of what was lost with its process none is known
    return Observed(
        run="",
        index=0,
        rate=len(rows) / seconds,
        closed=False,
        seconds=seconds,
        settle_s=settle_s,
        arrivals_s=intended_s,
        latency_s=latency_s,
        rows=float(size.mean()) if len(size) else 1.0,
        sizes=(int(size.min()), int(size.max())) if len(size) else (1, 1),
        batches=batches.only(kept),
        batch=(np.cumsum(kept) - 1)[batch[mine]],
        queued_s=rows["queue_ms"].to_numpy(dtype=np.float64)[told][mine] / 1e3,
        answered_s=latency_s[told][mine],
    )


def _batches(rows: pd.DataFrame, start_ns: int) -> tuple[ObservedBatches, Ints]:
    """The batches, and for each row which one it was in."""

    def ms(name: str) -> Floats:
        return rows[name].to_numpy(dtype=np.float64, na_value=np.nan)

    queue_s, compute_s, size = ms("queue_ms") / 1e3, ms("compute_ms") / 1e3, ms("batch_rows")
    stages_s = compute_s + (np.nan_to_num(ms("batch_ms")) + np.nan_to_num(ms("h2d_ms"))) / 1e3
    handled_s = np.where(np.isnan(ms("handled_ms")), ms("server_ms"), ms("handled_ms")) / 1e3
    handled_s = np.where(np.isnan(handled_s), queue_s + stages_s, handled_s)
    earliest_s = since(rows["sent_ns"], start_ns) + queue_s
    latest_s = since(rows[WHOLE], start_ns) - handled_s + queue_s
    replica = np.asarray(rows["replica"].cat.codes, dtype=np.int64)

    keys = (replica, size, compute_s, stages_s)
    order = np.lexsort(((earliest_s + latest_s) / 2, *keys))
    group = _runs([key[order] for key in keys], (earliest_s + latest_s)[order] / 2, ms("rows")[order])
    firsts = np.flatnonzero(np.diff(group, prepend=-1))
    count = len(firsts)
    earliest, latest = np.full(count, -np.inf), np.full(count, np.inf)
    np.maximum.at(earliest, group, earliest_s[order])
    np.minimum.at(latest, group, latest_s[order])
    begun_s = (earliest + latest) / 2
    # the longest queued first
    by_queue = np.lexsort((-queue_s[order], group))
    waits = queue_s[order][by_queue]
    requests = np.bincount(group, minlength=count)
    second_s = np.where(requests > 1, begun_s - waits[np.minimum(firsts + 1, len(waits) - 1)], np.inf)
    found = ObservedBatches(
        replica=replica[order][firsts],
        requests=requests,
        begun_s=begun_s,
        stages_s=stages_s[order][firsts],
        compute_s=compute_s[order][firsts],
        first_s=begun_s - waits[firsts],
        second_s=second_s,
        last_s=begun_s - waits[firsts + requests - 1],
        whole=np.bincount(group, weights=ms("rows")[order], minlength=count) == size[order][firsts],
    )
    in_time = np.lexsort((found.begun_s, found.replica))
    place = np.empty(count, dtype=np.int64)
    place[in_time] = np.arange(count)
    batch = np.empty(len(rows), dtype=np.int64)
    batch[order] = place[group]
    return found.only(in_time), batch


def _runs(keys: Sequence[npt.NDArray[Any]], at_s: Floats, rows: Floats) -> Ints:
    """Numbers the batches of rows that are in order of (replica, size, compute, all stages) and of time."""
    new = np.zeros(len(rows), dtype=bool)
    for key in keys:
        new |= np.diff(key, prepend=np.nan) != 0
    _, size, _, stages_s = keys
    # equal to 0.1 µs may be chance, but two batches of one replica are a batch's time apart
    new |= np.diff(at_s, prepend=-np.inf) > np.maximum(stages_s / 2, JITTER_S)
    # and no batch has more rows than it says
    before = np.cumsum(rows) - rows
    start = np.maximum.accumulate(np.where(new, before, 0))
    part = (before - start) // np.maximum(size, 1)
    return np.cumsum(new | (np.diff(part, prepend=0) > 0)) - 1


def since(times: pd.Series[Any], start_ns: int) -> Floats:
    """Seconds; NaN where there was none."""
    return (times - start_ns).to_numpy(dtype=np.float64, na_value=np.nan) / 1e9
