"""What a probe of a search showed: its arrivals counted as the report counts them, once every one has its row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tailrate.analysis.judging.evidence import count
from tailrate.analysis.judging.share import Term, judged
from tailrate.analysis.judging.trust import SPARE, doubts, early_ms, lateness, overload
from tailrate.analysis.records.objective import STREAM_FIGURES
from tailrate.analysis.stats.array_types import Ints
from tailrate.analysis.stats.dependence import in_a_row, inflation
from tailrate.analysis.stats.sketch import SLICES, Sketch
from tailrate.analysis.stats.trend import NO_GROWTH
from tailrate.loadtest.engine.live.limit_counts import held_to, limits_of
from tailrate.loadtest.engine.scenario.knee_search import KneeObjective, Limits, ProbeOutcome
from tailrate.loadtest.engine.scenario.steps import LoadStep

COLUMNS = ("", *STREAM_FIGURES, "due_s", "late_ms", "dropped", "timed_out")
"""What objectives limit, in ms: infinite of a failure, NaN of what has none. When it was due, from the step's start;
how late it was sent, NaN if never; and why there is no answer."""

MOST_BEFORE = 20 * SLICES
"""Slices of settle time."""


class Probe:
    """Arrivals in the order in which they were due: all of them, and those behind the settle time."""

    def __init__(self, step: LoadStep, seconds: float, parts: Sequence[Mapping[str, Any]]) -> None:
        self.step, self.seconds = step, seconds
        found = {name: np.concatenate([np.empty(0), *(part[name] for part in parts)]) for name in COLUMNS}
        order = np.argsort(found["due_s"], kind="stable")
        self.all = {name: values[order] for name, values in found.items()}
        due_s, self.window_s = self.all["due_s"], max(1e-9, seconds - step.settle_s)
        slices = np.floor((due_s - step.settle_s) / self.window_s * SLICES)
        self.slices: Ints = slices.clip(-MOST_BEFORE, SLICES - 1).astype(np.int64)
        """Of the window, from 0 on."""
        self.counted = (due_s >= step.settle_s) & (due_s < seconds)
        self.inside = {name: values[self.counted] for name, values in self.all.items()}
        self.n = int(self.counted.sum())

    def outcome(
        self, objective: KneeObjective, vetoes: Sequence[Term], cpu_pct: float, cut: bool, late_limit_ms: float
    ) -> ProbeOutcome:
        sketches = [(self._sketch((limit,)), limit[1]) for limit in objective.limits]
        worst, limit_ms = max(sketches, key=lambda one: one[0].beyond(one[1]).sum() / max(1, one[0].n))
        beyond = worst.beyond(limit_ms).astype(float)
        missed, allowed = int(beyond.sum()), objective.target * worst.n
        known = [(term.text, self._kept(term)) for term in vetoes]
        overloaded = cut or any(kept is False for _, kept in known) or self._filled()
        return ProbeOutcome(
            rate=self.step.rate,
            n=worst.n,
            missed=missed,
            inflation=inflation(worst.counts.sum(axis=1).astype(float), beyond),
            overloaded=overloaded,
            vetoes=tuple(known),
            hindered=None if overloaded else self._hindered(worst.n, missed > allowed, cpu_pct, late_limit_ms),
            seconds=self.seconds,
        )

    def _sketch(self, limits: Limits) -> Sketch:
        """Of what is limited; where several limits are to be kept at once, of whether they are."""
        slices = self.slices[self.counted]
        if len(limits) > 1:
            beyond = slices[held_to(self.inside, limits)[1]]
            return Sketch.of_two(*(np.bincount(one, minlength=SLICES) for one in (slices, beyond)))
        ((name, limit_ms),) = limits
        values = self.inside[name]
        has = ~np.isnan(values)
        return Sketch.of(slices[has], values[has], [limit_ms] if math.isfinite(limit_ms) else [])

    def _kept(self, term: Term) -> bool | None:
        failed = np.isinf(self.inside[""])
        found = count(term, self._sketch(limits_of(term)), self.window_s, lambda: in_a_row(failed))
        return judged(found.share, found.worth, term.allowed)

    def _filled(self) -> bool:
        """Whether a queue grew until arrivals were given up, whatever is known of its length."""
        ok, dropped = np.isfinite(self.all[""]), self.inside["dropped"]
        places, took_ms = self.slices[ok] - self.slices.min(initial=0), self.all[""][ok]
        first_ms = early_ms(*(np.bincount(places, weights).astype(float) for weights in (None, took_ms)))
        answered = self.inside[""][ok[self.counted]]
        later_ms = float(answered.mean()) if len(answered) else math.inf
        given_up = int((dropped + self.inside["timed_out"]).sum())
        return bool(overload(NO_GROWTH, self.n, given_up, int(dropped.sum()), first_ms, later_ms))

    def _hindered(self, n: int, missed: bool, cpu_pct: float, late_limit_ms: float) -> str | None:
        """`n` have what is searched for."""
        if not n:
            return f"no arrival was recorded{' that has what is searched for' if self.n else ''}"
        late, answered = (values[np.isfinite(values)] for values in (self.inside["late_ms"], self.inside[""]))
        would_do = SPARE * self.step.rate * float(np.quantile(answered, 0.99)) / 1e3 if len(answered) else 0.0
        found = doubts(int(self.inside["dropped"].sum()), self.n, would_do, cpu_pct)
        if missed:  # it is in the latencies, so it makes no rate look good
            late_ms = float(np.quantile(late, 0.99, method="higher")) if len(late) else 0.0
            found.insert(0, lateness(late_ms, int((late > late_limit_ms).sum()), late_limit_ms))
        return next(filter(None, found), None)
