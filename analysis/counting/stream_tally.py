"""What is known of the streams of one endpoint in one step: sums, counts and times, and the figures that follow.

t0 is the intended instant, N the tokens of an answer as the server counted them, n those in its first content event:
TTFT is first content event − t0, TPOT is (last − first content event) ÷ (N − n), for each answer. A failure has neither
in time; one that broke off after its first token has the TTFT that its user saw. An answer in a single event has no
TPOT and is judged by the rest. Gaps are counted in bins a thousandth wide, so that billions take the memory of a few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from tailrate.analysis.counting.answer_shape import TIME_BINS
from tailrate.analysis.counting.counts import Grid
from tailrate.analysis.counting.order_statistics import MEDIAN_AND_TAIL, PERCENTS, Ordered, ordered, whole
from tailrate.analysis.judging.trust import FILLED
from tailrate.analysis.records.objective import STREAM_FIGURES, Slo
from tailrate.analysis.run.bins import BINS
from tailrate.analysis.stats.array_types import Floats, Ints
from tailrate.analysis.stats.select import COARSE, Select, near
from tailrate.analysis.stats.sketch import SLICES, Sketch
from tailrate.analysis.stats.trend import rank


@dataclass(slots=True, eq=False)
class StreamTally:
    """One endpoint in one step; arrivals are those of its window."""

    grid: Grid
    n: int = 0
    ok: int = 0
    single: int = 0
    """Successes whose answer came in one event."""
    uncounted: int = 0
    """Successes of which the server did not say how many tokens they have: each event counts as one."""
    counted_here: int = 0
    """Successes of which it did not, and whose text the run's own tokenizer counted."""
    events: int = 0
    """Of successes."""
    tokens_out: int = 0
    """Of successes."""
    prompt_tokens: int = 0
    """Of successes whose server said how many of them it had read before; and those."""
    cached_tokens: int = 0
    arrived_in: float = 0.0
    """Prompt tokens of answers, whatever arrival's, whose first token came in the window; and tokens that did."""
    arrived_out: float = 0.0
    gaps: Select = field(default_factory=Select)
    """Of successes, in us."""
    streamed: Ints = field(default_factory=lambda: np.zeros(TIME_BINS, np.int64))
    """Successes by how long it took from their first to their last event, in coarse bins of ns."""
    ttft: list[Ints] = field(default_factory=list)
    """In ns with the slice of time, one integer per arrival."""
    tpot: list[Ints] = field(default_factory=list)
    """Of those that have one, and of failures."""
    ttft_sent: list[Ints] = field(default_factory=list)
    """From the sending, in ns, of those that had a first token."""
    stall: list[Ints] = field(default_factory=list)
    """The longest gap of each success that has any, in ns."""
    missed: Ints = field(default_factory=lambda: np.zeros((0, SLICES), np.int64))
    """By objective and slice: arrivals that missed any of its limits."""
    tokens_by_time: Floats = field(default_factory=lambda: np.zeros(0))
    """Tokens of the whole step's answers by the slice of the run's time line in which they came."""
    first: int = 0
    ttft_by_time: Ints = field(default_factory=lambda: np.zeros((0, BINS + 1), np.int32))
    """Arrivals of the whole step by slice of that line, from `first` on, and by TTFT; failures last."""
    tpot_by_time: Ints = field(default_factory=lambda: np.zeros((0, BINS + 1), np.int32))

    @property
    def filled_s(self) -> float:
        """So long into a step, as many answers are under way as its rate makes where nothing waits."""
        return near(self.streamed, FILLED, COARSE) / 1e9 if self.streamed.any() else 0.0

    def add(self, other: StreamTally) -> None:
        self.gaps.counts += other.gaps.counts
        for each in fields(self):
            if each.name not in ("grid", "gaps", "first"):
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(frozen=True, slots=True, eq=False)
class StreamFigures:
    """What follows from a tally; of nothing there is None."""

    tally: StreamTally
    ttft: Ordered
    tpot: Ordered
    ttft_ms: Mapping[float, float]
    tpot_ms: Mapping[float, float]
    ttft_sent_p99_ms: float | None
    gap_ms: Mapping[float, float]
    stall_p99_ms: float | None

    def at(self, percent: float, figure: str) -> float | None:
        found: Mapping[float, float] = {"ttft": self.ttft_ms, "tpot": self.tpot_ms}[figure]
        return found.get(percent)

    @property
    def sketches(self) -> dict[str, Sketch]:
        """By what an objective limits."""
        return {"ttft": self.ttft.sketch, "tpot": self.tpot.sketch}

    def met(self, number: int) -> Sketch:
        """Arrivals by slice, those that kept all limits of an objective below the one edge, the others above it."""
        return Sketch.of_two(self.ttft.sketch.counts.sum(axis=1), self.tally.missed[number])


def figures(tally: StreamTally, slos: Sequence[Slo]) -> StreamFigures:
    limits = {name: [bound.ms for slo in slos if (bound := getattr(slo, name))] for name in STREAM_FIGURES}
    ttft, tpot = (ordered(whole(getattr(tally, name)), limits[name]) for name in STREAM_FIGURES)
    sent, stall = (np.sort(whole(values)) for values in (tally.ttft_sent, tally.stall))
    return StreamFigures(
        tally,
        ttft,
        tpot,
        ttft.percentiles(PERCENTS),
        tpot.percentiles(PERCENTS),
        _p99_ms(sent),
        {percent: tally.gaps.near(percent) / 1e3 for percent in MEDIAN_AND_TAIL} if tally.gaps.n else {},
        _p99_ms(stall),
    )


def _p99_ms(ns: Ints) -> float | None:
    return float(ns[rank(len(ns), 99)]) / 1e6 if len(ns) else None
