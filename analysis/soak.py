"""A soak: what hours of traffic brought to light, the verdict on it, and the sentence that is read out.

Puts together what `findings` say and what was noted beside the traffic; other modes have none of it, and pay nothing.
The limits are `scenario.soak`'s. A soak passes where nothing is over a limit and something over it would have shown;
where it would not have, as in one that was too short, it cannot say, and names the smallest that it could have shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import verdict, words
from analysis.findings import Finding, Looked, look, short
from analysis.series import MEMORY, Series
from analysis.verdict import FAIL, INCONCLUSIVE, PASS, Verdict

if TYPE_CHECKING:
    from analysis.store import Run

MODE = "soak"
MOST_SAID = 3
"""Findings in the sentence that is read out."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a soak may show at most, from `scenario.soak`; the objective's limit of errors stands beside these."""

    p99_trend_pct_h: float = 5.0
    """Rise of P99, in percent by hour."""
    p99_step_pct: float = 10.0
    """Jump of P99, in percent."""
    memory_pct_h: float = 1.0
    """Growth of the server's memory, in percent by hour."""

    @classmethod
    def of(cls, run: Run) -> Limits:
        found = run.manifest.scenario.get("soak")
        known = found if isinstance(found, Mapping) else {}
        return cls(**{one.name: float(known[one.name]) for one in fields(cls) if known.get(one.name) is not None})

    def of_trend(self, series: str) -> float | None:
        return self.p99_trend_pct_h if series == "p99_ms" else self.memory_pct_h if series in MEMORY else None

    def of_step(self, series: str) -> float | None:
        return self.p99_step_pct if series == "p99_ms" else None


@dataclass(frozen=True, slots=True)
class Visible:
    """The smallest changes of one judged series that would have shown in four of five such soaks."""

    series: str
    subject: str
    slope_pct_h: float | None
    step_pct: float | None


@dataclass(frozen=True, slots=True)
class Gap:
    """Time in which nothing was sent, between a crash and the resumption."""

    start_ns: int
    end_ns: int
    scheduled: int
    """Arrivals that the plan had in it."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the load generator over the soak."""

    role: str
    samples: int
    rss_first_bytes: int | None
    rss_last_bytes: int | None
    rss_most_bytes: int | None
    cpu_mean_pct: float | None
    cpu_most_pct: float | None
    open_files_most: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Soak:
    """What `report.json` says of a soak."""

    findings: tuple[Finding, ...]
    gaps: tuple[Gap, ...]
    processes: tuple[Process, ...]
    verdict: str
    reasons: tuple[str, ...]
    limits: Limits
    visible: tuple[Visible, ...]
    hours: float
    looked: Looked
    sentence: str

    def as_json(self) -> dict[str, Any]:
        judged = {name: getattr(self, name) for name in ("verdict", "reasons", "hours")}
        judged |= {"limits": asdict(self.limits), "visible": [asdict(row) for row in self.visible]}
        tables = {name: [asdict(row) for row in getattr(self, name)] for name in ("findings", "gaps", "processes")}
        return {**tables, "verdict": judged}


def soak(run: Run) -> Soak | None:
    """None where the run is no soak, or nothing was sent."""
    if run.manifest.scenario.get("mode") != MODE or not run.tallies.rows:
        return None
    looked, limits = look(run), Limits.of(run)
    found = tuple(replace(row, fails=_over(row, limits)) for row in looked.findings)
    judged = [one for one in looked.series if limits.of_trend(one.name) is not None]
    visible = tuple(
        Visible(one.name, one.subject, _pct(looked.slope_visible(one)), _pct(looked.step_visible(one)))
        for one in judged
    )
    answer, reasons = _judged(run, found, list(zip(judged, visible, strict=True)), limits)
    hours = looked.line.seconds / 3600
    said = f"Over {_hours(hours)} {_loads(run, looked)}: {_said(found, visible)}"
    return Soak(found, _gaps(run), tuple(_processes(run)), answer, reasons, limits, visible, hours, looked, said)


def together(run: Run, judged: Verdict, found: Soak | None) -> Verdict:
    """The verdict on the objective and that on the soak as one; a run that proves nothing proves nothing here."""
    if found is None:
        return judged
    answers = {judged.verdict, found.verdict}
    if verdict.flaws(run):
        answers = {INCONCLUSIVE}
    answer = next(one for one in (FAIL, INCONCLUSIVE, PASS) if one in answers)
    return Verdict(answer, tuple(dict.fromkeys((*found.reasons, *judged.reasons))))


def _over(row: Finding, limits: Limits) -> bool:
    limit = limits.of_trend(row.series) if row.kind == "trend" else limits.of_step(row.series)
    return limit is not None and row.kind in ("trend", "step", "spell") and row.size > limit


