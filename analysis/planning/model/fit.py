"""What one replica of an endpoint needs for its batches, fitted from runs: the model that plans are made with.

Fitted to the records of the batches themselves (`occupation`), by the rule that they show (`batching`), and never to
end-to-end latency, which any wrong model can be bent to.

Left out: failed requests, settle times, steps that cannot be trusted, and those that were overloaded, but for sizes of
batches that no other step shows. What else there is to know is in the notes, as sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.planning.model import batching_rule, fit_notes
from tailrate.analysis.planning.model.observed_batches import Observed, ObservedBatches, observe
from tailrate.analysis.planning.model.service_time import (
    SEEN,
    behind_s,
    by_size,
    computed_as,
    gaps,
    grid,
    overhead,
    pressed,
    spread,
    telling,
    waking,
)
from tailrate.analysis.planning.simulator.simulate import Fleet, Routing, Rule, Service
from tailrate.analysis.records.manifest import endpoint_name
from tailrate.analysis.stats.array_types import Bools, Ints

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

LEAST_SHARE = 0.2
"""Of a batch's stages, for which it occupies the replica at least, whatever the pauses say."""
OVERHEAD_POINTS = 1024


class CalibrationError(Exception):
    """Runs that a model cannot be made from: one sentence that says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """One endpoint's, per replica; as JSON in `plan.json`."""

    endpoint: str
    service: Service
    max_batch: int
    """Requests."""
    batch_wait_s: float
    rule: Rule
    """As the batches show it; where they don't, as it is declared."""
    declared_rule: Rule | None
    queue: int
    """Requests that may wait in a replica; 0: not known, so any number."""
    routing: Routing
    replicas: int
    """At most, at once, in the runs."""
    rows: float
    """Per request."""
    host_share: float
    """Of the latency of a request that waits for nothing, what is not the device's compute."""
    lone_ms: float
    """Median latency of a request that was alone and did not queue: no rate gives less."""
    highest_rps: float
    """The highest rate per replica that was fitted."""
    warmup_s: float | None
    """From the start of a replica to its first request."""
    idle_w: float | None
    active_w: float | None
    """Of one replica's share of the devices: without load, and fully occupied."""
    device: str | None
    batches: Ints
    """How many of each size, by requests, were seen; index 0 is not used."""
    notes: tuple[str, ...]

    def fleet(self, replicas: int | None = None) -> Fleet:
        wanted = self.replicas if replicas is None else replicas
        return Fleet(self.service, wanted, self.max_batch, self.batch_wait_s, self.rule, self.routing, self.queue)

    def as_json(self) -> dict[str, Any]:
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        declared = None if self.declared_rule is None else str(self.declared_rule)
        return plain | {
            "service": self.service.as_json(),
            "rule": str(self.rule),
            "declared_rule": declared,
            "routing": str(self.routing),
            "batches": self.batches.tolist(),
            "notes": list(self.notes),
        }


def observed(runs: Sequence[Run], endpoint: str) -> list[Observed]:
    """The endpoint's steps, in the order in which they were run."""
    return [
        observe(run, step)
        for run in runs
        for step in run.measured
        if step.summary.endpoint == endpoint and step.summary.n
    ]


def declared(runs: Sequence[Run], endpoint: str) -> dict[str, Any]:
    """What the endpoint says of itself, by the last of the runs that asked it."""
    found: dict[str, Any] = {}
    for run in runs:
        for entry in run.manifest.endpoints:
            if endpoint_name(entry) == endpoint:
                said = {**(entry.get("parameters") or {}), **entry}
                found |= {key: value for key, value in said.items() if value is not None}
    return found


def fit(endpoint: str, seen: Sequence[Observed], said: Mapping[str, Any]) -> Calibration:
    """`said` is what the endpoint declares: `max_batch` and others, as its metadata names them."""
    if said.get("streams"):
        raise CalibrationError(f"{endpoint} answers token by token, and no model of such endpoints is calibrated yet")
    good = [one for one in seen if one.doubt is None and not one.overloaded and len(one.batches)]
    drowned = [one for one in seen if one.doubt is None and one.overloaded and len(one.batches)]
    used = good or drowned
    if not used:
        raise CalibrationError(fit_notes.no_batches(endpoint, seen))
    rows = _rows(endpoint, used)
    seen_most = max(int(one.batches.requests.max()) for one in (*good, *drowned))
    most = max(seen_most, int(float(said.get("max_batch") or 0) / rows))
    batches = ObservedBatches.joined([one.batches for one in used])
    ours = "max_wait_ms" in said
    # our own engine copies a full batch in while the one before it computes
    _check_apart(endpoint, batches, (batches.requests < most) | (not ours))
    shown = batching_rule.find(batches, most, float(said["max_wait_ms"]) / 1e3 if ours else None)
    declared_rule = Rule.COMPANY if ours else None
    rule = shown.rule or declared_rule or Rule.OPPORTUNISTIC
    padded = computed_as(str(said.get("buckets") or ""), rows, most)
    times = _times(used, *_with_sizes_of(batches, drowned if good else []), padded, rule, shown.wait_s)
    warning = batching_rule.warning(endpoint, shown, times.service)
    idle_w, active_w = _power(good, times.service)
    start_s = [float(said[key]) for key in ("load_s", "warmup_s") if isinstance(said.get(key), int | float)]
    return Calibration(
        endpoint=endpoint,
        service=times.service,
        max_batch=most,
        batch_wait_s=shown.wait_s,
        rule=rule,
        declared_rule=declared_rule,
        queue=int(said.get("max_queue") or 0),
        routing=Routing.LEAST if ours else Routing.TWO_CHOICES,
        replicas=max(one.replicas for one in used),
        rows=rows,
        host_share=times.host_share,
        lone_ms=1e3 * times.lone_s,
        highest_rps=max((one.offered_rps / one.replicas for one in good if not one.closed), default=0.0),
        warmup_s=sum(start_s) if start_s else None,
        idle_w=idle_w,
        active_w=active_w,
        device=said.get("device_name") or said.get("device"),
        batches=np.bincount(batches.requests, minlength=most + 1),
        notes=(
            *fit_notes.left_out(seen),
            *fit_notes.driven_beside(used),
            *([] if said.get("max_batch") else [fit_notes.most_unsaid(most)]),
            *fit_notes.taken_rule(shown.rule, ours=ours),
            *times.notes,
            *([warning] if warning else []),
        ),
    )


