"""What may be wrong with this run's figures, and what they do not say: found in its own data, the most serious first.

`wrong`: a figure is not what it says it is. `doubt`: something else may have shaped it. `limit`: it holds, but for no
more than was tried. Each kind is found once, with the worst case's number and how many more there are. What makes a
run inconclusive or must be known of its endpoints is `verdict`'s to say; its sentences are taken as they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.records.manifest import endpoint_name
from tailrate.analysis.records.objective import LATE_MS, LEAST_FOR_P999, MOST_CPU_PCT
from tailrate.analysis.records.rows import LOST, is_success
from tailrate.analysis.stats.interval import least_for_upper
from tailrate.analysis.steps import fault_windows
from tailrate.analysis.steps.capacity import Capacity
from tailrate.analysis.steps.variant_pairs import Pair
from tailrate.analysis.text import words
from tailrate.analysis.verdicts import verdict
from tailrate.analysis.verdicts.conclusion import on_one_machine, three
from tailrate.analysis.verdicts.metric_risks import metric_risks
from tailrate.analysis.verdicts.stream_risks import stream_risks

if TYPE_CHECKING:
    from tailrate.analysis.steps.measure import MeasuredStep
    from tailrate.analysis.verdicts.run import Run

WRONG, DOUBT, LIMIT = "wrong", "doubt", "limit"
SEVERITIES = (WRONG, DOUBT, LIMIT)

NEAR_LATE = 0.5
"""Of the lateness that would do harm."""
MUCH_CPU_PCT = 60.0
ENOUGH_HEADROOM = 2.0
"""The load side's own limit over the highest rate that was offered."""
WIDE_P99 = 0.2
"""Half of P99's interval over P99."""
FEW_OF_MANY = 0.1
"""Independent arrivals of all, from which on a step is worth so little that it is said."""
WIDE_BRACKET = 1.2
MISTAKEN = 0.05
"""Share of requests that may have another device sample than their own."""
HOT_C = 85.0
BUSY_PCT = 95.0
ENERGY_S = 20.0
"""A shorter window holds too few readings of a power meter that is a tenth of a second behind."""
ONE_ROW = 1.5
"""Mean rows of a batch over those of a request: below, hardly anything was batched."""
APART = 0.01
"""Relative error from which outputs are other numbers than eager fp32's, whatever the precision tolerates."""
LOST_SIGHT = (
    "telemetry_lost", "samples_overwritten", "replica_lost", "device", "warning", "worker_lost", "workers_missing",
    "bad_fields",
)  # fmt: skip
"""Events that say that something was missing for a time."""


@dataclass(frozen=True, slots=True)
class Risk:
    kind: str
    severity: str
    """wrong, doubt or limit"""
    sentence: str
    """Without capital and full stop, as reasons are."""
    figure: float | None = None
    """The number that it rests on, in the unit that the sentence gives."""


def risks(run: Run, compared: Sequence[Pair], limits: Sequence[Capacity]) -> list[Risk]:
    found = [Risk("flaw", WRONG, sentence) for sentence in verdict.flaws(run)]
    found += [Risk("warning", DOUBT, sentence) for sentence in verdict.warnings(run)]
    for look in LOOKS:
        found += look(run)
    found += [Risk(*each) for each in (*metric_risks(run), *stream_risks(run))]
    found += [*_limits(limits), *_parity(run, compared), *_one_run(run)]
    return sorted(found, key=lambda risk: SEVERITIES.index(risk.severity))


# ---- the load generator


def _untrusted(run: Run) -> Iterator[Risk]:
    steps = [step for step in run.calm if step.summary.n and not step.summary.trusted]
    if steps:
        of = f"{len(steps)} of {len(run.calm)} steps cannot be trusted"
        yield Risk("untrusted", WRONG, f"{of}: {_where(steps[0])} {steps[0].summary.reasons[0]}", len(steps))


def _late(run: Run) -> Iterator[Risk]:
    shares = {
        index: step.order.late_ms[99.0] / step.order.late_limit_ms
        for index, step in enumerate(run.measured)
        if step.summary.trusted and step.order.late_ms.get(99.0)
    }
    near = [index for index, share in shares.items() if share > NEAR_LATE]
    if near:
        step = run.measured[worst := max(near, key=lambda index: shares[index])]
        late, limit = words.significant(step.order.late_ms[99.0]), words.significant(step.order.late_limit_ms)
        said = f"{_where(step)} requests were sent late by {late} ms (P99), where more than {limit} ms would do harm"
        yield Risk("late", DOUBT, said + _more(near), shares[worst])


