"""The highest rate that keeps an objective, from steps at rising rates: rows of `capacity`.

`low_rps` is the highest rate that met the objective below every rate that missed it, `high_rps` the lowest
that missed it: the limit lies between them, and it is `resolved` when both exist. A step that cannot be
trusted or cannot say stands for neither. `max_rps` is what was achieved at `low_rps`. Where the load
generator gave up first the row says "client-limited", and never that this was the endpoint's most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.records import LOST
from analysis.store import is_success
from analysis.verdict import all_of, is_rising
from analysis.words import significant

if TYPE_CHECKING:
    from analysis.steps import MeasuredStep
    from analysis.store import Run

BUSY_PCT = 90.0
"""Above this a device or host is named as the limit: a mean over a window is never quite 100."""

STAGE_WORDS = {
    "queue": "waiting for the replica",
    "batch": "forming batches",
    "h2d": "copies to the device",
    "compute": "the model's compute time",
    "d2h": "copies back",
    "ingress": "the server's ingress",
    "network": "the way to the server",
}


@dataclass(frozen=True, slots=True)
class Capacity:
    endpoint: str
    slo: str
    max_rps: float | None
    low_rps: float | None
    high_rps: float | None
    limited_by: str | None
    resolved: bool


def capacities(run: Run) -> list[Capacity]:
    """One row per endpoint and objective; none where rates did not rise."""
    if not is_rising(run):
        return []
    if found := [_found(run, event) for event in run.events if event["event"] == "knee"]:
        return found
    by_endpoint: dict[str, list[MeasuredStep]] = {}
    for step in run.measured:
        by_endpoint.setdefault(step.summary.endpoint, []).append(step)
    return [
        _capacity(run, endpoint, steps, number, str(slo))
        for endpoint, steps in by_endpoint.items()
        for number, slo in enumerate(run.manifest.slos)
    ]


def _found(run: Run, knee: Mapping[str, Any]) -> Capacity:
    """What a search has found; it tried rates until it was sure, or says why it could not be."""
    steps = [step for step in run.measured if step.summary.endpoint == knee["endpoint"] and step.summary.trusted]
    low, high, reason = knee.get("low_rps"), knee.get("high_rps"), knee.get("reason")
    below = [step for step in steps if high and step.rate <= high and not step.overloaded]
    above = [step for step in steps if low and step.rate >= low]
    nearest = max(below, key=lambda step: step.rate, default=None)
    beyond = max(above, key=lambda step: step.rate, default=None)
    limit = _limit(run, min(steps, key=lambda step: step.rate), beyond) if beyond and len(steps) > 1 else None
    slo = next((str(slo) for slo in run.manifest.slos if slo.latency_ms is not None), "")
    return Capacity(
        endpoint=str(knee["endpoint"]),
        slo=slo,
        max_rps=nearest.summary.achieved_rps if nearest and low else None,
        low_rps=low,
        high_rps=high,
        limited_by=f"unresolved: {reason}" if reason else limit,
        resolved=not reason and low is not None and high is not None,
    )


def _capacity(run: Run, endpoint: str, steps: list[MeasuredStep], number: int, slo: str) -> Capacity:
    by_rate: dict[float, list[MeasuredStep]] = {}
    for step in sorted(steps, key=lambda step: step.rate):
        by_rate.setdefault(step.rate, []).append(step)
    answers = {
        rate: all_of(step.met[number] if step.summary.trusted else None for step in at) for rate, at in by_rate.items()
    }
    high = next((rate for rate, answer in answers.items() if answer is False), None)
    low = max((rate for rate, answer in answers.items() if answer and (high is None or rate < high)), default=None)
    achieved = [] if low is None else [step.summary.achieved_rps or 0.0 for step in by_rate[low]]
    if high is not None:
        limit = _limit(run, by_rate[low][0] if low is not None else None, by_rate[high][0])
    else:
        limit = _open_end(low, [step for rate, at in by_rate.items() if low is None or rate > low for step in at])
    return Capacity(
        endpoint=endpoint,
        slo=slo,
        max_rps=sum(achieved) / len(achieved) if achieved else None,
        low_rps=low,
        high_rps=high,
        limited_by=limit,
        resolved=low is not None and high is not None,
    )


def _open_end(low: float | None, above: list[MeasuredStep]) -> str | None:
    """Why no rate missed the objective."""
    doubted = [step for step in above if step.summary.n and not step.summary.trusted]
    if doubted:
        least = f"≥ {low:g}/s, " if low is not None else ""
        return f"client-limited: {least}at {doubted[0].rate:g}/s {doubted[0].summary.reasons[0]}"
    return "nothing: the highest rate tried still met the objective" if low is not None and not above else None


def _limit(run: Run, low: MeasuredStep | None, high: MeasuredStep) -> str | None:
    """What gave way at the lowest rate that missed the objective, from what the run recorded."""
    found = [*_errors(high), *_busy(run, high), *_grown(low, high)]
    if not found and high.overloaded:
        found.append("a queue at the endpoint that grows without bound")
    return ", ".join(found) or None


def _errors(step: MeasuredStep) -> list[str]:
    # the others follow from a full queue
    passed = ("timeout", "dropped", LOST)
    refused = {word: n for word, n in step.tally.inside.items() if not is_success(word) and word not in passed}
    share = sum(refused.values()) / step.summary.n
    if share < 0.01:
        return []
    return [f"errors ({share:.2g} of the arrivals, mostly {max(refused, key=lambda word: refused[word])})"]


def _mean(step: MeasuredStep, stage: str) -> float | None:
    mean = step.tally.mean
    service, handled, server = mean("service_ms"), mean("handled_ms"), mean("server_ms")
    if stage == "ingress":
        return None if handled is None or server is None else handled - server
    if stage == "network":
        return None if handled is None or service is None else service - handled
    return mean(f"{stage}_ms")


def _busy(run: Run, step: MeasuredStep) -> list[str]:
    found = []
    for track in run.tracks.values():
        util = track.within("util_pct", step.start_ns, step.end_ns)
        if len(util) and util.mean() >= BUSY_PCT:
            name = "host CPU" if track.is_cpu else track.device[:12]
            found.append(f"{name} ({util.mean():.0f} % busy)")
        dram = track.within("dram_active_pct", step.start_ns, step.end_ns)
        if len(dram) and dram.mean() >= BUSY_PCT:
            found.append(f"memory of {track.device[:12]} ({dram.mean():.0f} % busy)")
    return found


def _grown(low: MeasuredStep | None, high: MeasuredStep) -> list[str]:
    """The stage in the server that grew most since the last rate that met the objective."""
    if low is None:
        return []
    growth = {}
    for stage in STAGE_WORDS:
        before, after = (_mean(step, stage) for step in (low, high))
        if before is not None and after is not None:
            growth[stage] = (after - before, before, after)
    most = max(growth, key=lambda name: growth[name][0], default=None)
    if most is None or growth[most][0] <= 0.01 * growth[most][1]:
        return []
    return [
        f"{STAGE_WORDS[most]} ({significant(growth[most][1])} ms at {low.rate:g}/s, "
        f"{significant(growth[most][2])} ms at {high.rate:g}/s)"
    ]
