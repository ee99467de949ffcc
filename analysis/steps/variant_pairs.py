"""Two sets of steps at one load, side by side: variants of a model inside a run (rows of `pairs`), or run and run.

Every ratio is a ÷ b: above 1 means that b is faster. Inside a run a is `eager` where the model has it, else the variant
that the manifest names first. The interval of one round is that of the two percentiles (`sketch`), what the same
arrivals did to both cancelled; of several rounds it is put together with what rounds differ by. An end that the sample
cannot carry is None. `differs` asks P50 and P99 together (of streams also those of TTFT and TPOT), and is wrong in one
of twenty cases where nothing differs.
A step that is overloaded or cannot be trusted has no percentile to compare, and its pair says so in `note`. Where the
load generator was late, and no round without that is left, the interval is wider: to what latencies counted from the
sending would say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, starmap
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.records.manifest import endpoint_name
from tailrate.analysis.records.objective import STREAM_FIGURES
from tailrate.analysis.stats.distributions import normal_quantile, student_quantile
from tailrate.analysis.stats.ratio import LEVEL, Doubt, holm, over_rounds, ratio
from tailrate.analysis.steps.by_rate import by_endpoint
from tailrate.analysis.text.words import significant

if TYPE_CHECKING:
    from tailrate.analysis.stats.sketch import Sketch
    from tailrate.analysis.steps.measure import MeasuredStep
    from tailrate.analysis.steps.measured_run import MeasuredRun

Rounds = list[tuple["MeasuredStep", "MeasuredStep"]]
TOO_FEW = "there are too few independent arrivals for an interval"


@dataclass(frozen=True, slots=True)
class Ratio:
    """a ÷ b, with its interval and the smallest relative change that would have been seen, where there is one."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    smallest_visible: float | None = None
    p_value: float | None = None

    @classmethod
    def of(cls, log: float, doubt: Doubt, less: float = 0.0, more: float = 0.0) -> Ratio:
        """An end that is open is None. The true logarithm may be so much less, or more, for a reason besides chance."""
        least, most = log - less, log + more
        low, high = (math.exp(by) if math.isfinite(by) else None for by in (least - doubt.down, most + doubt.up))
        visible = math.expm1(math.log1p(doubt.smallest_visible) + max(less, more))
        nearest = max(least, min(0.0, most))
        p_value = None if low is high is None else doubt.p_value(nearest)
        return cls(math.exp(log), low, high, visible if math.isfinite(visible) else None, p_value)


@dataclass(frozen=True, slots=True)
class Pair:
    a: str
    b: str
    rate: float
    p50_ratio: float | None
    p99_ratio: float | None
    ratio_low: float | None
    """Of `p99_ratio`; an end that is open is None."""
    ratio_high: float | None
    smallest_visible: float | None
    """The smallest relative change of P99 that this comparison would have shown (0.05: five percent)."""
    rounds: int
    note: str | None = None
    """Why a ratio or its interval is missing, or what makes the interval wide."""
    concurrency: int = 0
    """Of a closed loop, which has no rate."""
    p50_low: float | None = None
    p50_high: float | None = None
    joules_ratio: float | None = None
    """Of energy per request."""
    joules_low: float | None = None
    joules_high: float | None = None
    ttft_ratio: float | None = None
    """Of P99 of the time to the first token."""
    ttft_low: float | None = None
    ttft_high: float | None = None
    tpot_ratio: float | None = None
    """Of P99 of the time per token."""
    tpot_low: float | None = None
    tpot_high: float | None = None
    differs: bool | None = None
    """Whether any of these percentiles differs, by Holm's procedure; None without an interval."""


def pairs(run: MeasuredRun) -> list[Pair]:
    steps = by_load(run)
    found = []
    for a, b in partners(run):
        both = (level for endpoint, level in steps if endpoint == a and (b, level) in steps)
        found += [
            _pair(a, b, level, list(zip(steps[a, level], steps[b, level], strict=False))) for level in sorted(both)
        ]
    return found + list(twins(run))


