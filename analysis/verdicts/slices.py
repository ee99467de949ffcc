"""Rows of `slices` in report.json and of `run.slices`: each label of each step and endpoint, with its own objective."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

from tailrate.analysis.counting.slices import nearest
from tailrate.analysis.judging.judge import answers
from tailrate.analysis.judging.share import all_of

if TYPE_CHECKING:
    import pandas as pd

    from tailrate.analysis.steps.measure import MeasuredStep
    from tailrate.analysis.verdicts.run import Run


@dataclass(frozen=True, slots=True)
class Slice:
    """One label in one step of an endpoint, over the step's window; in percentiles a failure is infinite."""

    index: int
    endpoint: str
    label: str
    n: int
    ok: int
    errors: int
    p50_ms: float | None
    p99_ms: float | None
    p99_low_ms: float | None
    p99_high_ms: float | None
    ttft_p99_ms: float | None
    tpot_p99_ms: float | None
    """Of those that stream."""
    goodput_rps: float | None
    """Successes within `limit_ms` per second."""
    goodput_share: float | None
    """The same as a share of this slice's arrivals."""
    limit_ms: float | None
    """Of its own objective, else of that of all arrivals."""
    slo: bool | None
    """Whether it keeps its own objectives; None where it has none, or where that cannot be said."""
    reasons: tuple[str, ...]
    """Why it misses them, or why that cannot be said."""


def slices(run: Run) -> list[Slice]:
    """In the order of steps and labels; none of a run whose arrivals have no labels."""
    return [row for step in run.measured for row in _rows(run, step)]


def frame(run: Run) -> pd.DataFrame:
    import pandas as pd

    table = pd.DataFrame([asdict(row) for row in slices(run)], columns=[field.name for field in fields(Slice)])
    numbers = [field.name for field in fields(Slice) if field.type == "float | None"]
    return table.astype(dict.fromkeys(numbers, "float64"))


def _rows(run: Run, step: MeasuredStep) -> Iterator[Slice]:
    slos, seconds = run.manifest.slos, step.tally.grid.seconds
    plan = next(plan for plan in run.manifest.scenario["steps"] if plan["index"] == step.summary.index)
    for label, found in run.slices_of(plan, step.summary.endpoint, step.tally.grid).items() if step.summary.n else ():
        low, high = (None, None) if step.overloaded else found.p99_interval_ms or (None, None)
        judged = [
            answer
            for slo, counts in found.counts.items()
            for answer in answers(slo, [replace(step.showed, counts=counts)])
        ]
        near = nearest(label, slos)
        limit_ms = near.latency_ms if near else None
        within = found.within[limit_ms] if limit_ms else None
        yield Slice(
            step.summary.index,
            step.summary.endpoint,
            label,
            found.n,
            found.ok,
            found.n - found.ok,
            found.p50_ms,
            found.p99_ms,
            low,
            high,
            found.p99_of.get("ttft"),
            found.p99_of.get("tpot"),
            None if within is None else within / seconds,
            None if within is None else within / found.n,
            limit_ms,
            all_of(answer.kept for answer in judged) if judged else None,
            tuple(dict.fromkeys(answer.sentence for answer in judged if answer.kept is not True)),
        )