def _judged(
    run: Run, found: tuple[Finding, ...], visible: list[tuple[Series, Visible]], limits: Limits
) -> tuple[str, tuple[str, ...]]:
    broken = [row.sentence for row in found if row.fails] + list(_errors(run))
    if broken:
        return FAIL, tuple(broken)
    open_ = []
    for one, row in visible:
        told = {(f.kind, f.series, f.subject): f for f in found}
        for kind, limit, seen in (
            ("trend", limits.of_trend(one.name), row.slope_pct_h),
            ("step", limits.of_step(one.name), row.step_pct),
        ):
            finding = told.get((kind, one.name, one.subject))
            if limit is None or (finding is not None and (finding.high or 0.0) <= limit):
                continue
            if seen is None or seen > limit:
                unit = "%/h" if kind == "trend" else "%"
                least = "none that it had" if seen is None else f"one of {words.significant(seen, 2)} {unit}"
                what = "rise" if kind == "trend" else "jump"
                open_.append(
                    f"this soak cannot say whether {one.quantity.said} of {short(one.subject)} has a {what} of more "
                    f"than {limit:g} {unit}: the smallest that it could have shown is {least}"
                )
    return (INCONCLUSIVE, tuple(open_)) if open_ else (PASS, ())


def _errors(run: Run) -> Iterator[str]:
    allowed = min((slo.max_error_rate for slo in run.manifest.slos if slo.max_error_rate is not None), default=None)
    counts: dict[str, list[int]] = {}
    for (_, endpoint), tally in run.tallies.groups.items():
        sums = counts.setdefault(endpoint, [0, 0])
        sums[0] += tally.n
        sums[1] += tally.n - tally.ok
    for endpoint, (n, failed) in counts.items():
        if allowed is not None and n and failed / n > allowed:
            share = words.significant(100 * failed / n, 2)
            yield f"{share} % of all arrivals of {endpoint} failed, the objective is {100 * allowed:g} %"


def _gaps(run: Run) -> tuple[Gap, ...]:
    found = [event for event in run.events if event["event"] == "gap" and event.get("end_ns")]
    return tuple(
        Gap(int(event["start_ns"]), int(event["end_ns"]), sum(dict(event.get("scheduled") or {}).values()))
        for event in found
    )


def _processes(run: Run) -> Iterator[Process]:
    told: dict[str, list[Mapping[str, Any]]] = {}
    for event in run.events:
        if event["event"] == "process":
            told.setdefault(str(event.get("role")), []).append(event)
    for role, mine in told.items():
        rss, cpu, files = ([e[k] for e in mine if e.get(k) is not None] for k in ("rss_bytes", "cpu_pct", "open_files"))
        yield Process(
            role,
            len(mine),
            int(rss[0]) if rss else None,
            int(rss[-1]) if rss else None,
            int(max(rss)) if rss else None,
            float(np.mean(cpu)) if cpu else None,
            float(max(cpu)) if cpu else None,
            int(max(files)) if files else None,
        )


# ---- in words


def _hours(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"


def _loads(run: Run, looked: Looked) -> str:
    said = []
    by_name = {(one.name, one.subject): one.values for one in looked.series}
    for endpoint in dict.fromkeys(str(step["endpoint"]) for step in run.manifest.scenario["steps"]):
        rate, p99 = (_middle(by_name.get((name, endpoint))) for name in ("achieved_rps", "p99_ms"))
        if rate is not None:
            tail = "" if p99 is None else f" with a P99 of {words.ms(float(f'{p99:.3g}'))}"
            said.append(f"{endpoint} answered {words.significant(rate)} requests/s{tail}")
    return " and ".join(said) or "nothing was answered"


def _middle(values: Any) -> float | None:
    known = values[~np.isnan(values)] if values is not None else np.zeros(0)
    return float(np.median(known)) if len(known) else None


def _said(found: tuple[Finding, ...], visible: tuple[Visible, ...]) -> str:
    if not found:
        seen = [row.slope_pct_h for row in visible if row.series == "p99_ms"]
        if seen and None not in seen:
            most = max(one for one in seen if one is not None)
            return (
                f"nothing drifted, jumped or stalled (P99 rising by {words.significant(most, 2)} %/h would have shown)"
            )
        return "nothing was seen to drift, jump or stall, but it was too short to see much"
    # what is over a limit first; and what came along with something else is told with it
    said: list[str] = []
    told: set[str] = set()
    for row in sorted(found, key=lambda row: not row.fails):
        if row.sentence in told or len(said) == MOST_SAID:
            continue
        why = row.beside[0] if row.beside and row.kind in ("step", "spell") else ""
        told |= {row.sentence, *row.beside}
        said.append(f"{row.sentence}{why and f', when {why}'}")
    more = sum(row.sentence not in told for row in found)
    return "; ".join(said) + (f"; and {more} more finding{'s' * (more > 1)}" if more else "")


def _pct(share: float | None) -> float | None:
    return None if share is None or not math.isfinite(share) else 100 * share
