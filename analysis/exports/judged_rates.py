"""Rows of `rates` in report.json: what all rounds of a rate together say to the objectives, as the verdict has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrate.analysis.judging.rates import lent, sustained
from tailrate.analysis.judging.share import all_of
from tailrate.analysis.steps.by_rate import at_rates, by_endpoint

if TYPE_CHECKING:
    from tailrate.analysis.steps.measure import MeasuredStep
    from tailrate.analysis.verdicts.run import Run


@dataclass(frozen=True, slots=True)
class JudgedRate:
    endpoint: str
    rate: float
    """Asked for; 0 in a closed loop."""
    concurrency: int
    steps: tuple[int, ...]
    """Those that were driven at it, planned faults left out."""
    kept: bool | None
    sustained: bool
    """Kept, and none below it speaks against that."""
    sentence: str
    """Of the term that decides."""


def judged_rates(run: Run) -> list[JudgedRate]:
    """One for each endpoint and rate, or concurrency; none without an objective."""
    return [row for endpoint, steps in by_endpoint(run.calm).items() for row in _rows(run, endpoint, steps)]


def _rows(run: Run, endpoint: str, steps: Sequence[MeasuredStep]) -> Iterator[JudgedRate]:
    slos, rounds = run.manifest.slos, run.manifest.scenario.get("mode") != "soak"
    judged = [lent(slo, at_rates(steps, number, slo, rounds=rounds)) for number, slo in enumerate(slos)]
    void = [sustained(rates).void for rates in judged]
    for answers in zip(*judged, strict=True):
        at, kept = answers[0], all_of(one.kept for one in answers)
        mine = [step for step in steps if step.asked == at.name and (step.concurrency or step.rate == at.rate)]
        yield JudgedRate(
            endpoint=endpoint,
            rate=at.rate,
            concurrency=mine[0].concurrency,
            steps=tuple(step.summary.index for step in mine),
            kept=kept,
            sustained=kept is True and not any(one in of for one, of in zip(answers, void, strict=True)),
            sentence=next(one.sentence for one in answers if one.kept is kept),
        )
