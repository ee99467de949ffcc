"""The highest rate that keeps an objective, from steps at rising rates: rows of `capacity`.

`low_rps` is the highest rate that is sustained (`judge`), `high_rps` the lowest that misses the objective: the limit
lies between them, and it is `resolved` when both exist. `max_rps` is what was achieved at `low_rps`. Where the load
generator gave up first the row says "client-limited", and never that this was the endpoint's most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrate.analysis.judging.rates import sustained
from tailrate.analysis.judging.share import percent
from tailrate.analysis.records.objective import Slo, searched
from tailrate.analysis.records.rows import LOST, is_success
from tailrate.analysis.server_metrics.evidence import limits
from tailrate.analysis.steps.by_rate import at_rates, by_endpoint, is_rising
from tailrate.analysis.text.words import significant

if TYPE_CHECKING:
    from tailrate.analysis.steps.measure import MeasuredStep
    from tailrate.analysis.steps.measured_run import MeasuredRun

BUSY_PCT = 90.0
"""Above this a device or host is named as the limit: a mean over a window is never quite 100."""

STAGE_WORDS = {
    "queue": "waiting for the replica",
    "batch": "forming batches",
    "h2d": "copies to the device",
    "compute": "the model's compute time",
    "d2h": "copies back",
    "prefill": "reading prompts",
    "decode": "writing tokens",
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
    open: str | None = None
    """Of a search: terms that it could not judge near its answer, which is that for all others."""


def capacities(run: MeasuredRun) -> list[Capacity]:
    """One row per endpoint and objective; none where rates did not rise."""
    if not is_rising(run):
        return []
    if knees := [event for event in run.events if event["event"] == "knee"]:
        slo = searched(run.manifest.slos)
        return [_found(run, event, slo) for event in knees] if slo else []
    return [
        _capacity(run, endpoint, sorted(steps, key=lambda step: step.rate), number, slo)
        for endpoint, steps in by_endpoint(run.measured).items()
        for number, slo in enumerate(run.manifest.slos)
    ]


def _found(run: MeasuredRun, knee: Mapping[str, Any], slo: Slo) -> Capacity:
    """What a search has found; it tried rates until it was sure, or says why it could not be.

    Its interval is that of the knee. What was tried may keep the objective surely only below that.
    """
    mine = [step for step in run.measured if step.summary.endpoint == knee["endpoint"]]
    steps = [step for step in mine if step.summary.trusted]
    low, high, reason = knee.get("low_rps"), knee.get("high_rps"), knee.get("reason")
    beyond = max((step for step in steps if low and step.rate >= low), key=lambda step: step.rate, default=None)
    limit = _limit(run, min(steps, key=lambda step: step.rate), beyond) if beyond and len(steps) > 1 else None
    kept = sustained(at_rates(mine, run.manifest.slos.index(slo), slo)).low
    at = [step.summary.achieved_rps or 0.0 for step in mine if kept and step.rate == kept.rate]
    return Capacity(
        endpoint=str(knee["endpoint"]),
        slo=str(slo),
        max_rps=sum(at) / len(at) if at else None,
        low_rps=low,
        high_rps=high,
        limited_by=f"unresolved: {reason}" if reason else limit,
        resolved=not reason and low is not None and high is not None,
        open=knee.get("open"),
    )


def _capacity(run: MeasuredRun, endpoint: str, steps: list[MeasuredStep], number: int, slo: Slo) -> Capacity:
    found = sustained(at_rates(steps, number, slo))
    low, high = (None if at is None else at.rate for at in (found.low, found.high))
    at_low = [step for step in steps if step.rate == low]
    if high is not None:
        limit = _limit(run, at_low[0] if at_low else None, next(step for step in steps if step.rate == high))
    else:
        limit = _open_end(low, [step for step in steps if low is None or step.rate > low])
    achieved = [step.summary.achieved_rps or 0.0 for step in at_low]
    return Capacity(
        endpoint=endpoint,
        slo=str(slo),
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


def _limit(run: MeasuredRun, low: MeasuredStep | None, high: MeasuredStep) -> str | None:
    """What gave way at the lowest rate that missed the objective, from what the run recorded."""
    found = [*_errors(high), *_at_the_server(run, low, high), *_busy(run, high), *_grown(low, high)]
    if not found and high.overloaded:
        found.append("a queue at the endpoint that grows without bound")
    return ", ".join(found) or None


def _at_the_server(run: MeasuredRun, low: MeasuredStep | None, high: MeasuredStep) -> list[str]:
    """By the server's own metrics."""
    before = (f"{low.rate:g}/s", (low.start_ns, low.end_ns)) if low else None
    after = (f"{high.rate:g}/s", (high.start_ns, high.end_ns))
    return limits(run.metric_tracks, high.summary.endpoint, before, after)


def _errors(step: MeasuredStep) -> list[str]:
    failed = {word: n for word, n in step.tally.inside.items() if not is_success(word)}
    # the others follow from a full queue
    refused = sum(n for word, n in failed.items() if word not in ("timeout", "dropped", LOST))
    if not refused or refused < 0.01 * step.summary.n:
        return []
    share = percent(step.summary.errors / step.summary.n)
    return [f"errors ({share} of the arrivals, mostly {max(failed, key=lambda word: failed[word])})"]


def _mean(step: MeasuredStep, stage: str) -> float | None:
    mean = step.tally.mean
    service, handled, server = mean("service_ms"), mean("handled_ms"), mean("server_ms")
    if stage == "ingress":
        return None if handled is None or server is None else handled - server
    if stage == "network":
        return None if handled is None or service is None else service - handled
    return mean(f"{stage}_ms")


def _busy(run: MeasuredRun, step: MeasuredStep) -> list[str]:
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
