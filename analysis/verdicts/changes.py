"""Run against run, or the endpoints inside one: what changed from a base to another at the same loads.

A `Change` is new ÷ base of one figure of one endpoint at one load, with its interval. What an endpoint differs by from
itself, driven twice on the same arrivals in either run, is the noise floor: a change within it is not called one.
The intervals speak of these two runs; what differs from day to day they cannot know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    by_load,
    fault,
    lateness,
    level_of,
    partners,
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
OF_RUNS = ("base", "new")


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
    """Every endpoint and load, then the capacities; what one of the runs lacks cannot be compared."""
    run, noise = new.manifest.id, _noise(base, new)
    old, now = by_load(base), by_load(new)
    before, after = ({(row.endpoint, row.slo): row for row in capacities(one)} for one in (base, new))
    if not (old.keys() & now.keys() or before.keys() & after.keys()):
        return []
    found: list[Change] = []
    for key in old | now:
        changed = partial(Change, run, key[0], _load(key[1]))
        found += _at_level(changed, OF_RUNS, old.get(key, []), now.get(key, []), noise.get(key))
    for row in before | after:
        found.append(_capacity(partial(Change, run, *row), before.get(row), after.get(row)))
    return _called(found)


def inside(run: Run) -> list[Change]:
    """The same of the endpoints of one run, each over the one that its pair names first."""
    noise, steps = _noise(run), by_load(run)
    found: list[Change] = []
    for a, b in partners(run):
        for level in sorted({level for endpoint, level in steps if endpoint in (a, b)}):
            changed = partial(Change, run.manifest.id, f"{b} ÷ {a}", _load(level))
            old, now = (steps.get((endpoint, level), []) for endpoint in (a, b))
            floor = max(noise.get((endpoint, level), 0.0) for endpoint in (a, b)) or None
            found += _at_level(changed, (a, b), old, now, floor)
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


def _noise(*runs: Run) -> Mapping[tuple[str, Level], float]:
    """By endpoint and load: the largest relative difference of P99 between equal steps."""
    found: dict[tuple[str, Level], float] = {}
    for pair in (pair for run in runs for pair in twins(run) if pair.p99_ratio):
        key = (pair.a, level_of(pair))
        apart = math.expm1(abs(math.log(pair.p99_ratio or 1.0)))
        found[key] = max(apart, found.get(key, 0.0))
    return found


def _load(level: Level) -> str:
    concurrency, rate = level
    return load(rate, concurrency)


def _at_level(
    changed: Callable[..., Change],
    sides: tuple[str, str],
    base: list[MeasuredStep],
    new: list[MeasuredStep],
    noise: float | None,
) -> Iterator[Change]:
    """`sides`: what base and new are called."""
    rounds: Rounds = list(zip(new, base, strict=False))
    comparable = usable(rounds)
    if not rounds:
        yield changed("p99", None, None, note=f"only {sides[0] if base else sides[1]} has this load")
        return
    if not comparable:
        broke = all(fault(old) is None for _, old in rounds) and all(
            step.overloaded and step.summary.trusted for step, _ in rounds
        )
        why = f"{sides[1]} is overloaded, and {sides[0]} is not" if broke else _why(sides, rounds)
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
            many = f"so many arrivals of {sides[1]} fail that it is infinite"
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


def _why(sides: tuple[str, str], rounds: Rounds) -> str:
    faults = [
        f"{name}: {why}" for both in rounds for name, s in zip(sides[::-1], both, strict=True) if (why := fault(s))
    ]
    return "; ".join(dict.fromkeys(faults))


def _mean(values: Sequence[float | None]) -> float | None:
    """The geometric mean, which several rounds' ratio is of; None where one is unknown."""
    known = [value for value in values if value is not None and value > 0]
    if len(known) < len(values) or not known:
        return None
    return math.exp(sum(map(math.log, known)) / len(known))


def _capacity(changed: Callable[..., Change], base: Capacity | None, new: Capacity | None) -> Change:
    """Limits lie between low and high, so their ratio lies between these."""
    if base is None or new is None:
        return changed("capacity", None, None, note=f"only {OF_RUNS[base is None]} has it")
    low = new.low_rps / base.high_rps if new.low_rps and base.high_rps else None
    high = new.high_rps / base.low_rps if new.high_rps and base.low_rps else None
    known = new.max_rps is not None and base.max_rps
    note = None if low is not None and high is not None else "a limit was not found in both runs"
    return changed(
        "capacity", base.max_rps, new.max_rps,
        (new.max_rps or 0.0) / (base.max_rps or 1.0) if known else None, low, high,
        None if low is None or high is None else math.sqrt(high / low) - 1, rounds=1, note=note,
    )  # fmt: skip


def table(found: Sequence[Change], runs: int) -> Table:
    """What differs, in a line each: of so many runs from the base, or inside it."""

    def share(value: float | None) -> str:
        return ABSENT if value is None else f"{significant(100 * value, 2)} %"

    several, title = runs > 1, "New run over base" if runs else "One endpoint of the run over another"
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
    return safe(Table(title, heads, rows, len(texts)))
