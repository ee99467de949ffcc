"""The rules: can these numbers be trusted, and do they meet the objective? Pass, fail, or cannot say.

Trust comes first. A step is not trusted where the load generator stood in the way: sent late, dropped
arrivals although the endpoint kept up, had no CPU left, or recorded nothing. An overloaded endpoint is no
reason for distrust: the step tells the truth, which is that it misses every objective. An unsteady step has no answer
where unsteadiness alone may have brought it about: it met the objective while latency rose, or missed it while it fell.

The run cannot say (`inconclusive`) when it did not end by itself, its ledger is broken, or what was served
is not what it claims to be (`testimony`). Otherwise:
- rising rates (`ramp`, `knee`; `mixed` and `ab` with several rates) go past the knee on purpose. Pass: every
  endpoint has a trusted step that meets the objectives (and the rate they ask for). Fail: an endpoint
  already misses them at its lowest rate, or before the rate that they ask for. Else: cannot say.
- all other modes: every step must be trusted and meet them; one trusted miss is a fail.
- what was due in the time of a fault that was injected on purpose is left out of all that (`calm`), and told.
- without an objective: pass when the figures can be trusted, saying that none was set; with rising rates
  that takes one trusted step of each endpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis import struck, testimony
from analysis.devices import idle_moved
from analysis.records import LOST, MOST_CPU_PCT, MOST_UNSENT, Slo
from analysis.stats import Growth, early_stop_n, surely_over
from analysis.words import significant

if TYPE_CHECKING:
    from analysis.steps import MeasuredStep
    from analysis.store import Run

PASS, FAIL, INCONCLUSIVE = "pass", "fail", "inconclusive"
EXIT_CODES = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3}

NONE_SET = "no objective was set, so none could be missed"

MOST_GIVEN_UP = 0.05
NEAR_ITS_MOST = 0.7
"""Of what a closed loop reaches at a null server: from here on the generator's own time shows in the figures."""
CHANCE = 1.1
"""By which random arrivals may exceed the rate that a check was made for."""


@dataclass(frozen=True, slots=True)
class Verdict:
    verdict: str
    """pass, fail or inconclusive"""
    reasons: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


# ---- one step


@dataclass(frozen=True, slots=True)
class Sample:
    """What the arrivals of a window say to an objective; a failure's latency is infinite."""

    n: int
    failed: int
    percentiles: Mapping[float, float]
    over: Mapping[tuple[float, float], int]
    """Arrivals beyond the latency of each objective, by its percentile and latency."""
    overloaded: bool

    def needed(self, percent: float, limit_ms: float) -> int:
        """MLPerf's rule for this objective: given those over the limit where the sample meets it, else none."""
        met = self.percentiles[percent] <= limit_ms
        return early_stop_n(percent, self.over[percent, limit_ms] if met else 0)


def doubts(late_p99_ms: float, late: int, limit_ms: float, unsent: float, cpu_pct: float | None) -> list[str]:
    """Why a step's figures say more about the load generator than about the endpoint; empty: they can be trusted."""
    found = []
    # under a hundred arrivals the P99 is the latest of all: one hiccup is not a late generator
    if late_p99_ms > limit_ms and late > 1:
        p99, limit = significant(late_p99_ms), significant(limit_ms)
        found.append(f"the load generator was late: P99 {p99} ms, where {limit} ms would do no harm")
    if unsent > MOST_UNSENT:
        found.append(f"{unsent:.2%} of the arrivals were dropped although the queue did not grow: raise max_in_flight")
    if cpu_pct is not None and cpu_pct > MOST_CPU_PCT:
        found.append(f"a load process was busy for {cpu_pct:.0f} % of the time")
    return found


def beyond(check: Any, offered_rps: float, closed: bool) -> list[str]:
    """Whether a step asked for more than the load generator could do at a null server, by the run's `self_check`."""
    safe = check.get("safe_rps") if isinstance(check, Mapping) else None
    if safe is None or bool(check.get("closed")) != closed:
        return []
    if closed and offered_rps > NEAR_ITS_MOST * safe:
        return [f"the load generator reaches no more than {safe:.4g}/s by itself, as its self-check showed"]
    if not closed and offered_rps > CHANCE * safe:
        return [f"the self-check kept its schedule to {safe:.4g}/s only, and this step asked for {offered_rps:.4g}/s"]
    return []


def is_overloaded(growth: Growth, given_up: float) -> bool:
    """Whether the queue grew, or would have: dropped and timed-out arrivals cap it, so many of them say the same."""
    return growth.rising or given_up >= MOST_GIVEN_UP


