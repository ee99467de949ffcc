"""Which settings of an endpoint do most: batch size, batch wait, replicas on a device, variant; in the simulator.

Every point of the space is tried, first on few arrivals, then the best of them on many: there are some dozens, and a
point takes milliseconds (docs/log.md tells what a sampler that learns from point to point did on the same space). A
setting that keeps the objective at no rate is a row like any other. Tried is only what was measured: batches as large
as were seen often, and as many replicas on one device as there were.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tailrate.analysis.planning.model.service_time import SEEN
from tailrate.analysis.planning.plan.candidates import PlannedVariant, measured_per_gpu, variants
from tailrate.analysis.planning.plan.plan_text import ms, share
from tailrate.analysis.planning.plan.sizing import QuestionError, Sizing
from tailrate.analysis.planning.simulator.simulate import Fleet, Rule
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.text.table import Table, safe
from tailrate.analysis.text.words import ABSENT, significant
from tailrate.analysis.verdicts.run import Run

RATE, ENERGY = "rate", "energy"
WAITS = (0.0, 0.02, 0.05, 0.1, 0.2)
"""Of the objective's latency."""
COARSE = 8
"""In the first look there are so many times fewer arrivals."""
KEPT, LEAST_KEPT = 0.25, 6
SHOWN = 12
START = 0.7
"""A live search begins at this share of the rate that was found."""


@dataclass(frozen=True, eq=False)
class TunedPoint:
    """One way to run one device, and what it does at the highest rate that keeps the objective."""

    variant: PlannedVariant
    fleet: Fleet
    """Of one device."""
    rate_rps: float = 0.0
    """0: it keeps the objective at no rate."""
    utilisation: float | None = None
    mean_batch: float | None = None
    joules: float | None = None
    """Per request."""

    def cost(self, objective: str) -> tuple[float, float]:
        """The lower, the better."""
        if not self.rate_rps or (objective == ENERGY and self.joules is None):
            return np.inf, 0.0
        return (self.joules or 0.0, -self.rate_rps) if objective == ENERGY else (-self.rate_rps, self.joules or 0.0)


@dataclass(frozen=True, eq=False)
class Tuning:
    points: Sequence[TunedPoint]
    """The best first."""
    slo: Slo
    objective: str
    notes: Sequence[str]

    @property
    def best(self) -> TunedPoint | None:
        return self.points[0] if self.points and self.points[0].rate_rps else None

    def as_json(self) -> dict[str, object]:
        return {
            "slo": str(self.slo),
            "objective": self.objective,
            "notes": list(self.notes),
            "points": [
                {
                    "endpoint": one.variant.endpoint,
                    "max_batch": one.fleet.max_batch,
                    "batch_wait_ms": one.fleet.batch_wait_s * 1e3,
                    "replicas_per_gpu": one.fleet.replicas,
                    "rate_rps": one.rate_rps,
                    "utilisation": one.utilisation,
                    "mean_batch": one.mean_batch,
                    "joules_per_request": one.joules,
                    "measured": _as_measured(one),
                }
                for one in self.points
            ],
        }


def tune(runs: Sequence[Run], sizing: Sizing, objective: str = RATE, endpoints: Sequence[str] = ()) -> Tuning:
    """`sizing` says the objective and the arrivals."""
    found, notes = _variants(runs, sizing, endpoints)
    if objective == ENERGY and not any(variant.calibration.active_w for variant in found):
        raise QuestionError("--objective energy takes runs with the power of their devices, idle and under load")
    space = [point for variant in found for point in _space(variant, sizing)]
    few = replace(sizing, sparing=COARSE)
    looked = sorted((_tried(point, few) for point in space), key=lambda point: point.cost(objective))
    kept = max(LEAST_KEPT, round(KEPT * len(looked)))
    points = [
        _tried(point, sizing) if place < kept or _as_measured(point) else point for place, point in enumerate(looked)
    ]
    ordered = sorted(points, key=lambda point: point.cost(objective))
    return Tuning(ordered, sizing.objective.slo, objective, notes)


def _variants(runs: Sequence[Run], sizing: Sizing, endpoints: Sequence[str]) -> tuple[list[PlannedVariant], list[str]]:
    """Each number of replicas on a device is a model of its own, since they take from each other."""
    groups: dict[int, list[Run]] = {}
    for run in runs:
        groups.setdefault(_sharing(run), []).append(run)
    found: list[PlannedVariant] = []
    notes: list[str] = []
    for together in groups.values():
        more, left_out = variants(together, sizing.objective.slo, endpoints=endpoints, tell=sizing.tell)
        found += more
        notes += left_out
    if len(groups) == 1:
        (alone,) = groups
        notes.append(f"Replicas on a device: only {alone} was measured, so no other number is tried.")
    notes += [
        f"{variant.endpoint}: larger batches than of {_largest(variant)} were hardly seen, so none is tried."
        for variant in found
        if _largest(variant) < variant.calibration.max_batch
    ]
    return found, notes


def _sharing(run: Run) -> int:
    names = {step.summary.endpoint for step in run.measured}
    return max((measured_per_gpu([run], name, _replicas(run, name)) for name in names), default=1)


def _replicas(run: Run, endpoint: str) -> int:
    steps = [step for step in run.measured if step.summary.endpoint == endpoint]
    rows = run.requests([step.summary.index for step in steps], ["endpoint", "replica"])
    return int(rows.loc[rows["endpoint"] == endpoint, "replica"].nunique())


