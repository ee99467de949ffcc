"""Run against run: what changed from a base run to another at the same loads.

A `Change` is new ÷ base of one figure of one endpoint at one load, with its interval. What an endpoint differs by from
itself, driven twice on the same arrivals in either run, is the noise floor: a change within it is not called one.
The intervals speak of these two runs; what differs from day to day they cannot know.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tailrate.analysis.records.objective import LEAST_FOR_P999, STREAM_FIGURES
from tailrate.analysis.stats.ratio import holm
from tailrate.analysis.steps.capacity import Capacity, capacities
from tailrate.analysis.steps.variant_pairs import (
    TOO_FEW,
    Level,
    Ratio,
    Rounds,
    at,
    fault,
    lateness,
    level_of,
    pairs,
    percentile_ms,
    percentile_ratio,
    plain_ratio,
    twins,
    usable,
)
from tailrate.analysis.text.table import Table, safe
from tailrate.analysis.text.words import ABSENT, interval, load, significant

if TYPE_CHECKING:
    from tailrate.analysis.steps.measure import MeasuredStep
    from tailrate.analysis.verdicts.run import Run

PERCENTILES = {
    "p50": ("", 50.0), "p90": ("", 90.0), "p95": ("", 95.0), "p99": ("", 99.0), "p999": ("", 99.9),
    **{f"{figure}_{name}": (figure, at) for figure in STREAM_FIGURES for name, at in (("p50", 50.0), ("p99", 99.0))},
}  # fmt: skip
"""Of what, and which one."""
COSTS = {"joules": "joules_per_request", "joules_per_token": "joules_per_token", "tokens": "tokens_out_rps"}
"""Columns of a step that rounds alone say an interval of."""
METRICS = (*PERCENTILES, *COSTS, "capacity")
ONE_ROUND = "one round shows no interval"


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of a run over that of the base."""

    run: str
    endpoint: str
    at: str
    """The load, or for `capacity` the objective."""
    metric: str
    base: float | None
    new: float | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    smallest_visible: float | None = None
    """The smallest relative change that would have shown (0.05: five percent)."""
    noise: float | None = None
    """What the endpoint differs by from itself (0.05: five percent), where a run drove it twice."""
    rounds: int = 0
    note: str | None = None
    """Why there is no ratio or no interval."""
    worse: bool = False
    """There is no figure any more where the base had one: overloaded, or infinite."""
    p_value: float | None = None
    """How often as much would show where nothing differs."""
    differs: bool | None = None
    """Whether it is called a difference among all figures of this comparison; None where it cannot be said."""

    @property
    def ends(self) -> tuple[float, float]:
        """Of the ratio, 0 and infinity where they are open."""
        return self.low or 0.0, math.inf if self.high is None else self.high

    @property
    def beyond_noise(self) -> bool:
        return self.ratio is not None and abs(math.log(self.ratio)) > math.log1p(self.noise or 0.0)


def changes(base: Run, new: Run) -> list[Change]:
    """Every endpoint and load that both runs have, then the capacities."""
    noise = _noise(base, new)
    found: list[Change] = []
    for endpoint, level in _shared(base, new):
        old, now = (at([s for s in run.measured if s.summary.endpoint == endpoint], level) for run in (base, new))
        found += _at_level(new.manifest.id, endpoint, old, now, noise.get((endpoint, level)))
    before = {(row.endpoint, row.slo): row for row in capacities(base)}
    for row in capacities(new):
        if (endpoint_before := before.get((row.endpoint, row.slo))) is not None:
            found.append(_capacity(new.manifest.id, endpoint_before, row))
    return _called(found)


def _called(found: Sequence[Change]) -> list[Change]:
    """With `differs` told, which is wrong about any of them in at most 5 of 100 comparisons (Holm's procedure)."""
    tested = sorted((one for one in found if one.p_value is not None), key=lambda one: one.p_value or 0.0)
    called = {id(one) for one in tested[: holm([one.p_value or 0.0 for one in tested], of=len(tested))]}

    def told(one: Change) -> bool | None:
        if one.p_value is not None:
            return id(one) in called and one.beyond_noise
        if one.worse or one.low is one.high is None:
            return one.worse or None
        low, high = one.ends
        return not low <= 1 <= high

    return [replace(one, differs=told(one)) for one in found]


def inside(run: Run) -> list[Change]:
    """The variants of one run, each over the one that its pair names first."""
    noise = _noise(run)
    found = []
    for pair in pairs(run):
        if pair.a == pair.b:  # that is the noise
            continue
        floor = max((noise[key] for name in (pair.a, pair.b) if (key := (name, level_of(pair))) in noise), default=None)
        where, what = load(pair.rate, pair.concurrency), f"{pair.b} ÷ {pair.a}"
        if pair.note and not pair.p99_ratio:
            found.append(Change(run.manifest.id, what, where, "p99", None, None, note=pair.note))
            continue
        for metric, value, low, high in (
            ("p50", pair.p50_ratio, pair.p50_low, pair.p50_high),
            ("p99", pair.p99_ratio, pair.ratio_low, pair.ratio_high),
            ("ttft_p99", pair.ttft_ratio, pair.ttft_low, pair.ttft_high),
            ("tpot_p99", pair.tpot_ratio, pair.tpot_low, pair.tpot_high),
            ("joules", pair.joules_ratio, pair.joules_low, pair.joules_high),
        ):
            if value:
                ratio, least, most = (None if end is None else 1 / end for end in (value, high, low))
                visible = pair.smallest_visible if metric == "p99" else None
                unsure = None if low or high else pair.note or ONE_ROUND
                row = Change(run.manifest.id, what, where, metric, None, None, ratio, least, most, visible, note=unsure)
                row = replace(row, rounds=pair.rounds, noise=floor if metric in PERCENTILES else None)
                found.append(replace(row, differs=None if unsure else pair.differs and row.beyond_noise))
    return found