def twins(run: MeasuredRun) -> Iterator[Pair]:
    """Each endpoint against itself, where it was driven twice in a row on the same arrivals."""
    for endpoint, steps in by_endpoint(run.measured).items():
        levels = {level_of(step) for step in steps if step.twin}
        for level in sorted(levels):
            mine = {step.summary.index: step for step in steps if level_of(step) == level}
            rounds = [(mine[index - 1], step) for index, step in mine.items() if step.twin and index - 1 in mine]
            if rounds:
                yield _pair(endpoint, endpoint, level, rounds)


Level = tuple[int, float]


def level_of(one: MeasuredStep | Pair) -> Level:
    """What must be alike for steps to be compared: the rate asked for, or how many requests were under way."""
    return (one.concurrency, 0.0 if one.concurrency else one.rate)


def by_load(run: MeasuredRun) -> dict[tuple[str, Level], list[MeasuredStep]]:
    """An endpoint's rounds at a load, without twins."""
    found: dict[tuple[str, Level], list[MeasuredStep]] = {}
    for step in sorted(run.measured, key=lambda step: (step.summary.block, step.summary.index)):
        if not step.twin:
            found.setdefault((step.summary.endpoint, level_of(step)), []).append(step)
    return found


def partners(run: MeasuredRun) -> Iterator[tuple[str, str]]:
    """Variants of one model, and all endpoints that were listed side by side by names or servers."""
    endpoints = by_endpoint(run.measured)
    order = {endpoint_name(entry): entry for entry in run.manifest.endpoints}
    known = [name for name in order if name in endpoints] + [name for name in endpoints if name not in order]
    elsewhere = len({entry.get("url") for entry in order.values()}) > 1
    kinds = {name: _kind(name, order.get(name, {}), elsewhere) for name in known}
    # stable: the others keep their order
    known.sort(key=lambda name: kinds[name][1] != "eager")
    return ((a, b) for a, b in combinations(known, 2) if kinds[a][0] == kinds[b][0])


def _kind(name: str, entry: Mapping[str, Any], elsewhere: bool) -> tuple[str, str]:
    """What it is compared under, and its variant; endpoints of several servers are compared whatever their models."""
    model, _, variant = name.rpartition("/")
    if elsewhere or (entry and name not in (f"{entry.get('model')}/{entry.get('variant')}", entry.get("model"))):
        return "", str(entry.get("variant") or "")
    return model, variant


def _pair(a: str, b: str, level: Level, rounds: Rounds) -> Pair:
    concurrency, rate = level
    comparable = usable(rounds)
    if not comparable:
        faults = [(step.summary.endpoint, fault(step)) for both in rounds for step in both]
        note = "; ".join(dict.fromkeys(f"{endpoint} {why}" for endpoint, why in faults if why))
        return Pair(a, b, rate, None, None, None, None, None, len(rounds), note, concurrency)
    p50, p99 = (percentile_ratio(comparable, percent) for percent in (50.0, 99.0))
    ttft, tpot = (percentile_ratio(comparable, 99.0, figure) for figure in STREAM_FIGURES)
    joules = plain_ratio(
        (one.summary.joules_per_request, other.summary.joules_per_request) for one, other in comparable
    )
    unsure = lateness(comparable) if p99.low or p99.high else TOO_FEW
    return Pair(
        a=a,
        b=b,
        rate=rate,
        p50_ratio=p50.value,
        p99_ratio=p99.value,
        ratio_low=p99.low,
        ratio_high=p99.high,
        smallest_visible=p99.smallest_visible,
        rounds=len(comparable),
        note=unsure if p99.value else "so many arrivals failed that P99 is infinite",
        concurrency=concurrency,
        p50_low=p50.low,
        p50_high=p50.high,
        joules_ratio=joules.value,
        joules_low=joules.low,
        joules_high=joules.high,
        ttft_ratio=ttft.value,
        ttft_low=ttft.low,
        ttft_high=ttft.high,
        tpot_ratio=tpot.value,
        tpot_low=tpot.low,
        tpot_high=tpot.high,
        differs=any_differs([p50, p99, ttft, tpot]),
    )


