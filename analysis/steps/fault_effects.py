"""What users saw of each fault: rows of `faults`, one per fault and endpoint that was under load.

Before is the minute up to the fault, at the same load and after the fault before it; where users were not served as
before since that one, the minute before that. A fault's own are the requests
that were under way when it struck, and what was due from then until it was over and arrivals were served as before.

*As before* is judged in slices of a second, or of fifty arrivals where that is longer: the first five in a row, from
the end of the fault on, in which no larger share fails than in the worst slice before, and P99 of the successes is at
most a tenth above that of the worst. The last arrival before them that failed, or was slower, is when it had recovered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tailrate.analysis.judging.judge import in_time
from tailrate.analysis.records.folder import REQUESTS
from tailrate.analysis.records.objective import BEFORE_FAULT_S, MAX_RECOVERY_S, looked_for_s
from tailrate.analysis.records.rows import LOST
from tailrate.analysis.run.window import Excerpt, joined, read
from tailrate.analysis.steps.faults import reach
from tailrate.analysis.text import words

if TYPE_CHECKING:
    from tailrate.analysis.steps.measured_run import MeasuredRun

WINDOW_NS = round(BEFORE_FAULT_S * 1e9)
SLICE_S, SLICE_ARRIVALS = 1.0, 50
STEADY_SLICES = 5
LEAST_SLICES = 3
"""Of the time before, without which nothing is judged."""
MARGIN = 1.1
PAUSE_S = 5.0
"""Between two chapters, at most."""
UNKNOWN = "too little is known of the time before it to say when users were served as before"
UNRECOVERED = "users were not yet served as before when the next fault, the end, or ten minutes came"


@dataclass(frozen=True, slots=True)
class FaultEffect:
    """`during` is from the fault's begin until it was over and users were served as before."""

    id: int
    fault: str
    target: str
    start_s: float
    seconds: float | None
    said: str
    injected: bool = True
    endpoint: str = ""
    n: int = 0
    errors: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    n_after: int = 0
    errors_after: int = 0
    statuses_after: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    in_flight_failed: int = 0
    ok_p50_before_ms: float | None = None
    ok_p50_during_ms: float | None = None
    ok_p50_after_ms: float | None = None
    ok_p99_before_ms: float | None = None
    ok_p99_during_ms: float | None = None
    ok_p99_after_ms: float | None = None
    recovered_s: float | None = None
    """From its beginning."""
    max_recovery_s: float = MAX_RECOVERY_S
    """From its end."""
    healed: bool | None = None
    """Whether users were served as before by then; None where that cannot be told."""
    why: str = ""
    """There is no `recovered_s`."""
    replicas_gone: tuple[str, ...] = ()
    replicas_new: tuple[str, ...] = ()
    scheduled: int = 0
    ok: int = 0
    failed: int = 0
    timed_out: int = 0
    dropped: int = 0
    lost: int = 0
    closes: bool = True
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault with the time that it takes out of what is judged: from the first request that was under way."""

    effect: FaultEffect
    start_ns: int
    end_ns: int


def faults(run: MeasuredRun) -> list[FaultEffect]:
    return [one.effect for one in run.struck]


def struck(run: MeasuredRun) -> list[Struck]:
    """Every fault of the run, in the order in which they were injected; those that could not be, too."""
    # another source may write events of this name without times, from which nothing can be told
    told = [e for e in run.events if e["event"] == "fault" and type(e.get("start_ns")) is type(e.get("id")) is int]
    begun = sorted((e for e in told if e.get("phase") != "end"), key=lambda event: int(event["start_ns"]))
    ends = {event["id"]: event["end_ns"] for event in told if event.get("end_ns")}
    instants = [int(event["start_ns"]) for event in begun if event.get("phase") != "refused"]
    may_take_s = run.manifest.max_recovery_s
    admitted = run.manifest.totals.get("lost", 0) - run.tallies.statuses[LOST] if begun else 0
    over_at_ns = max((int(step["end_ns"]) for step in run.manifest.scenario["steps"]), default=1 << 62)
    kept, found = _kept(run), []
    free_ns: dict[str, int] = {}
    """By endpoint, when the fault before was over."""
    usual: dict[str, tuple[int, int]] = {}
    """Of endpoints that do not serve as before since an earlier fault: the time before that."""
    for event in begun:
        start_ns = int(event["start_ns"])
        if event.get("phase") == "refused":
            found.append(Struck(_bare(run, event, None, "it could not be injected: {said}"), start_ns, start_ns))
            continue
        if event["id"] in kept:
            found += kept[event["id"]]
            free_ns |= {one.effect.endpoint: one.end_ns for one in kept[event["id"]]}
            continue
        end_ns = ends.get(event["id"])
        seconds = None if end_ns is None else (end_ns - start_ns) / 1e9
        last_ns = (end_ns or start_ns) + round(looked_for_s(may_take_s) * 1e9)
        due_ns = (end_ns or start_ns) + round(may_take_s * 1e9)
        next_ns = min([last_ns, *(at for at in instants if at > start_ns)])
        over_ns = int(end_ns or next_ns)
        bare = _bare(run, event, seconds, "no arrival is there from which to tell what users saw")
        bare = replace(bare, max_recovery_s=may_take_s)
        # what is left out of the judgement, at most
        until_ns = min(due_ns, next_ns, over_at_ns)
        seen = []
        for endpoint, steps in _loads(run, start_ns).items():
            low_ns = min(start_ns, max(free_ns.get(endpoint, 0), start_ns - WINDOW_NS))
            span = _Span(usual.get(endpoint, (low_ns, start_ns)), low_ns, start_ns, over_ns, next_ns)
            free_ns[endpoint] = max(low_ns, over_ns)
            # what was sent before may still have been under way when it struck
            whole = (min(span.before_ns[0], start_ns - WINDOW_NS), next_ns)
            rows = run.reading(REQUESTS, partial(read, endpoint=endpoint, steps=steps, span=whole))
            if len(rows):
                closed = {int(step["index"]) for step in steps if step.get("concurrency") or step.get("sessions")}
                effect, free_ns[endpoint] = _effect(replace(bare, endpoint=endpoint), rows, span, closed, admitted)
                under_way = rows.intended_ns[rows.under_way(start_ns)]
                felt_ns = until_ns if effect.recovered_s is None else min(until_ns, free_ns[endpoint])
                broken = reach(effect.fault)
                if broken.load:
                    over = [int(step["end_ns"]) for step in steps if step["start_ns"] <= start_ns]
                    felt_ns = max([felt_ns, *over])
                elif not broken.endpoint:  # if users are served worse meanwhile, it is not because of this
                    felt_ns = min(over_ns, over_at_ns)
                seen.append(Struck(effect, int(min([start_ns, *under_way])), felt_ns))
                usual.pop(endpoint, None)
                if effect.why == UNRECOVERED:
                    usual[endpoint] = span.before_ns
        found += seen or [Struck(bare, start_ns, until_ns)]
    return found


def _kept(run: MeasuredRun) -> dict[int, list[Struck]]:
    """By number, those whose rows were deleted since, as they were told before."""
    found: dict[int, list[Struck]] = {}
    for chapter in run.kept:
        mine: dict[int, list[Struck]] = {}
        for one in chapter["faults"]:
            known = one["effect"]
            effect = FaultEffect(**known | {name: tuple(known[name]) for name in ("replicas_gone", "replicas_new")})
            mine.setdefault(effect.id, []).append(Struck(effect, one["start_ns"], one["end_ns"]))
        found |= mine
    return found


def _loads(run: MeasuredRun, at_ns: int) -> dict[str, list[Mapping[str, Any]]]:
    """By endpoint, the steps around an instant that ask for the same as the one under way then."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    by_endpoint: dict[str, list[Mapping[str, Any]]] = {}
    for step in run.manifest.scenario["steps"]:
        by_endpoint.setdefault(str(step["endpoint"]), []).append(step)
    for endpoint, steps in by_endpoint.items():
        steps.sort(key=lambda step: int(step["start_ns"]))
        pause_ns = round(PAUSE_S * 1e9)
        place = next((k for k, s in enumerate(steps) if s["start_ns"] - pause_ns <= at_ns < s["end_ns"]), None)
        if place is None:
            continue
        asked = _asked(steps[place])
        first, last = place, place + 1
        while first and _asked(steps[first - 1]) == asked:
            first -= 1
        while last < len(steps) and _asked(steps[last]) == asked:
            last += 1
        found[endpoint] = steps[first:last]
    return found