def _largest(variant: PlannedVariant) -> int:
    seen = np.flatnonzero(variant.calibration.batches >= SEEN)
    return int(seen[-1]) if len(seen) else 1


def _space(variant: PlannedVariant, sizing: Sizing) -> Iterator[TunedPoint]:
    largest, fleet = _largest(variant), variant.calibration.fleet(variant.measured_per_gpu)
    sizes = sorted({*(2**power for power in range(largest.bit_length())), largest})
    waits = sorted({*(round(part * sizing.objective.latency_s, 5) for part in WAITS), fleet.batch_wait_s})
    for size in sizes:
        for wait_s in waits if size > 1 else [0.0]:
            yield TunedPoint(variant, replace(fleet, max_batch=size, batch_wait_s=wait_s))
    if fleet.max_batch not in sizes:
        yield TunedPoint(variant, fleet)


def _tried(point: TunedPoint, sizing: Sizing) -> TunedPoint:
    rate = sizing.knee_rps(point.fleet)
    if not rate:
        return point
    reading = sizing.read(point.fleet, rate)
    power_w = replace(point.variant, per_gpu=point.fleet.replicas).power_w(point.fleet.replicas, reading.utilisation)
    joules = None if power_w is None else power_w / rate
    return replace(point, rate_rps=rate, utilisation=reading.utilisation, mean_batch=reading.mean_batch, joules=joules)


def _as_measured(point: TunedPoint) -> bool:
    was = point.variant.calibration
    return (point.fleet.max_batch, point.fleet.batch_wait_s) == (was.max_batch, was.batch_wait_s)


# ---- in words


def table(found: Tuning) -> Table:
    """The best, and what was measured."""
    shown = [*found.points[:SHOWN], *(point for point in found.points[SHOWN:] if _as_measured(point))]
    heads = ["endpoint", "", "batch up to", "batch wait", "on a device", "requests/s", "busy", "batch", "J/request"]
    rows = [
        [
            point.variant.endpoint,
            "as measured" if _as_measured(point) else "",
            str(point.fleet.max_batch),
            ms(point.fleet.batch_wait_s) if point.fleet.batch_wait_s else "none",
            str(point.fleet.replicas),
            significant(point.rate_rps) if point.rate_rps else "none",
            share(point.utilisation),
            significant(point.mean_batch),
            significant(point.joules),
        ]
        for point in shown
    ]
    if all(row[-1] == ABSENT for row in rows):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    title = f"The highest rate of one device at {found.slo}, {len(found.points)} settings"
    return safe(Table(title, heads, rows, texts=2))


def sentences(found: Tuning, runs: Sequence[Run]) -> Iterator[str]:
    best = found.best
    missed = sum(not point.rate_rps for point in found.points)
    if missed:
        yield f"{missed} of {len(found.points)} settings keep {found.slo} at no rate."
    yield from found.notes
    if best is None:
        yield f"No setting keeps {found.slo} at any rate."
        return
    error = best.variant.error
    off = "unknown" if error is None else share(error)
    yield f"The model's error in the rate at the objective, on rates that it had not seen, is {off}."
    if len(found.points) > 1:
        yield "A setting that was not measured is confirmed by a live search:"
    for line in confirm(best, found.slo, runs):
        yield f"  {line}"


def confirm(point: TunedPoint, slo: Slo, runs: Sequence[Run]) -> list[str]:
    """The commands that look for the best setting's knee live."""
    run = next(run for run in runs if _has(run, point.variant.endpoint))
    model, _, variant = point.variant.endpoint.rpartition("/")
    fleet, rows = point.fleet, point.variant.calibration.rows
    drive = ["tailrate", "run", _scenario(run, model), "--variants", variant, "--mode", "knee", "--slo", str(slo)]
    drive += ["--rates", f"{START * point.rate_rps:.3g}", *(["--rows", f"{rows:g}"] if rows != 1 else [])]
    how = ["--max-batch", f"{fleet.max_batch * rows:g}", "--max-wait-ms", f"{fleet.batch_wait_s * 1e3:g}"]
    how += ["--replicas", str(fleet.replicas)]
    host = _host(run)
    if host is None:
        return [shlex.join([*drive, *how])]
    driven = shlex.join([*drive, "--host", host])
    if point.variant.calibration.declared_rule is not Rule.COMPANY:
        return [f"(the server set to batches of {fleet.max_batch} and a wait of {ms(fleet.batch_wait_s)})", driven]
    return [shlex.join(["tailrate", "serve", model, "--variants", variant, *how]), driven]


def _has(run: Run, endpoint: str) -> bool:
    return any(step.summary.endpoint == endpoint for step in run.measured)


def _given(run: Run) -> list[str]:
    """The command line that drove it."""
    try:
        return shlex.split(str(run.manifest.extra.get("command") or ""))
    except ValueError:
        return []


def _scenario(run: Run, model: str) -> str:
    """By its name, or by its file as it was given."""
    given = _given(run)
    if given[:2] == ["tailrate", "run"] and len(given) > 2 and not given[2].startswith("-"):
        return given[2]
    return given[given.index("-f") + 1] if "-f" in given[:-1] else str(run.manifest.scenario.get("name") or model)


def _host(run: Run) -> str | None:
    """That was given by whoever drove the run; None where it served the model itself."""
    given = _given(run)
    if "--host" in given[:-1]:
        return given[given.index("--host") + 1]
    return next((word.partition("=")[2] for word in given if word.startswith("--host=")), None)