def meets(
    slo: Slo, sample: Sample, achieved_rps: float, rate: float, *, at_rate: bool
) -> tuple[bool | None, list[str]]:
    """Whether the arrivals of a window meet the objective, None for cannot say, and what speaks against it.

    `at_rate`: the objective's rate counts for this step; in a ramp it counts for the endpoint.
    """
    n, failed = sample.n, sample.failed
    answers: list[bool | None] = [False] if sample.overloaded else []
    said: list[str] = []
    if slo.percentile is not None and slo.latency_ms is not None:
        over = sample.over[slo.percentile, slo.latency_ms]
        value = sample.percentiles[slo.percentile]
        name = f"P{slo.percentile:g}"
        shown = f"{significant(value)} ms" if math.isfinite(value) else f"infinite ({failed} of {n} arrivals failed)"
        if value > slo.latency_ms and (n >= early_stop_n(slo.percentile) or surely_over(n, over, slo.percentile)):
            answers.append(False)
            said.append(f"{name} is {shown}, the objective {slo.latency_ms:g} ms")
        elif n < (needed := early_stop_n(slo.percentile)):
            answers.append(None)
            said.append(f"{n} arrivals are too few to say whether {name} meets the objective, {needed} are needed")
        else:
            answers.append(True)
            if n < (needed := early_stop_n(slo.percentile, over)):
                said.append(f"{name} is so near to the objective that {needed} arrivals would be needed to be sure")
        if slo.min_goodput is not None:
            share = 1 - over / n
            answers.append(share >= slo.min_goodput)
            if not answers[-1]:
                said.append(f"{share:.2%} of the arrivals succeeded in time, the objective {slo.min_goodput:.2%}")
    if slo.max_error_rate is not None:
        answers.append(failed / n <= slo.max_error_rate)
        if not answers[-1]:
            said.append(f"{failed / n:.2%} of the arrivals failed, the objective {slo.max_error_rate:.2%}")
    if at_rate and slo.min_rate_rps is not None:
        # by chance Poisson arrivals come to less than their rate: then all of them must have succeeded
        answers.append(achieved_rps >= slo.min_rate_rps or (failed == 0 and rate >= slo.min_rate_rps))
        if not answers[-1]:
            said.append(f"{significant(achieved_rps)} requests/s were achieved, the objective {slo.min_rate_rps:g}")
    return all_of(answers), said


def all_of(answers: Iterable[bool | None]) -> bool | None:
    """False if any is, else unknown if any is, else True."""
    found = list(answers)
    return False if False in found else None if None in found else True


# ---- the whole run


def is_rising(run: Run) -> bool:
    """Whether rates rise to find out what the endpoint can take, so that high ones may miss the objective."""
    mode = run.manifest.scenario.get("mode", "ramp")
    rates = {(step["endpoint"], step["rate"]) for step in run.manifest.scenario["steps"]}
    several = len(rates) > len({endpoint for endpoint, _ in rates})
    return mode in ("ramp", "knee") or (mode in ("mixed", "ab") and several)


def judge(run: Run) -> Verdict:
    steps = run.calm
    notes = [*struck.sentences(run), *warnings(run)]
    if broken := flaws(run):
        return Verdict(INCONCLUSIVE, (*broken, *notes))
    if not steps and run.measured:
        return Verdict(INCONCLUSIVE, ("planned faults left no time in which the objective could be judged", *notes))
    objectives = run.manifest.slos
    if knees := [event for event in run.events if event["event"] == "knee"]:
        found = [_searched(knee, objectives) for knee in knees]
    elif is_rising(run):
        by_endpoint: dict[str, list[MeasuredStep]] = {}
        for step in steps:
            by_endpoint.setdefault(step.summary.endpoint, []).append(step)
        found = [_rising(endpoint, mine, objectives) for endpoint, mine in by_endpoint.items()]
    else:
        found = [_held(step, objectives) for step in steps]
    answers = {answer for answer, _ in found}
    verdict = FAIL if FAIL in answers else INCONCLUSIVE if INCONCLUSIVE in answers else PASS
    reasons = [sentence for answer, sentence in found if sentence and (answer == verdict or verdict == PASS)]
    if not objectives:
        reasons.insert(0, NONE_SET)
    return Verdict(verdict, (*reasons, *notes))


def _searched(knee: Mapping[str, Any], objectives: Sequence[Slo]) -> tuple[str, str]:
    endpoint, low, high, reason = (knee.get(key) for key in ("endpoint", "low_rps", "high_rps", "reason"))
    wanted = max((slo.min_rate_rps or 0.0 for slo in objectives), default=0.0)
    if low and low >= wanted and (wanted or not reason):
        return PASS, f"{endpoint} meets the objective at up to {low:.4g}/s" + (f" ({reason})" if reason else "")
    if high and high < wanted:
        return FAIL, f"{endpoint} misses the objective at {high:.4g}/s, where {wanted:g}/s were asked for"
    if reason:
        return INCONCLUSIVE, f"the knee of {endpoint} was not found: {reason}"
    return (
        INCONCLUSIVE,
        f"the knee of {endpoint} lies between {low:.4g} and {high:.4g}/s, on both sides of {wanted:g}/s",
    )


