"""The pass over the rows of requests: parts are read and added up side by side, their tallies put together in order.

How a part is counted is `counted_part`; here is what concerns a run as a whole, such as numbers that were given twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.counting.counted_part import COLUMNS, Plan
from tailrate.analysis.counting.counts import Key, Tallies, Tally
from tailrate.analysis.records.folder import REQUESTS
from tailrate.analysis.run.arrays import scan
from tailrate.analysis.run.bins import FIGURES, NEVER
from tailrate.analysis.stats.array_types import Ints

if TYPE_CHECKING:
    from tailrate.analysis.run.recorded_run import RecordedRun


def tally(run: RecordedRun, closed: Callable[[Key, Tally], None]) -> Tallies:
    """One pass over all rows; `closed` is called for each tally that will not grow any more."""
    stored = run.tables[REQUESTS]
    whole, numbers, plan = Tallies(), _Numbers(len(stored)), Plan(run)
    spans = [stored.span(part, "step") for part in stored.parts]
    last = {
        step: max((n for n, span in enumerate(spans) if span[0] <= step <= span[1]), default=0) for step in plan.planned
    }
    open_: list[Key] = []
    for number, part in enumerate(scan(stored, COLUMNS, plan.count)):
        for name in ("rows", "strangers", "impossible", "with_device", "joined", "near_boundary"):
            setattr(whole, name, getattr(whole, name) + getattr(part.own, name))
        ends = [end for end in (whole.first_ns, part.own.first_ns) if end is not None]
        whole.first_ns = min(ends, default=None)
        whole.carried += part.own.carried
        whole.last_ns = max((end for end in (whole.last_ns, part.own.last_ns) if end is not None), default=None)
        numbers.add(part.step, part.seq)
        for key, found in part.own.groups.items():
            if key in whole.groups:
                whole.groups[key].add(found)
            else:
                whole.groups[key] = found
                open_.append(key)
        for key in [key for key in open_ if last[key[0]] <= number]:
            closed(key, whole.groups[key])
            open_.remove(key)
    whole.doubled = numbers.doubled()
    whole.unnumbered = 0 if stored.lacks("seq") else whole.rows - numbers.count
    known = {*plan.planned.values()}
    whole.strangers += sum(found.statuses.total() for (_, name), found in whole.groups.items() if name not in known)
    return whole


def pieces(run: RecordedRun, keys: Sequence[Key]) -> Iterator[tuple[Key, Tally]]:
    """These tallies again, part by part and with every latency, service time and lateness."""
    for part in scan(
        run.tables[REQUESTS], [name for name in COLUMNS if name not in (*FIGURES, "rows")], Plan(run).count
    ):
        for key in keys:
            if key in part.own.groups:
                yield key, part.own.groups[key]


class _Numbers:
    """Whether a number was given to two arrivals of one step."""

    def __init__(self, rows: int) -> None:
        self.most = 4 * rows + 1024
        self.count = 0
        self.given: dict[int, Any] = {}
        self.odd: dict[int, list[Ints]] = {}

    def add(self, step: Any, numbers: Ints) -> None:
        if not len(step):
            return
        if step.min() == step.max():
            self._add(int(step[0]), numbers)
            return
        for index in np.unique(step).tolist():
            self._add(index, numbers[step == index])

    def _add(self, step: int, numbers: Ints) -> None:
        if len(numbers) and numbers.min() == NEVER:
            numbers = numbers[numbers != NEVER]
        if not len(numbers):
            return
        self.count += len(numbers)
        high = int(numbers.max())
        if high >= self.most or numbers.min() < 0:
            self.odd.setdefault(step, []).append(numbers)
            return
        given = self.given.setdefault(step, np.zeros(0, dtype=np.bool_))
        if high >= len(given):
            given = self.given[step] = np.concatenate([given, np.zeros(high + 1 + len(numbers), dtype=np.bool_)])
        given[numbers] = True

    def doubled(self) -> int:
        different = sum(int(given.sum()) for given in self.given.values())
        different += sum(len(np.unique(np.concatenate(numbers))) for numbers in self.odd.values())
        return self.count - different