def _load_cpu(run: Run) -> Iterator[Risk]:
    found = [float(e["pct"]) for e in run.events if e["event"] == "load_cpu" and e.get("pct") is not None]
    if found and MUCH_CPU_PCT < max(found) <= MOST_CPU_PCT:
        said = f"a load process was busy for {max(found):.0f} % of the time, so its own queueing may show in P99"
        yield Risk("load_cpu", DOUBT, said, max(found))


def _self_check(run: Run) -> Iterator[Risk]:
    check = run.manifest.extra.get("self_check")
    offered = max((step.summary.offered_rps or 0.0 for step in run.measured), default=0.0)
    if not isinstance(check, Mapping) or not check.get("safe_rps"):
        yield Risk("self_check", LIMIT, "no self-check shows what the load generator can do by itself")
        return
    # a check asks for the run's own rate: how much more there would have been, its CPU and lateness tell
    slack = 1.0
    if not check.get("closed"):
        used = [(check.get("cpu_pct") or 0.0) / MOST_CPU_PCT, (check.get("late_p99_ms") or 0.0) / LATE_MS]
        slack = max(1.0, 1 / max(*used, 0.01))
    headroom = float(check["safe_rps"]) * slack / offered if offered else ENOUGH_HEADROOM
    if headroom < ENOUGH_HEADROOM:
        most = f"by its self-check the load generator can do about {words.significant(headroom, 2)} times"
        yield Risk("self_check", DOUBT, f"{most} what was asked of it here", headroom)


def _system(run: Run) -> Iterator[Risk]:
    for host in run.manifest.hosts:
        if isinstance(lacks := host.get("lacks"), list) and lacks:
            yield Risk("system", DOUBT, f"the load generator's machine has {'; it has '.join(map(str, lacks))}")


def _same_machine(run: Run) -> Iterator[Risk]:
    if not on_one_machine(run.manifest):
        return
    cores = next((host.get("cpus") for host in run.manifest.hosts if host.get("role") == "load"), None)
    shared = f"its {cores} cores" if isinstance(cores, int) else "its cores"
    busy = [_mean(track, "util_pct", step) for track in run.tracks.values() if track.is_cpu for step in run.measured]
    most = max((pct for pct in busy if pct is not None), default=None)
    load = "" if most is None else f" (up to {most:.0f} % busy)"
    said = f"load generator and server ran on one machine: they share {shared}{load}, and no network is in the latency"
    yield Risk("same_machine", DOUBT, said, most)


def _closed_loop(run: Run) -> Iterator[Risk]:
    steps = [step for step in run.measured if step.concurrency]
    if steps:
        said = (
            "in a closed loop a slow endpoint is asked less often, so latencies hide the queue that arrivals would meet"
        )
        yield Risk("closed_loop", DOUBT, said, max(step.concurrency for step in steps))


# ---- the arrivals


def _failures(run: Run) -> Iterator[Risk]:
    statuses, rows = run.tallies.statuses, run.tallies.rows
    failed = Counter({word: n for word, n in statuses.items() if not is_success(word)})
    dropped, lost = failed.pop("dropped", 0), failed.pop(LOST, 0)
    if failed:
        kinds = ", ".join(f"{words.count(n)} {word}" for word, n in failed.most_common(4))
        pct = 100 * sum(failed.values()) / rows
        yield Risk("errors", DOUBT, f"{words.significant(pct, 2)} % of the arrivals failed ({kinds})", pct)
    if dropped:
        pct = 100 * dropped / rows
        said = f"{words.significant(pct, 2)} % of the arrivals were never sent, as too many were in flight"
        yield Risk("dropped", DOUBT, said, pct)
    if lost:
        yield Risk("lost", DOUBT, f"the answers to {words.count(lost)} arrivals were lost", lost)


def _incidents(run: Run) -> Iterator[Risk]:
    told = [event for event in run.events if event["event"] in LOST_SIGHT]
    planned = fault_windows.inside(
        np.array([int(event.get("time_ns") or 0) for event in told]), fault_windows.spans(run)
    )
    found = [event for event, known in zip(told, planned.tolist(), strict=True) if not known]
    if found:
        first = found[0]
        what = str(first["event"]).replace("_", " ")
        said = f"{what}: {first['sentence']}" if first.get("sentence") else what
        yield Risk("incident", DOUBT, said + _more(found), len(found))