def _asked(step: Mapping[str, Any]) -> tuple[float, int]:
    return float(step["rate"]), int(step.get("concurrency") or 0)


def _bare(run: MeasuredRun, event: Mapping[str, Any], seconds: float | None, why: str) -> FaultEffect:
    """What is known of it without looking at an arrival."""
    name, target, said = (str(event.get(key) or "") for key in ("fault", "target", "sentence"))
    start_s = (int(event["start_ns"]) - run.manifest.started_ns) / 1e9
    sentence = f"{name}: {why.replace('{said}', said)}"
    injected = event.get("phase") != "refused"
    return FaultEffect(int(event["id"]), name, target, start_s, seconds, said, injected, sentence=sentence)


@dataclass(frozen=True, slots=True)
class _Span:
    """The time that tells of a fault: the one before it was over by `low_ns`, the next one begins at `next_ns`."""

    before_ns: tuple[int, int]
    low_ns: int
    start_ns: int
    end_ns: int
    next_ns: int


def _effect(bare: FaultEffect, rows: Excerpt, span: _Span, closed: set[int], admitted: int) -> tuple[FaultEffect, int]:
    """And when it was over; `admitted`: how many arrivals of the whole run were lost without a row, as that says."""
    next_ns = span.next_ns
    hit = rows.under_way(span.start_ns)
    under_way, rest = rows.where(hit), rows.where(~hit)
    before = rest.between(*span.before_ns)
    recovered_ns, worse_ns, why = _recovered(before, rest.between(span.start_ns, next_ns), span)
    over_ns = next_ns if why == UNRECOVERED else min(next_ns, max(span.end_ns, (recovered_ns or 0) + 1))
    until_ns = min(over_ns + WINDOW_NS, next_ns)
    during = joined([under_way, rest.between(span.start_ns, over_ns)])
    after = rest.between(over_ns, until_ns)
    gone, new = before.replicas() - after.replicas(), after.replicas() - before.replicas()
    known = bool(before.replicas() and after.replicas())
    whole = rows.between(span.low_ns, until_ns)
    scheduled, missing, twice = whole.counted(closed)
    counts: dict[str, Any] = whole.totals()

    def since(zero_ns: int, at_ns: int | None) -> float | None:
        return None if at_ns is None else (at_ns - zero_ns) / 1e9

    percentiles: dict[str, Any] = {
        f"ok_p{percent}_{when}_ms": part.ok_ms(percent)
        for percent in (50, 99)
        for when, part in (("before", before), ("during", during), ("after", after))
    }
    effect = replace(
        bare,
        n=len(during),
        errors=during.errors,
        statuses=during.statuses(),
        n_after=len(after),
        errors_after=after.errors,
        statuses_after=after.statuses(),
        in_flight=len(under_way),
        in_flight_failed=under_way.errors,
        **percentiles,
        recovered_s=since(span.start_ns, recovered_ns),
        healed=in_time(bare.max_recovery_s, since(span.end_ns, recovered_ns), since(span.end_ns, worse_ns)),
        why=why,
        replicas_gone=tuple(sorted(gone)) if known else (),
        replicas_new=tuple(sorted(new)) if known else (),
        scheduled=scheduled,
        **counts | {"lost": counts["lost"] + missing},
        closes=not twice and missing <= max(0, admitted),
    )
    return replace(effect, sentence=_sentence(effect)), over_ns