def _rising(endpoint: str, steps: list[MeasuredStep], objectives: Sequence[Slo]) -> tuple[str, str]:
    trusted = [step for step in steps if step.summary.trusted]
    if not trusted:
        return INCONCLUSIVE, f"no step of {endpoint} can be trusted ({_first_reason(steps[0])})"
    if not objectives:
        return PASS, ""
    passing = [step for step in trusted if step.summary.slo]
    failing = [step for step in trusted if step.summary.slo is False]
    wanted = max((slo.min_rate_rps or 0.0 for slo in objectives), default=0.0)
    if not passing:
        lowest = min(steps, key=lambda step: step.rate)
        if lowest in failing:
            where = f"its lowest rate, {lowest.rate:g}/s"
            return FAIL, f"{endpoint} misses the objective at {where}: {_first_reason(lowest)}"
        return INCONCLUSIVE, f"{endpoint} cannot be judged ({_first_reason(lowest)})"
    best = max(step.rate for step in passing)
    if best >= wanted:
        return PASS, f"{endpoint} meets the objective at up to {best:g}/s"
    if failing:
        return FAIL, f"{endpoint} meets the objective at up to {best:g}/s only, where {wanted:g}/s were asked for"
    return INCONCLUSIVE, f"{endpoint} was not tried at the {wanted:g}/s that the objective asks for"


def _held(step: MeasuredStep, objectives: Sequence[Slo]) -> tuple[str, str]:
    row = step.summary
    where = f"step {row.index}, {row.endpoint} at {step.asked}"
    if not row.trusted:
        return INCONCLUSIVE, f"{where}, cannot be trusted: {_first_reason(step)}"
    if not objectives or row.slo:
        return PASS, ""
    if row.slo is None:
        return INCONCLUSIVE, f"{where}: {_first_reason(step)}"
    return FAIL, f"{where}, misses the objective: {_first_reason(step)}"


def _first_reason(step: MeasuredStep) -> str:
    return step.summary.reasons[0] if step.summary.reasons else "it has no answer"


def flaws(run: Run) -> list[str]:
    """What keeps the run as a whole from saying anything for certain."""
    manifest, rows = run.manifest, run.tallies
    known = [step["index"] for step in manifest.scenario["steps"]]
    found = []
    if manifest.status == "running":
        found.append("the run is still going on")
    elif manifest.status != "complete":
        planned = manifest.scenario.get("planned_steps", len(known))
        ended = run.ended_ns or 0
        whole = sum(1 for step in manifest.scenario["steps"] if step["end_ns"] <= ended)
        found.append(f"the run was aborted after {whole} of {planned} steps")
    if not rows.rows:
        found.append("the run holds no arrivals")
    if lost := run.missing["requests"]:
        found.append(f"{lost} recorded rows of requests are missing from the folder")
    scheduled = manifest.totals.get("scheduled")
    # arrivals that went down with a load process have no row, but an event that says so
    went_down = any(event["event"] == "worker_lost" for event in run.events)
    gone = manifest.totals.get("lost", 0) - rows.statuses[LOST] if went_down else 0
    gone += run.retired  # deleted on purpose, and counted in the totals
    if manifest.status == "complete" and scheduled is not None and scheduled != rows.rows + gone:
        found.append(f"the ledger is broken: {scheduled} arrivals were scheduled, but {rows.rows} are recorded")
    if rows.doubled:
        found.append(f"the ledger is broken: {rows.doubled} arrivals are recorded twice")
    if rows.strangers:
        found.append(f"the ledger is broken: {rows.strangers} arrivals belong to no step of the manifest")
    return found + testimony.flaws(manifest, broken=bool(struck.injected(run)))


def warnings(run: Run) -> list[str]:
    """What leaves latencies as they are, but not every figure beside them."""
    found = [str(event.get("sentence")) for event in run.events if event["event"] == "workers_missing"]
    if lost := run.missing["devices"]:
        found.append(f"{lost} recorded device samples are missing from the folder")
    found += [
        f"the clock of {track.host or name} is known to ±{significant(track.error_ns / 1e6)} ms only, too little "
        f"for samples every {significant(track.period_ns / 1e6)} ms: device figures beside a request may be another's"
        for name, track in run.tracks.items()
        if track.error_ns is not None and track.period_ns is not None and track.error_ns > track.period_ns / 2
    ]
    idle = [(e["start_ns"], e["end_ns"]) for e in run.events if e["event"] == "idle" and "end_ns" in e]
    for name, track in run.tracks.items():
        if moved := idle_moved(track, idle):
            before, after = (significant(watts) for watts in moved)
            found.append(f"{name} drew {before} W idle before the load and {after} W after it: net energy is in doubt")
    return found + testimony.warnings(run.manifest, broken=bool(struck.injected(run)))