def _few(run: Run) -> Iterator[Risk]:
    few = [step for step in run.measured if 0 < step.summary.n < (step.summary.early_stop_n or 0)]
    if few:
        step = min(few, key=lambda step: step.summary.n / (step.summary.early_stop_n or 1))
        had, needed = words.count(step.summary.n), words.count(step.summary.early_stop_n)
        said = f"{_where(step)} {had} arrivals are fewer than the {needed} that the percentile takes{_more(few)}"
        yield Risk("few_arrivals", DOUBT, said, step.summary.n)


def _interval(run: Run) -> Iterator[Risk]:
    steps = [s for s in run.measured if s.summary.trusted and s.summary.n and not s.overloaded and not _infinite(s)]
    without = [step for step in steps if (step.order.n_eff or 0) < least_for_upper(99)]
    if without:
        said = f"P99 is not bounded from above in {len(without)} of {len(steps)} steps: too few independent arrivals"
        yield Risk("no_interval", DOUBT, said, len(without))
    wide = {
        index: (row.p99_high_ms - row.p99_low_ms) / 2 / row.p99_ms
        for index, row in enumerate(step.summary for step in steps)
        if row.p99_ms and row.p99_low_ms is not None and row.p99_high_ms is not None and steps[index] not in without
    }
    unsure = [index for index, share in wide.items() if share > WIDE_P99]
    if unsure:
        worst = max(unsure, key=lambda index: wide[index])
        share = 100 * wide[worst]
        known = f"known to ±{words.significant(share, 2)} % only"
        open_ = "not bounded from above: its interval reaches the failures"
        said = f"{_where(steps[worst])} P99 is {known if math.isfinite(share) else open_}{_more(unsure)}"
        yield Risk("wide_interval", DOUBT, said, share if math.isfinite(share) else None)


def _dependent(run: Run) -> Iterator[Risk]:
    steps = [
        step for step in run.measured if step.summary.p99_low_ms and (step.summary.n_eff or 0) >= least_for_upper(99)
    ]
    few = [step for step in steps if (step.summary.n_eff or 0) < FEW_OF_MANY * step.summary.n]
    if few:
        step = min(few, key=lambda step: (step.summary.n_eff or 0) / step.summary.n)
        had, worth = words.count(step.summary.n), words.count(step.summary.n_eff)
        said = f"{_where(step)} neighbours are alike: {had} arrivals are worth {worth} independent{_more(few)}"
        yield Risk("dependent", LIMIT, said, step.summary.n_eff)


def _unsteady(run: Run) -> Iterator[Risk]:
    found = [
        (step, next((r for r in step.summary.reasons if r.startswith("not steady: ")), ""))
        for step in run.calm
        if step.summary.steady is False and not step.overloaded
    ]
    if found:
        step, why = max(found, key=lambda one: abs(one[0].summary.drift_pct or 0.0))
        said = f"{_where(step)} {why.removeprefix('not steady: ')}{_more(found)}"
        yield Risk("unsteady", DOUBT, said, step.summary.drift_pct)


def _rare(run: Run) -> Iterator[Risk]:
    most = max((step.summary.n for step in run.measured), default=0)
    if 0 < most < LEAST_FOR_P999:
        said = f"no step has the {LEAST_FOR_P999:,} arrivals that P99.9 takes, but at most {most:,}"
        yield Risk("no_p999", LIMIT, said, most)


# ---- the server


def _weights(run: Run) -> Iterator[Risk]:
    found = [name for name, said in _said(run) if str(said.get("weights") or "").startswith("random")]
    if found:
        rows = run.manifest.scenario.get("rows")
        each = f", with {rows} {'row' if rows == 1 else 'rows'} a request" if isinstance(rows, int) else ""
        said = f"weights are random and requests made up{each}: times hold for such data, and answers mean nothing"
        yield Risk("random_weights", LIMIT, said, rows if isinstance(rows, int) else None)


def _compiled(run: Run) -> Iterator[Risk]:
    broken = {name: _number(said, "graph_breaks") for name, said in _said(run) if _number(said, "graph_breaks")}
    if broken:
        name = max(broken, key=lambda name: broken[name])
        text = f"the graph of {name} has breaks ({broken[name]:.0f}), so that it is compiled in pieces"
        yield Risk("graph_breaks", LIMIT, text + _more(broken), broken[name])
    cold = {n: said for n, said in _said(run) if said.get("start") == "cold" and _number(said, "compilations")}
    if cold:
        name = next(iter(cold))
        seconds = _number(cold[name], "warmup_s")
        text = f"{name} was compiled at this start ({words.significant(seconds)} s until it was warm)"
        yield Risk("cold_start", LIMIT, f"{text}: a start from kept artefacts may run other code{_more(cold)}", seconds)