def _recovered(before: Excerpt, since: Excerpt, span: _Span) -> tuple[int | None, int | None, str]:
    """The last arrival that was worse than before, the fault's start where none was; where nobody can say that it is
    the last, the latest one that was worse, and why."""
    start_ns = span.start_ns
    if not len(before):
        return None, None, UNKNOWN
    rate = len(before) / max(1e-9, (span.before_ns[1] - int(before.intended_ns[0])) / 1e9)
    slice_ns = round(max(SLICE_S, SLICE_ARRIVALS / rate) * 1e9)
    earlier = [part for _, part in before.slices(start_ns, slice_ns)]
    earlier = earlier[1:] if len(earlier) > LEAST_SLICES else earlier  # the first may be a part of one
    slowest = [part.ok_ms(99) for part in earlier if part.ok.any()]
    if len(slowest) < LEAST_SLICES:
        return None, None, UNKNOWN
    most_ms = MARGIN * max(value for value in slowest if value is not None)
    most_errors = max(part.errors / len(part) for part in earlier)
    slices = since.slices(start_ns, slice_ns)
    worse = [
        not part.ok.any() or part.errors / len(part) > most_errors or (part.ok_ms(99) or 0.0) > most_ms
        for _, part in slices
    ]
    first = next(
        (k for k, (number, _) in enumerate(slices) if start_ns + (number + 1) * slice_ns > span.end_ns), len(slices)
    )
    steady = next(
        (k for k in range(first, len(slices) - STEADY_SLICES + 1) if not any(worse[k : k + STEADY_SLICES])), None
    )
    last = next((k for k in range((len(slices) if steady is None else steady) - 1, -1, -1) if worse[k]), None)
    worse_ns = start_ns
    if last is not None:
        part = slices[last][1]
        bad = ~part.ok | (part.latency_ms > most_ms)
        worse_ns = int(part.intended_ns[bad][-1])
    return (None, worse_ns, UNRECOVERED) if steady is None else (worse_ns, None, "")


def _sentence(e: FaultEffect) -> str:
    parts = []
    if e.errors:
        which = ", ".join(f"{word}: {words.count(count)}" for word, count in e.statuses.items())
        parts.append(f"{words.count(e.errors)} of {words.count(e.n)} requests failed ({which})")
    else:
        parts.append(f"none of {words.count(e.n)} requests failed")
    if e.in_flight_failed:
        parts.append(f"among them {e.in_flight_failed} of the {e.in_flight} that were under way")
    latencies = [words.ms(value) for value in (e.ok_p99_before_ms, e.ok_p99_during_ms, e.ok_p99_after_ms)]
    parts.append(f"P99 of successes {latencies[0]} before, {latencies[1]} during, {latencies[2]} after")
    if e.recovered_s is None:
        parts.append(e.why)
    elif e.recovered_s == 0:
        parts.append("nothing was worse than before")
    else:
        parts.append(f"served as before after {words.significant(e.recovered_s)} s")
    if e.replicas_gone or e.replicas_new:
        gone, new = len(e.replicas_gone), len(e.replicas_new)
        parts.append(f"{gone} {'replica' if gone == 1 else 'replicas'} gone, {new} new")
    if e.lost:
        parts.append(f"{words.count(e.lost)} arrivals were lost")
    parts.append("every arrival is accounted for" if e.closes else "arrivals are missing without a reason")
    return f"{e.fault}, {e.endpoint}: {'; '.join(parts)}"
