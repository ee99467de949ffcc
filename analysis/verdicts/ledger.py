"""Every arrival of every step and endpoint, settle time included, by what became of it: rows of `ledger`.

scheduled = sent + dropped + lost before they were sent; sent = ok + refused + failed + timed out + unreachable + lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrate.analysis.records.rows import LOST

if TYPE_CHECKING:
    from tailrate.analysis.steps.measure import MeasuredStep

REFUSED = ("429", "503", "504", "408")
"""Full, not ready, or past its deadline: the endpoint protects itself."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    index: int
    endpoint: str
    scheduled: int
    sent: int
    ok: int
    refused: int
    failed: int
    timed_out: int
    unreachable: int
    dropped: int
    lost: int
    late_p50_ms: float | None
    late_p99_ms: float | None
    late_max_ms: float | None


def ledger(steps: Iterable[MeasuredStep]) -> list[LedgerRow]:
    found = []
    for step in steps:
        tally, late = step.tally, step.order.late_whole_ms
        known = {word: tally.statuses[word] for word in ("timeout", "connect", "dropped", LOST)}
        scheduled, refused = sum(tally.statuses.values()), sum(tally.statuses[word] for word in REFUSED)
        found.append(
            LedgerRow(
                step.summary.index,
                step.summary.endpoint,
                scheduled=scheduled,
                sent=tally.sent,
                ok=tally.succeeded,
                refused=refused,
                failed=scheduled - tally.succeeded - refused - sum(known.values()),
                timed_out=known["timeout"],
                unreachable=known["connect"],
                dropped=known["dropped"],
                lost=known[LOST],
                late_p50_ms=late.get(50.0),
                late_p99_ms=late.get(99.0),
                late_max_ms=late.get(100.0),
            )
        )
    return found