def _rows(endpoint: str, steps: Sequence[Observed]) -> float:
    """Of each request, which must be one number."""
    sizes = [size for one in steps for size in one.sizes]
    if min(sizes) < max(sizes):
        raise CalibrationError(
            f"requests to {endpoint} have {min(sizes)} to {max(sizes)} rows: a plan counts requests of one size, so "
            "drive each size by itself"
        )
    return float(np.mean([one.rows for one in steps]))


def _check_apart(endpoint: str, batches: ObservedBatches, bound: Bools) -> None:
    """One replica runs one batch at a time: those that are bound to it."""
    early = batches.begun_s < batches.ended_before_s - batching_rule.slack_s(batches)
    if (early & bound).mean() > batching_rule.LEFT_SHARE:
        raise CalibrationError(
            f"batches of {endpoint} overlap, as of several replicas that don't say which of them answered: a plan has "
            "to know"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Times:
    """What batches take, and a request that waits for nothing."""

    service: Service
    host_share: float
    lone_s: float
    notes: tuple[str, ...]


def _times(
    steps: Sequence[Observed],
    batches: ObservedBatches,
    borrowed: Sequence[int],
    padded: Ints,
    rule: Rule,
    wait_s: float,
) -> _Times:
    """From the batches of the steps, with those of `borrowed` sizes from steps that were overloaded."""
    most = len(padded) - 1
    forced = pressed(batches, most, rule, wait_s)
    gap_s, gap_known = gaps(batches, forced, padded)
    telling_s = telling(batches, forced, padded)
    woken = waking(batches)
    awake_s = batches.stages_s - woken.after(batches.idle_s) - behind_s(batches, gap_s, telling_s)
    stages, known = by_size(batches.requests, awake_s, most, padded)
    mean_s = np.maximum(stages + gap_s, LEAST_SHARE * stages)
    own_s = np.maximum(awake_s + (mean_s - stages)[batches.requests], LEAST_SHARE * batches.stages_s)
    spread_s = spread(batches.requests, own_s / mean_s[batches.requests], most)
    overhead_s, sizes, alone_s, wake_s = overhead(steps, gap_s, most, rule, wait_s)
    # the answers of a large batch are handed out one by one, on a machine that has more to do
    after_s, _ = by_size(sizes, overhead_s, most, padded)
    after_s[1:] -= after_s[1:].min()
    overhead_s = overhead_s - after_s[sizes]
    median_s = float(np.median(overhead_s)) + float(after_s[1]) + wake_s
    compute_s = float(by_size(batches.requests, batches.compute_s, most, padded)[0][1])
    drawn_s = grid(overhead_s, OVERHEAD_POINTS)
    return _Times(
        Service(mean_s, *spread_s, drawn_s, 0.0, woken, after_s, telling_s, wake_s),
        1 - min(1.0, compute_s / (float(mean_s[1]) + median_s)),
        float(np.median(alone_s)) if len(alone_s) >= SEEN else float(mean_s[1]) + median_s + wait_s,
        (
            *fit_notes.overloaded_only(borrowed),
            *fit_notes.wakes(woken),
            *([] if gap_known else [fit_notes.NO_PAUSE]),
            *fit_notes.guessed(known),
            *fit_notes.no_gain(mean_s, known),
        ),
    )


# ---- beside the times


def _power(steps: Sequence[Observed], service: Service) -> tuple[float | None, float | None]:
    """Watts of one replica's share of its devices: idle, and occupied all the time."""
    known = [(one, one.power_w, one.idle_w) for one in steps if one.power_w is not None and one.idle_w is not None]
    if not known:
        return None, None
    idle_w = float(np.mean([idle / one.replicas for one, _, idle in known]))
    use = np.array([utilisation(one, service) for one, _, _ in known])
    more = np.array([power / one.replicas - idle_w for one, power, _ in known])
    return idle_w, idle_w + float(use @ more / (use @ use))


def utilisation(step: Observed, service: Service) -> float:
    """Share of the replicas' time for which batches occupied them."""
    batches = step.batches
    usual_s = service.mean_s[np.minimum(batches.requests, service.max_batch)]
    return float(usual_s.sum()) / (step.replicas * (step.seconds - step.settle_s))


def _with_sizes_of(batches: ObservedBatches, drowned: Sequence[Observed]) -> tuple[ObservedBatches, list[int]]:
    """With batches of overloaded steps, of sizes that are hardly seen elsewhere."""
    if not drowned:
        return batches, []
    more = ObservedBatches.joined([one.batches for one in drowned])
    most = int(max(more.requests.max(), batches.requests.max()))
    rare = np.bincount(batches.requests, minlength=most + 1) < SEEN
    wanted = np.flatnonzero(rare & (np.bincount(more.requests, minlength=most + 1) >= SEEN)).tolist()
    if not wanted:
        return batches, []
    # whole steps: a batch is pressed by the one before it
    return ObservedBatches.joined([batches, more]), wanted