def _parity(run: Run, compared: Sequence[Pair]) -> Iterator[Risk]:
    said = dict(_said(run))
    others = {pair.b for pair in compared if pair.a != pair.b}
    unknown = sorted(name for name in others if said.get(name, {}).get("parity_relative_error") is None)
    if unknown:
        text = f"nobody has measured whether {unknown[0]} answers what the variant that it is compared with does"
        yield Risk("parity", DOUBT, text + _more(unknown))
    errors = {name: _number(one, "parity_relative_error") for name, one in said.items() if one.get("parity_ok")}
    apart = [name for name, error in errors.items() if error > APART]
    if apart:
        name = max(apart, key=lambda name: errors[name])
        error = words.significant(errors[name], 2)
        text = f"outputs of {name} differ from eager fp32's by {error} of their size, as its precision allows"
        yield Risk("precision", LIMIT, text + _more(apart), errors[name])


def _plain(run: Run) -> Iterator[Risk]:
    ingress = run.manifest.extra.get("ingress")
    before = ingress.get("before") if isinstance(ingress, Mapping) else None
    if isinstance(before, Mapping) and before.get("way") == "plain" and not before.get("fallback"):
        said = (
            "requests came by the plain proxy, which takes some 25 times fewer than the fast way: it may be the limit"
        )
        yield Risk("plain_proxy", DOUBT, said)


def _batches(run: Run) -> Iterator[Risk]:
    entries = {endpoint_name(entry): entry for entry in run.manifest.endpoints}
    rows = run.manifest.scenario.get("rows")
    each = rows if isinstance(rows, int) and rows > 0 else 1
    found = [
        (step, float(step.summary.batch_rows_mean), int(most))
        for step in run.measured
        if step.summary.batch_rows_mean is not None
        and isinstance(most := entries.get(step.summary.endpoint, {}).get("max_batch"), int)
        and most >= 2 * each
    ]
    small = [one for one in found if one[0].overloaded and one[1] < one[2] / 2]
    if small:
        step, mean, most = min(small, key=lambda one: one[1] / one[2])
        held = f"batches held {words.significant(mean, 2)} of at most {most} rows while the queue grew"
        yield Risk("small_batches", DOUBT, f"{_where(step)} {held}{_more(small)}", mean)
    elif found and all(mean < ONE_ROW * each for _, mean, _ in found):
        mean = max(mean for _, mean, _ in found)
        said = f"batches held {words.significant(mean, 2)} rows at most: what batching brings is not in these figures"
        yield Risk("no_batching", LIMIT, said, mean)


# ---- the devices


def _join(run: Run) -> Iterator[Risk]:
    rows = run.tallies
    if not run.tracks or not rows.with_device:
        return
    alone, near = 1 - rows.joined / rows.with_device, rows.near_boundary / max(1, rows.joined)
    if max(alone, near) > MISTAKEN:
        pct = 100 * max(alone, near)
        what = "have no sample of their device near them" if alone >= near else "may have been given the next sample's"
        said = f"{words.significant(pct, 2)} % of the requests {what}: figures of a request's device are in doubt"
        yield Risk("join", DOUBT, said, pct)


def _throttled(run: Run) -> Iterator[Risk]:
    start = "its device's clocks were held down: "
    found = [(step, r) for step in run.measured for r in step.summary.reasons if r.startswith(start)]
    if found:
        step, why = max(found, key=lambda one: one[0].summary.throttled_pct or 0.0)
        said = f"{_where(step)} the device's clocks were held down: {why.removeprefix(start)}{_more(found)}"
        yield Risk("throttled", DOUBT, said, step.summary.throttled_pct)
    gpus = {name for name, track in run.tracks.items() if not track.is_cpu}
    warm = [s for s in run.measured if s.tally.devices & gpus and (s.summary.temp_c or 0.0) >= HOT_C]
    if warm:
        step = max(warm, key=lambda step: step.summary.temp_c or 0.0)
        said = f"{_where(step)} the GPU was {step.summary.temp_c:.0f} °C hot, near where clocks fall{_more(warm)}"
        yield Risk("hot", DOUBT, said, step.summary.temp_c)


