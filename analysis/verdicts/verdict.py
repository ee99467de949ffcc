"""The verdict on a run: can its numbers be trusted, and do they keep the objectives? Pass, fail, or cannot say.

Whether a rate keeps an objective is said by the `judge`; here is what keeps a step's figures from being trusted, and
how the answers at all rates of all endpoints make one verdict:

- The run cannot say (`inconclusive`) when it did not end by itself, its ledger is broken, or what was served is not
  what it claims to be (`testimony`).
- Rates that rise (`ramp`, `knee`; `mixed` and `ab` with several rates) go past the knee on purpose: pass takes a rate
  that every endpoint sustains, fail one that misses at its lowest rate, or below the rate that was asked for.
- In all other modes each rate must keep the objective, and one that misses it is a fail.
- What was due in the time of a fault that was injected on purpose is left out of all that (`calm`), and told; that time
  is bounded, and a fault after which users are not served as before by then is a fail (`struck`).
- Without an objective nothing can be missed: `measured`, where the figures can be trusted and each endpoint succeeded.

A step is not trusted where the load generator stood in the way: sent late, dropped arrivals although the endpoint kept
up, had no CPU left, or recorded nothing. An overloaded endpoint is no reason for distrust: it misses every latency.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tailrate.analysis.judging import server_claims
from tailrate.analysis.judging.judge import Judgement
from tailrate.analysis.judging.rates import of_rates
from tailrate.analysis.judging.share import all_of
from tailrate.analysis.records.folder import REQUESTS
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.records.rows import LOST
from tailrate.analysis.run.bins import NEVER
from tailrate.analysis.run.device_tracks import idle_moved
from tailrate.analysis.run.window import joined, read
from tailrate.analysis.steps import fault_windows
from tailrate.analysis.steps.by_rate import at_rates, by_endpoint, is_rising
from tailrate.analysis.text.words import significant

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

PASS, FAIL, INCONCLUSIVE, MEASURED = "pass", "fail", "inconclusive", "measured"
EXIT_CODES = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3, MEASURED: 0}

SELDOM = 1.5
"""Scrapes of a page from one change of its figures to the next: above, they may be older than the scrape."""
NONE_SET = "no objective was set, so none could be missed"


@dataclass(frozen=True, slots=True)
class Verdict:
    verdict: str
    """pass, fail, inconclusive or measured"""
    reasons: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


def judge(run: Run) -> Verdict:
    notes = [*fault_windows.sentences(run), *warnings(run)]
    if broken := flaws(run):
        return Verdict(INCONCLUSIVE, (*broken, *notes))
    answers = [*(_objectives(run) if run.manifest.slos else _trust(run)), *fault_windows.answers(run)]
    kept = all_of(answer.kept for answer in answers)
    verdict = {True: PASS if run.manifest.slos else MEASURED, False: FAIL, None: INCONCLUSIVE}[kept]
    reasons = [answer.sentence for answer in answers if answer.kept is kept and answer.sentence]
    if not run.manifest.slos and kept is not False:
        reasons.insert(0, NONE_SET)
    return Verdict(verdict, (*reasons, *notes))


def _objectives(run: Run) -> Iterable[Judgement]:
    """What each endpoint's rates say to each objective."""
    rising, soaking = is_rising(run), run.manifest.scenario.get("mode") == "soak"
    knees = {str(event.get("endpoint")): event for event in run.events if event["event"] == "knee"}
    for endpoint, steps in by_endpoint(run.calm).items():
        if not any(step.summary.ok for step in steps) and any(step.summary.n > step.summary.dropped for step in steps):
            yield Judgement(False, f"not one request to {endpoint} succeeded")
            continue
        why = knees.get(endpoint, {}).get("reason")
        for number, slo in enumerate(run.manifest.slos):
            found = of_rates(slo, at_rates(steps, number, slo, rounds=not soaking), rising)
            searched = f"; the search for the knee did not come to its end: {why}" if why else ""
            yield Judgement(found.kept, f"{endpoint}: {found.sentence}{searched}", found.against)


