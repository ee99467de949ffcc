"""Every arrival of every step, by what became of it: rows of `ledger`. Settle time included, nothing left out.

scheduled = sent + dropped + lost before they were sent; sent = ok + refused + failed + timed out + unreachable + lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis.records import LOST
from analysis.stats import percentile

if TYPE_CHECKING:
    from analysis.store import Run

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


def ledger(run: Run) -> list[LedgerRow]:
    """One row per step, or per endpoint of a step that a foreign source let several answer."""
    rows = run.requests
    status = rows["status"].astype(str).to_numpy()
    late, sent = rows["late_ms"].to_numpy(dtype=np.float64), rows["sent_ns"].notna().to_numpy()
    by_step = rows.groupby("step").indices
    found = []
    for step in run.manifest.scenario["steps"]:
        places = np.asarray(by_step.get(step["index"], ()), dtype=np.intp)
        own = status[places]
        known = {kind: int((own == kind).sum()) for kind in ("200", "timeout", "connect", "dropped", LOST)}
        refused = int(np.isin(own, REFUSED).sum())
        lateness = late[places][~np.isnan(late[places])]
        quantiles = [percentile(lateness, percent) if len(lateness) else None for percent in (50, 99, 100)]
        found.append(
            LedgerRow(
                step["index"],
                str(step["endpoint"]),
                scheduled=len(own),
                sent=int(sent[places].sum()),
                ok=known["200"],
                refused=refused,
                failed=len(own) - sum(known.values()) - refused,
                timed_out=known["timeout"],
                unreachable=known["connect"],
                dropped=known["dropped"],
                lost=known[LOST],
                late_p50_ms=quantiles[0],
                late_p99_ms=quantiles[1],
                late_max_ms=quantiles[2],
            )
        )
    return found