def _shared(base: Run, new: Run) -> list[tuple[str, Level]]:
    known = {(step.summary.endpoint, level_of(step)) for step in new.measured}
    return list(dict.fromkeys(key for s in base.measured if (key := (s.summary.endpoint, level_of(s))) in known))


def _noise(*runs: Run) -> Mapping[tuple[str, Level], float]:
    """By endpoint and load: the largest relative difference of P99 between equal steps."""
    found: dict[tuple[str, Level], float] = {}
    for pair in (pair for run in runs for pair in twins(run) if pair.p99_ratio):
        key = (pair.a, level_of(pair))
        apart = math.expm1(abs(math.log(pair.p99_ratio or 1.0)))
        found[key] = max(apart, found.get(key, 0.0))
    return found


def _at_level(
    run: str, endpoint: str, base: list[MeasuredStep], new: list[MeasuredStep], noise: float | None
) -> Iterator[Change]:
    rounds: Rounds = list(zip(new, base, strict=False))
    comparable = usable(rounds)
    changed = partial(Change, run, endpoint, load(base[0].rate, base[0].concurrency))
    if not comparable:
        broke = all(fault(old) is None for _, old in rounds) and all(
            step.overloaded and step.summary.trusted for step, _ in rounds
        )
        why = f"{endpoint} is overloaded now" if broke else _why(rounds)
        yield changed("p99", None, None, note=why, worse=broke)
        return
    late = lateness(comparable)
    for metric, (figure, percentile) in PERCENTILES.items():
        if metric == "p999" and not all(step.summary.n >= LEAST_FOR_P999 for both in comparable for step in both):
            continue
        old, now = (_mean([percentile_ms(step, percentile, figure) for step in side]) for side in _sides(comparable))
        if old is None or now is None:
            continue
        if math.isfinite(old) and math.isinf(now):
            many = "so many arrivals fail now that it is infinite"
            yield changed(metric, old, None, note=many, worse=True, rounds=len(comparable))
        elif math.isfinite(old):
            ratio = percentile_ratio(comparable, percentile, figure)
            note = TOO_FEW if ratio.low is ratio.high is None else late
            yield _over(changed(metric, old, now, noise=noise, rounds=len(comparable), note=note), ratio)
    for metric, column in COSTS.items():
        old, now = (_mean([getattr(step.summary, column) for step in side]) for side in _sides(comparable))
        if old is not None and now is not None:
            ratio = plain_ratio((getattr(a.summary, column), getattr(b.summary, column)) for a, b in comparable)
            note = ONE_ROUND if ratio.low is ratio.high is None else None
            yield _over(changed(metric, old, now, rounds=len(comparable), note=note), ratio)


def _sides(rounds: Rounds) -> tuple[list[MeasuredStep], list[MeasuredStep]]:
    """The base's steps, then the new ones."""
    return [old for _, old in rounds], [new for new, _ in rounds]


def _over(change: Change, found: Ratio) -> Change:
    """With the ratio of its figures and what is known of that."""
    return replace(
        change, ratio=found.value, low=found.low, high=found.high, smallest_visible=found.smallest_visible,
        p_value=found.p_value,
    )  # fmt: skip


def _why(rounds: Rounds) -> str:
    faults = [
        f"{name}: {why}" for both in rounds for name, s in zip(("new", "base"), both, strict=True) if (why := fault(s))
    ]
    return "; ".join(dict.fromkeys(faults))


def _mean(values: Sequence[float | None]) -> float | None:
    """The geometric mean, which several rounds' ratio is of; None where one is unknown."""
    known = [value for value in values if value is not None and value > 0]
    if len(known) < len(values) or not known:
        return None
    return math.exp(sum(map(math.log, known)) / len(known))


def _capacity(run: str, base: Capacity, new: Capacity) -> Change:
    """Limits lie between low and high, so their ratio lies between these."""
    low = new.low_rps / base.high_rps if new.low_rps and base.high_rps else None
    high = new.high_rps / base.low_rps if new.high_rps and base.low_rps else None
    known = new.max_rps is not None and base.max_rps
    note = None if low is not None and high is not None else "a limit was not found in both runs"
    return Change(
        run, new.endpoint, new.slo, "capacity", base.max_rps, new.max_rps,
        (new.max_rps or 0.0) / (base.max_rps or 1.0) if known else None, low, high,
        None if low is None or high is None else math.sqrt(high / low) - 1, rounds=1, note=note,
    )  # fmt: skip


def table(found: Sequence[Change], *, several: bool) -> Table:
    """What differs between runs, in a line each."""

    def share(value: float | None) -> str:
        return ABSENT if value is None else f"{significant(100 * value, 2)} %"

    texts = (*(["run"] if several else []), "endpoint", "at", "figure")
    heads = (*texts, "base", "new", "new ÷ base", "95 % interval", "would show", "noise", "")
    rows = []
    for one in found:
        word = {True: "differs", False: "no difference shown", None: ""}[one.differs]
        rows.append([
            *([one.run] if several else []), one.endpoint, one.at, one.metric,
            *(significant(value) for value in (one.base, one.new, one.ratio)), interval(one.low, one.high),
            share(one.smallest_visible), share(one.noise),
            (one.note or "") if one.worse else "; ".join(filter(None, [word, one.note])),
        ])  # fmt: skip
    return safe(Table("New run over base", heads, rows, len(texts)))