def _trust(run: Run) -> Iterable[Judgement]:
    """Whether the figures of each endpoint can be trusted; where rates rise, those of one step."""
    for endpoint, steps in by_endpoint(run.calm).items():
        if not any(step.summary.ok for step in steps) and any(step.summary.n for step in steps):
            yield Judgement(None, f"not one request to {endpoint} succeeded")
            continue
        doubted = [step for step in steps if not step.summary.trusted]
        if doubted and (len(doubted) == len(steps) or not is_rising(run)):
            step = doubted[0]
            where = f"step {step.summary.index}, {endpoint} at {step.asked}"
            yield Judgement(None, f"{where}, cannot be trusted: {step.summary.reasons[0]}")
        else:
            yield Judgement(True, "")


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
        why = f": {stopped}" if (stopped := manifest.extra.get("stopped")) else ""
        found.append(f"the run was aborted after {whole} of {planned} steps{why}")
    if not rows.rows:
        found.append("the run holds no arrivals")
    if lost := run.missing["requests"]:
        found.append(f"{lost} recorded rows of requests are missing from the folder")
    scheduled = manifest.totals.get("scheduled")
    # arrivals that went down with a load process have no row, but an event that says so
    went_down = any(event["event"] == "worker_lost" for event in run.events)
    ledger = {
        "recorded": rows.rows,
        "said to have gone down with a load process": (
            manifest.totals.get("lost", 0) - rows.statuses[LOST] if went_down else 0
        ),
        "deleted on purpose": run.retired,
    }
    if manifest.status == "complete" and scheduled is not None and scheduled != sum(ledger.values()):
        parts = [f"{count} are {what}" for what, count in ledger.items() if count or what == "recorded"]
        found.append(f"the ledger is broken: {scheduled} arrivals were scheduled, but {' and '.join(parts)}")
    if scheduled is None and (skipped := sum(map(partial(_skipped, run), manifest.scenario["steps"]))):
        found.append(f"the ledger is broken: {skipped} arrivals are missing, as the numbers of the others show")
    found += [
        f"the ledger is broken: {count} {what}"
        for count, what in (
            (rows.doubled, "arrivals are recorded twice"),
            (rows.unnumbered, "arrivals have no number, so nobody knows whether any is recorded twice"),
            (rows.strangers, "arrivals belong to no step of the manifest"),
            (rows.impossible, "arrivals were answered before they were sent"),
            (run.counted_streams.impossible, "answers began before their request was sent, or after they had ended"),
        )
        if count
    ]
    return found + server_claims.flaws(manifest, broken=bool(fault_windows.injected(run)))


def _skipped(run: Run, plan: Mapping[str, Any]) -> int:
    """Arrivals without a row between others of their step; none where load processes number theirs by themselves."""
    lost = (step for event in run.events if event["event"] == "worker_lost" for step in event.get("steps") or ())
    endpoints = run.tallies.of(int(plan["index"]))
    if not endpoints or plan["index"] in lost or any(plan.get(key) for key in ("concurrency", "sessions", "cut")):
        return 0
    span = int(plan["start_ns"]), int(plan["end_ns"])
    rows = joined([run.reading(REQUESTS, partial(read, endpoint=name, steps=[plan], span=span)) for name in endpoints])
    return rows.where(rows.seq != NEVER).counted(set())[1]


def warnings(run: Run) -> list[str]:
    """What leaves latencies as they are, but not every figure beside them."""
    found = [str(event.get("sentence")) for event in run.events if event["event"] == "workers_missing"]
    if lost := run.missing["devices"]:
        found.append(f"{lost} recorded device samples are missing from the folder")
    for name, rows in run.unread.items():
        found.append(f"{name} cannot be read beyond {rows} rows, so it is kept as it is")
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
    found += _seldom(run.manifest)
    return found + server_claims.warnings(run.manifest, broken=bool(fault_windows.injected(run)))


def _seldom(manifest: Manifest) -> list[str]:
    """Of pages of exporters, whose figures may be older than the scrape that brought them."""
    found = []
    for source in manifest.extra.get("device_sources") or ():
        changes_s, period_s = source.get("changes_s"), source.get("period_s")
        if changes_s and period_s and changes_s > SELDOM * period_s and source.get("devices"):
            found.append(
                f"{', '.join(source['devices'])}: {source.get('url')} has new figures every {significant(changes_s)} s "
                "only; those beside a request may be as old, and a step that ends before the next has no energy"
            )
    return found