def percentile_ratio(rounds: Rounds, percent: float, figure: str = "") -> Ratio:
    """Of a percentile over rounds."""
    values = [(percentile_ms(one, percent, figure), percentile_ms(other, percent, figure)) for one, other in rounds]
    logs = [math.log(a / b) for a, b in values if a and b and 0 < a < math.inf and 0 < b < math.inf]
    if len(logs) < len(rounds):
        return Ratio()
    sketches = [(_sketch(a, figure), _sketch(b, figure)) for a, b in rounds]
    within = ratio(sketches, percent, all(starmap(_alike, rounds)))
    if within is None or within.error == math.inf:
        return plain_ratio(values)
    later = [sum(_later(step, percent, figure) for step in side) / len(rounds) for side in zip(*rounds, strict=True)]
    return Ratio.of(*over_rounds(logs, within), *later)


def percentile_ms(step: MeasuredStep, percent: float, figure: str = "") -> float | None:
    """Of a figure that an objective can limit: of the whole answer, else by its name."""
    if not figure:
        return step.order.latency_ms.get(percent)
    return step.streams.at(percent, figure) if step.streams else None


def _from_send_ms(step: MeasuredStep, percent: float, figure: str) -> float | None:
    """The same as it would be, had everything been sent in time; None where that makes no difference."""
    if not figure:
        return step.order.service_all_ms.get(percent)
    return step.streams.ttft_sent_p99_ms if step.streams and (figure, percent) == ("ttft", 99.0) else None


def _sketch(step: MeasuredStep, figure: str) -> Sketch:
    return step.streams.sketches[figure] if figure and step.streams else step.order.sketch


def _later(step: MeasuredStep, percent: float, figure: str) -> float:
    """By how much of its logarithm a late load generator has made a percentile larger, at most.

    Latencies that count from the sending leave the lateness out; and what was sent in a heap took longer for that.
    """
    latency, service = percentile_ms(step, percent, figure), _from_send_ms(step, percent, figure)
    return max(0.0, math.log(latency / service)) if step.showed.late and latency and service else 0.0


def lateness(rounds: Rounds) -> str | None:
    """What makes the intervals wide."""
    late = [step.order.late_ms.get(99.0, 0.0) for both in rounds for step in both if step.showed.late]
    said = f"the load generator was late (P99 {significant(max(late), 2)} ms)" if late else None
    return said and f"{said}, which the interval allows for"


def _alike(one: MeasuredStep, other: MeasuredStep) -> bool:
    """Much that happened to one happened to the other: they had the same arrivals, or were driven at the same time."""
    mine, others = (step.order.sketch.counts.sum(axis=1) for step in (one, other))
    return one.start_ns == other.start_ns or np.array_equal(mine, others)


def plain_ratio(values: Iterable[tuple[float | None, float | None]]) -> Ratio:
    """Of figures without an interval of their own: what rounds differ by (Student's t); one round shows none."""
    both = [(one, other) for one, other in values if one and other and one > 0 and other > 0]
    logs = [math.log(one / other) for one, other in both if math.isfinite(one) and math.isfinite(other)]
    if not logs or len(logs) < len(both):
        return Ratio()
    log = float(np.mean(logs))
    if len(logs) == 1:
        return Ratio(math.exp(log))
    wider = student_quantile(len(logs) - 1, 1 - LEVEL / 2) / normal_quantile(1 - LEVEL / 2)
    return Ratio.of(log, Doubt.of(float(wider * np.std(logs, ddof=1)) / math.sqrt(len(logs))))


def any_differs(ratios: Sequence[Ratio]) -> bool | None:
    """Whether any of several is called a difference; None where none can be."""
    found = sorted(ratio.p_value for ratio in ratios if ratio.p_value is not None)
    return holm(found, of=len(found)) > 0 if found else None


def usable(rounds: Rounds) -> Rounds:
    """Those that can be compared; with a late load generator only where there are no others."""
    found = [both for both in rounds if not any(map(fault, both))]
    return [both for both in found if not any(step.showed.late for step in both)] or found


def fault(step: MeasuredStep) -> str | None:
    """Why a step's percentiles cannot be compared."""
    if not step.summary.n:
        return "has no arrivals"
    if step.showed.doubts or (step.showed.late and not step.order.service_all_ms):
        return "cannot be trusted"
    return "was overloaded" if step.overloaded else None
