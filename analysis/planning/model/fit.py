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

from tailrate.analysis.planning.model import batching_rule
from tailrate.analysis.planning.model.observed_batches import Observed, ObservedBatches, observe
from tailrate.analysis.planning.model.service_time import SEEN, by_size, gaps, grid, overhead, pressed, spread, waking
from tailrate.analysis.planning.simulator.fleet import Waking
from tailrate.analysis.planning.simulator.simulate import Fleet, Routing, Rule, Service
from tailrate.analysis.stats.array_types import Bools, Floats, Ints
from tailrate.analysis.text.words import significant

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

LEAST_SHARE = 0.2
"""Of a batch's stages, for which it occupies the replica at least, whatever the pauses say."""
LOSS = 0.95
"""Of the rate at the best size: below it a larger batch is said to be a loss."""
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

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Calibration:
        declared = found["declared_rule"]
        return cls(
            **{one.name: found[one.name] for one in fields(cls)}
            | {
                "service": Service.from_json(found["service"]),
                "rule": Rule(found["rule"]),
                "declared_rule": None if declared is None else Rule(declared),
                "routing": Routing(found["routing"]),
                "batches": np.asarray(found["batches"], dtype=np.int64),
                "notes": tuple(found["notes"]),
            }
        )


def calibrate(runs: Sequence[Run], endpoint: str, steps: Sequence[int] | None = None) -> Calibration:
    """From all steps of the runs, or from those with these numbers; raises `CalibrationError`."""
    return fit(endpoint, observed(runs, endpoint, steps), declared(runs, endpoint))


def observed(runs: Sequence[Run], endpoint: str, steps: Sequence[int] | None = None) -> list[Observed]:
    """The endpoint's steps, in the order in which they were run."""
    return [
        observe(run, step)
        for run in runs
        for step in run.measured
        if step.summary.endpoint == endpoint and step.summary.n and (steps is None or step.summary.index in steps)
    ]


def declared(runs: Sequence[Run], endpoint: str) -> dict[str, Any]:
    """What the endpoint says of itself, by the last of the runs that asked it."""
    found: dict[str, Any] = {}
    for run in runs:
        for entry in run.manifest.endpoints:
            if f"{entry.get('model')}/{entry.get('variant')}" == endpoint:
                said = {**(entry.get("parameters") or {}), **entry}
                found |= {key: value for key, value in said.items() if value is not None}
    return found