def _utilisation(run: Run) -> Iterator[Risk]:
    gpus = {name for name, track in run.tracks.items() if not track.is_cpu}
    busy = [s for s in run.measured if s.tally.devices & gpus and (s.summary.util_pct or 0.0) >= BUSY_PCT]
    for step in sorted(busy, key=lambda step: step.rate):
        kept = [s.rate for s in run.measured if s.summary.endpoint == step.summary.endpoint and not s.overloaded]
        if kept and max(kept) > WIDE_BRACKET * step.rate:
            pct = f"{step.summary.util_pct:.0f} % busy"
            said = f"{_where(step)} the GPU showed {pct}, and the endpoint kept up with {three(max(kept))}/s"
            yield Risk("utilisation", LIMIT, f"{said}: utilisation does not say what is left", step.summary.util_pct)
            return


def _energy(run: Run) -> Iterator[Risk]:
    steps = [step for step in run.measured if step.summary.joules is not None]
    shared = [(s, r) for s in run.measured for r in s.summary.reasons if r.startswith("its device also served")]
    if shared:
        said = f"variants were loaded on one device at once, so each waited for the other: {_where(shared[0][0])} "
        yield Risk("shared_device", DOUBT, f"{said}{shared[0][1]}{_more(shared)}", len(shared))
    short = [step for step in steps if (step.end_ns - step.start_ns) / 1e9 < ENERGY_S]
    if short:
        seconds = min((step.end_ns - step.start_ns) / 1e9 for step in short)
        said = f"energy is measured over {words.significant(seconds, 2)} s, where {ENERGY_S:g} s would be a fair window"
        yield Risk("energy_window", LIMIT, said + _more(short), seconds)
    if steps and all(step.summary.net_joules_per_request is None for step in steps):
        yield Risk("no_idle", LIMIT, "no idle power was measured, so energy includes what the device draws anyway")


# ---- what was not tried


def _limits(limits: Sequence[Capacity]) -> Iterator[Risk]:
    above = [row for row in limits if row.low_rps is not None and row.high_rps is None]
    if above:
        row = above[0]
        said = f"no rate is known to miss {row.slo}: the limit of {row.endpoint} lies above {three(row.low_rps)}/s"
        yield Risk("limit_above", LIMIT, said + _more(above), row.low_rps)
    below = [row for row in limits if row.low_rps is None and row.high_rps is not None]
    if below:
        row = below[0]
        said = f"no rate is known to meet {row.slo}: the limit of {row.endpoint} lies below {three(row.high_rps)}/s"
        yield Risk("limit_below", LIMIT, said + _more(below), row.high_rps)
    ratios = {i: row.high_rps / row.low_rps for i, row in enumerate(limits) if row.low_rps and row.high_rps}
    wide = [index for index, ratio in ratios.items() if ratio > WIDE_BRACKET]
    if wide:
        row = limits[worst := max(wide, key=lambda index: ratios[index])]
        between = f"lies between {three(row.low_rps)} and {three(row.high_rps)}/s"
        said = f"the limit of {row.endpoint} {between}, which is a factor of {words.significant(ratios[worst], 2)}"
        yield Risk("wide_bracket", LIMIT, said + _more(wide), ratios[worst])


def _one_run(run: Run) -> Iterator[Risk]:
    if run.manifest.status == "complete" and run.tallies.rows:
        yield Risk(
            "one_run", LIMIT, "this is one run: no interval holds what differs from day to day or start to start"
        )


LOOKS: tuple[Callable[[Run], Iterator[Risk]], ...] = (
    _untrusted, _late, _load_cpu, _self_check, _system, _same_machine, _closed_loop, _plain, _failures, _incidents,
    _few, _interval, _unsteady, _batches, _energy, _throttled, _join, _utilisation, _compiled, _weights, _dependent,
    _rare,
)  # fmt: skip


def _where(step: MeasuredStep) -> str:
    return f"{step.summary.endpoint} at {step.asked}:"


def _more(found: Any) -> str:
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""


def _mean(track: Any, column: str, step: MeasuredStep) -> float | None:
    values = track.within(column, step.start_ns, step.end_ns)
    return float(values.mean()) if len(values) else None


def _infinite(step: MeasuredStep) -> bool:
    return step.summary.p99_ms is None or step.summary.p99_ms == float("inf")


def _said(run: Run) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What each endpoint said of itself, after the run where it did."""
    for entry in run.manifest.endpoints:
        found = entry.get("parameters_after") or entry.get("parameters")
        yield endpoint_name(entry), found if isinstance(found, Mapping) else {}


def _number(said: Mapping[str, Any], key: str) -> float:
    value = said.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
