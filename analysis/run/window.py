"""The arrivals of one endpoint within some minutes of a run, as arrays in the order in which they were due.

Reads only the parts of the table that lie in that time. A time that did not come is `NEVER`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrate.analysis.records.manifest import settled_ns
from tailrate.analysis.records.rows import KINDS, kind_of
from tailrate.analysis.run.arrays import Chunk, where
from tailrate.analysis.run.bins import NEVER
from tailrate.analysis.run.columns import WHOLE
from tailrate.analysis.run.outcomes import STREAM_COLUMNS, StreamTimes, in_ms, succeeded
from tailrate.analysis.stats.array_types import Bools, Floats, Ints
from tailrate.analysis.stats.dependence import in_a_row
from tailrate.analysis.stats.trend import percentile

if TYPE_CHECKING:
    from tailrate.analysis.run.tables import Stored

_COLUMNS = ("step", "endpoint", "seq", "intended_ns", "sent_ns", WHOLE, "status", "error", "replica", "label")

Texts = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True, eq=False)
class Excerpt:
    step: Ints
    seq: Ints
    intended_ns: Ints
    sent_ns: Ints
    done_ns: Ints
    status: Texts
    replica: Texts
    label: Texts
    ok: Bools
    latency_ms: Floats
    ttft_ms: Floats
    """Infinite where no token came; NaN of all where nobody asked, or nothing streams."""
    tpot_ms: Floats
    """Infinite of a failure, NaN of an answer that has none."""

    def __len__(self) -> int:
        return len(self.seq)

    def where(self, chosen: Bools) -> Excerpt:
        return Excerpt(*(getattr(self, name)[chosen] for name in Excerpt.__slots__))

    def between(self, low_ns: int, high_ns: int) -> Excerpt:
        """By when they were due."""
        return self.where((self.intended_ns >= low_ns) & (self.intended_ns < high_ns))

    def under_way(self, at_ns: int) -> Bools:
        """Sent before that instant and not answered by then."""
        waiting = (self.done_ns > at_ns) | (self.done_ns == NEVER)
        found: Bools = (self.sent_ns != NEVER) & (self.sent_ns < at_ns) & waiting
        return found

    def slices(self, zero_ns: int, slice_ns: int) -> list[tuple[int, Excerpt]]:
        """Numbered from an instant; those without an arrival are left out."""
        numbers = (self.intended_ns - zero_ns) // slice_ns
        return [(int(number), self.where(numbers == number)) for number in np.unique(numbers)]

    @property
    def errors(self) -> int:
        return int(len(self) - self.ok.sum())

    def burst(self) -> float:
        return in_a_row(~self.ok)

    def statuses(self) -> dict[str, int]:
        """Of what was no success, the most frequent first."""
        names, counts = np.unique(self.status[~self.ok].astype(str), return_counts=True)
        return {str(names[k]): int(counts[k]) for k in np.argsort(-counts, kind="stable")}

    def ok_ms(self, percent: float) -> float | None:
        """A percentile of the successes' latency."""
        return percentile(self.latency_ms[self.ok], percent) if self.ok.any() else None

    def replicas(self) -> set[str]:
        return {str(name) for name in set(self.replica[self.ok]) if name}

    def totals(self) -> dict[str, int]:
        """In the words of the run's own."""
        counts = Counter(map(kind_of, self.status[~self.ok].astype(str)))
        # one that says 2xx and was not answered, or with an error, has failed
        failed = counts["failed"] + counts["ok"]
        return {kind: counts[kind] for kind in KINDS} | {"ok": int(self.ok.sum()), "failed": failed}

    def counted(self, closed: set[int]) -> tuple[int, int, int]:
        """(scheduled, without a row, in more than one): arrivals of a step are numbered as they are due, none skipped.

        In the steps of a closed loop, each load process numbers on its own, so there only what has a row is known.
        """
        scheduled = missing = twice = 0
        for step in np.unique(self.step):
            numbers = self.seq[self.step == step]
            different = len(np.unique(numbers))
            due = different if int(step) in closed else int(numbers.max() - numbers.min()) + 1
            scheduled, missing, twice = scheduled + due, missing + due - different, twice + len(numbers) - different
        return scheduled, missing, twice


def joined(parts: Sequence[Excerpt]) -> Excerpt:
    return Excerpt(*(np.concatenate([getattr(part, name) for part in parts]) for name in Excerpt.__slots__))


def read(
    stored: Stored, endpoint: str, steps: Sequence[Mapping[str, Any]], span: tuple[int, int], tokens: bool = False
) -> Excerpt:
    """What was due in [low, high) in these steps, their settle times left out; of streams with their tokens' times."""
    low_ns, high_ns = span
    columns = (*dict.fromkeys((*_COLUMNS, *(STREAM_COLUMNS if tokens else ()))),)
    tables = [stored.nothing(columns)]
    for part in stored.parts:
        first, last = stored.span(part, "intended_ns")
        if first < high_ns and last >= low_ns:
            found = stored.read(part, columns)
            due_ns = Chunk(found).whole("intended_ns")
            tables.append(where(found, (due_ns >= low_ns) & (due_ns < high_ns)))
    rows = Chunk(pa.concat_tables(tables, promote_options="default").unify_dictionaries().sort_by("intended_ns"))

    def texts(name: str, made: Callable[[str | None], Any], kind: Any) -> Any:
        codes, names = rows.text(name)
        return np.array([*map(made, names), made(None)], dtype=kind)[codes]

    begins = np.full(max((int(step["index"]) for step in steps), default=0) + 2, 1 << 62)
    for step in steps:
        begins[int(step["index"])] = settled_ns(step)
    step_of, intended, done = (rows.whole(name) for name in ("step", "intended_ns", WHOLE))
    ok = succeeded(rows)
    replica, label = (texts(name, lambda word: word, object) for name in ("replica", "label"))
    whole = Excerpt(
        step_of, rows.whole("seq"), intended, rows.whole("sent_ns"), done,
        texts("status", str, object), replica, label, ok, (done - intended) / 1e6, *_stream_times(rows, ok, tokens),
    )  # fmt: skip
    # a foreign source may name no endpoint
    mine = texts("endpoint", lambda name: name in (None, endpoint), bool)
    return whole.where(mine & (intended >= begins[np.clip(step_of, -1, len(begins) - 1)]))


def _stream_times(rows: Chunk, ok: Bools, tokens: bool) -> tuple[Floats, Floats]:
    """TTFT and TPOT."""
    if not tokens:
        return (np.full(len(ok), np.nan),) * 2
    times = StreamTimes.of(rows, ok)
    return in_ms(times.ttft_ns), in_ms(times.tpot_ns)