def fit(endpoint: str, seen: Sequence[Observed], said: Mapping[str, Any]) -> Calibration:
    """`said` is what the endpoint declares: `max_batch` and others, as its metadata names them."""
    good = [one for one in seen if one.doubt is None and not one.overloaded and len(one.batches)]
    drowned = [one for one in seen if one.doubt is None and one.overloaded and len(one.batches)]
    notes = _left_out(seen)
    if not good and not drowned:
        raise CalibrationError(_no_batches(endpoint, seen))
    if beside := sorted({name for one in good or drowned for name in one.beside}):
        notes.append(f"{', '.join(beside)} was driven at the same time: what that took of the machine is in the times")
    sizes = [size for one in good or drowned for size in one.sizes]
    if min(sizes) < max(sizes):
        raise CalibrationError(
            f"requests to {endpoint} have {min(sizes)} to {max(sizes)} rows: a plan counts requests of one size, so "
            "drive each size by itself"
        )
    rows = float(np.mean([one.rows for one in good or drowned]))
    most = max(int(one.batches.requests.max()) for one in (*good, *drowned))
    if said.get("max_batch"):
        most = max(most, int(float(said["max_batch"]) / rows))
    else:
        notes.append(
            f"the endpoint does not say how large its batches may be: the largest that was seen had {most} requests"
        )
    ours = "max_wait_ms" in said
    wait_s = float(said["max_wait_ms"]) / 1e3 if ours else None

    batches = ObservedBatches.joined([one.batches for one in good or drowned])
    if (batches.begun_s < batches.ended_before_s - batching_rule.slack_s(batches)).mean() > batching_rule.LEFT_SHARE:
        raise CalibrationError(
            f"batches of {endpoint} overlap, as of several replicas that don't say which of them answered: a plan has "
            "to know"
        )
    found = batching_rule.find(batches, most, wait_s)
    declared_rule = Rule.COMPANY if ours else None
    rule = found.rule or declared_rule or Rule.OPPORTUNISTIC
    if found.rule is None:
        what = "tailrate's own rule is" if ours else "the best rule (all that waits goes at once) is"
        notes.append(f"hardly any request waited in a batch with room left, so {what} taken for granted")
    elif ours and rule not in (Rule.COMPANY, Rule.OPPORTUNISTIC):
        notes.append(f"the batches follow the rule {rule}, although tailrate's own engine does not")

    fitted, borrowed = _with_sizes_of(batches, drowned if good else [])
    if borrowed:
        notes.append(f"batches of {_sizes(borrowed)} requests were seen in overloaded steps only")
    woken = waking(fitted)
    awake_s = fitted.stages_s - woken.after(fitted.idle_s)
    if woken.extra_s:
        notes.append(_wakes(woken))
    stages, known = by_size(fitted.requests, awake_s, most)
    gap_s, gap_known = gaps(fitted, pressed(fitted, most, rule, found.wait_s), most)
    if not gap_known:
        notes.append("no batch began while others waited, so nothing is known of the pause between two batches")
    mean_s = np.maximum(stages + gap_s, LEAST_SHARE * stages)
    notes += _guessed(known) + _no_gain(mean_s, known)
    own_s = np.maximum(awake_s + (mean_s - stages)[fitted.requests], LEAST_SHARE * fitted.stages_s)
    multipliers = own_s / mean_s[fitted.requests]
    overhead_s, alone_s = overhead(good or drowned, gap_s, most, rule, found.wait_s)
    median_s = float(np.median(overhead_s))
    lone_s = float(np.median(alone_s)) if len(alone_s) >= SEEN else float(mean_s[1]) + median_s + found.wait_s
    service = Service(
        mean_s, *spread(fitted.requests, multipliers, most), grid(overhead_s, OVERHEAD_POINTS), waking=woken
    )
    notes += [sentence for sentence in (batching_rule.warning(endpoint, found, service),) if sentence]
    compute_s = float(by_size(fitted.requests, fitted.compute_s, most)[0][1])
    open_steps = [one for one in good if not one.closed]
    idle_w, active_w = _power(good, service)
    start_s = [float(said[key]) for key in ("load_s", "warmup_s") if isinstance(said.get(key), int | float)]
    return Calibration(
        endpoint=endpoint,
        service=service,
        max_batch=most,
        batch_wait_s=found.wait_s,
        rule=rule,
        declared_rule=declared_rule,
        queue=int(said.get("max_queue") or 0),
        routing=Routing.LEAST if ours else Routing.TWO_CHOICES,
        replicas=max(one.replicas for one in good or drowned),
        rows=rows,
        host_share=1 - min(1.0, compute_s / (float(mean_s[1]) + median_s)),
        lone_ms=1e3 * lone_s,
        highest_rps=max((one.offered_rps / one.replicas for one in open_steps), default=0.0),
        warmup_s=sum(start_s) if start_s else None,
        idle_w=idle_w,
        active_w=active_w,
        device=said.get("device_name") or said.get("device"),
        batches=np.bincount(batches.requests, minlength=most + 1),
        notes=tuple(notes),
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


# ---- notes


def _left_out(seen: Sequence[Observed]) -> list[str]:
    found = []
    if drowned := [one for one in seen if one.overloaded]:
        found.append(f"left out as overloaded: {_rates(drowned)}")
    if doubted := [one for one in seen if one.doubt is not None and not one.overloaded]:
        found.append(f"left out, since {doubted[0].doubt}: {_rates(doubted)}")
    if silent := [one for one in seen if not len(one.batches) and one.doubt is None]:
        found.append(f"left out, as no answer said what its batch took: {_rates(silent)}")
    return found


def _rates(steps: Sequence[Observed]) -> str:
    shown = ", ".join(significant(one.rate) for one in steps[:6])
    return f"{shown}{' …' if len(steps) > 6 else ''}/s"


def _no_batches(endpoint: str, seen: Sequence[Observed]) -> str:
    if not seen:
        return f"the runs have no steps of {endpoint}"
    if any(len(one.batches) for one in seen):
        return f"no step of {endpoint} can be trusted: {next(one.doubt for one in seen if one.doubt)}"
    return f"the answers of {endpoint} do not say what their batches took (server-timing), so no model can be fitted"


def _wakes(woken: Waking) -> str:
    extra, full = (significant(1e3 * seconds) for seconds in (woken.extra_s, woken.full_s))
    return f"a batch takes up to {extra} ms longer where its replica was idle before, all of that after {full} ms"


def _no_gain(mean_s: Floats, known: Bools) -> list[str]:
    """Batches that cost more than they bring; the engine takes all that waits, whatever that costs."""
    rates = np.where(known, np.arange(len(mean_s)) / np.where(mean_s > 0, mean_s, 1.0), 0.0)
    best, largest = int(np.argmax(rates)), int(np.flatnonzero(known)[-1])
    if rates[largest] > LOSS * rates[best]:
        return []
    return [
        f"batches of {largest} requests do {significant(float(rates[largest]))}/s, batches of {best} "
        f"{significant(float(rates[best]))}/s: with max_batch {best} a replica would take more"
    ]


def _guessed(known: Bools) -> list[str]:
    absent = [size for size in range(1, len(known)) if not known[size]]
    if not absent:
        return []
    last = int(np.flatnonzero(known)[-1])
    between = [size for size in absent if size < last]
    beyond = [size for size in absent if size > last]
    found = []
    if between:
        found.append(f"batches of {_sizes(between)} requests were hardly seen: their time is their neighbours'")
    if beyond:
        found.append(
            f"batches of {_sizes(beyond)} requests were never seen: their time is that of a straight line through the "
            f"others, so nothing is known of loads that need them"
        )
    return found


def _sizes(sizes: Sequence[int]) -> str:
    """
    >>> _sizes([2, 3, 4, 7])
    '2–4, 7'
    """
    parts: list[list[int]] = []
    for size in sizes:
        if parts and size == parts[-1][-1] + 1:
            parts[-1].append(size)
        else:
            parts.append([size])
    return ", ".join(f"{part[0]}–{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
