"""A soak: what hours of traffic brought to light, the verdict on it, and the sentence that is read out.

Puts together what `findings` say and what was noted beside the traffic; other modes have none of it, and pay nothing.
Limits that were asked for are `scenario.soak`'s: nothing may be over one, and something over it would have to have
shown, else the soak cannot say. Those that nobody asked for hold as far as it could see, which is said, and down to
`LOOSEST`. So a short soak passes on what it can say; what it could have shown stands beside its verdict.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.soak.findings import Finding, SoakEvidence, look, short
from tailrate.analysis.soak.memory_growth import Process, processes
from tailrate.analysis.soak.series import MEMORY, QUANTITIES, Series
from tailrate.analysis.steps import fault_windows
from tailrate.analysis.text import words
from tailrate.analysis.verdicts import verdict
from tailrate.analysis.verdicts.verdict import FAIL, INCONCLUSIVE, MEASURED, PASS, Verdict

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

MODE = "soak"
OWN = "own_memory_bytes"
MOST_SAID = 3
"""Findings in the sentence that is read out."""
LONGEST_H, MOST_PCT = 1000.0, 1000.0
"""Longer soaks are advised to nobody; and where so much would not have shown, as half of it has no figures since all
failed, no length is at fault."""
SHORTEST_S = 300.0
"""24 cells of ten seconds, and some settle time: less is no series."""
P99_LIMITS = {
    "trend": "p99_trend_pct_h", "growth": "p99_trend_pct_h", "step": "p99_step_pct", "spell": "p99_step_pct",
}  # fmt: skip
MEMORY_LIMITS = {"trend": "memory_pct_h", "growth": "memory_pct_h"}
"""Of kinds of findings: the limit that holds for them."""
SLACK = 0.01
"""Less than this share of a soak, as the pauses between chapters are, is no gap to speak of."""
LOOSEST = {"p99_trend_pct_h": 100.0, "p99_step_pct": 50.0, "memory_pct_h": 10.0}
"""What must have shown for a limit that nobody asked for to count as kept; trends in percent over the whole soak."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a soak may show at most, from `scenario.soak`; the objective's limit of errors stands beside these."""

    p99_trend_pct_h: float = 5.0
    """Rise of P99, in percent by hour."""
    p99_step_pct: float = 10.0
    """Jump of P99, in percent."""
    memory_pct_h: float = 1.0
    """Growth of the server's memory in all, in percent by hour."""
    stall_ms: float | None = None
    """How long requests may be held up again and again; None: any time."""
    gap_pct: float = 10.0
    """Time in which nothing was measured, of all of it."""
    asked: tuple[str, ...] = ()
    """Those of them that somebody asked for."""

    @classmethod
    def of(cls, run: Run) -> Limits:
        found = run.manifest.scenario.get("soak")
        known = found if isinstance(found, Mapping) else {}
        asked = tuple(one.name for one in fields(cls) if isinstance(known.get(one.name), int | float))
        return cls(asked=asked, **{name: float(known[name]) for name in asked})

    def name(self, kind: str, series: str) -> str | None:
        """Of the limit that holds for a change of this kind."""
        if kind == "stall":
            return "stall_ms"
        return P99_LIMITS.get(kind) if series == "p99_ms" else MEMORY_LIMITS.get(kind) if series in MEMORY else None

    def most(self, kind: str, series: str) -> float | None:
        name = self.name(kind, series)
        found: float | None = getattr(self, name) if name else None
        return found


@dataclass(frozen=True, slots=True)
class Visible:
    """The smallest changes of one judged series that would have shown in four of five such soaks."""

    series: str
    subject: str
    slope_pct_h: float | None
    step_pct: float | None
    growth_pct_h: float | None = None
    """Of P99 and memory, from the beginning to the end."""
    stall_ms: float | None = None
    """Of P99: by how long the requests of a stall would have to be held up, at periods of up to `stall_s`."""
    stall_s: float | None = None

    def of(self, kind: str) -> float | None:
        if kind == "trend":  # what one test would not have shown, the other would have
            return min((one for one in (self.slope_pct_h, self.growth_pct_h) if one is not None), default=None)
        return {"step": self.step_pct, "growth": self.growth_pct_h, "stall": self.stall_ms}[kind]


@dataclass(frozen=True, slots=True)
class Gap:
    """Time in which nothing was sent, between a crash and the resumption."""

    start_ns: int
    end_ns: int
    scheduled: int
    """Arrivals that the plan had in it."""


@dataclass(frozen=True, slots=True, eq=False)
class SoakResult:
    """What `report.json` says of a soak."""

    findings: tuple[Finding, ...]
    gaps: tuple[Gap, ...]
    processes: tuple[Process, ...]
    verdict: str
    reasons: tuple[str, ...]
    limits: Limits
    visible: tuple[Visible, ...]
    hours: float
    faults_s: float
    """Of planned faults, in which nothing was looked for."""
    looked: SoakEvidence
    sentence: str

    def as_json(self) -> dict[str, Any]:
        judged = {name: getattr(self, name) for name in ("verdict", "reasons", "hours", "faults_s")}
        judged |= {"limits": asdict(self.limits), "visible": [asdict(row) for row in self.visible]}
        tables = {name: [asdict(row) for row in getattr(self, name)] for name in ("findings", "gaps", "processes")}
        return {**tables, "verdict": judged}


def soak(run: Run) -> SoakResult | None:
    """None where the run is no soak, or nothing was sent."""
    if run.manifest.scenario.get("mode") != MODE or not run.tallies.rows:
        return None
    looked, limits = look(run), Limits.of(run)
    owned = {one.subject for one in looked.series if one.name == OWN}
    found = tuple(
        replace(row, fails=_over(row, limits) and not _others(row.series, row.subject, owned))
        for row in looked.findings
    )
    # what grew in all is told where no change of it says so
    said_of = {(row.series, row.subject) for row in found if row.fails and row.kind != "growth"}
    found = tuple(
        row for row in found if row.kind != "growth" or (row.fails and (row.series, row.subject) not in said_of)
    )
    visible = tuple(
        _visible(looked, one) for one in looked.series if _kinds(one.name) and not _others(one.name, one.subject, owned)
    )
    line, measured_s = looked.line, _measured_s(run)
    doubtful = tuple(row for row in looked.doubtful if not _others(row.series, row.subject, owned))
    answer, reasons = _judged(found, doubtful, visible, limits, measured_s, line.seconds)
    faults_s = fault_windows.lost_s(looked.taken, line.zero_ns, line.zero_ns + round(line.seconds * 1e9))
    over = _hours(measured_s / 3600, line.seconds / 3600)
    said = f"Over {over} {_loads(run, looked)}: {_said(found, visible)}"
    said += f"; {words.significant(faults_s)} s of planned faults are left out" if faults_s else ""
    return SoakResult(
        found, _gaps(run), tuple(processes(run)), answer, reasons, limits, visible, measured_s / 3600, faults_s,
        looked, said,
    )  # fmt: skip


def combine_verdicts(run: Run, judged: Verdict, found: SoakResult | None) -> Verdict:
    """The verdict on the objective and that on the soak as one; a run that proves nothing proves nothing here."""
    if found is None:
        return judged
    answers = {judged.verdict, found.verdict}
    if verdict.flaws(run):
        answers = {INCONCLUSIVE}
    answer = next(one for one in (FAIL, INCONCLUSIVE, PASS, MEASURED) if one in answers)
    reasons = (*found.reasons, *judged.reasons) if found.verdict == answer else (*judged.reasons, *found.reasons)
    return Verdict(answer, tuple(dict.fromkeys(reasons)))


def _others(series: str, subject: str, owned: Collection[str]) -> bool:
    """Whether it is memory that others may take, too, of something where the server's own is known."""
    return series in MEMORY and series != OWN and subject in owned


def _over(row: Finding, limits: Limits) -> bool:
    limit = limits.most(row.kind, row.series)
    return limit is not None and _rise(row) > limit


def _rise(row: Finding) -> float:
    """Of a spell of lower values its end is the rise."""
    return row.size if row.kind != "spell" or row.size > 0 else 100 * (1 / (1 + row.size / 100) - 1)


def _kinds(series: str) -> tuple[str, ...]:
    """Of changes that a limit can hold for."""
    return ("trend", "step", "stall") if series == "p99_ms" else ("growth",) if series in MEMORY else ()


def _measured_s(run: Run) -> float:
    """How long something was driven: gaps are none of it."""
    ended = run.ended_ns or 1 << 62
    plans = ((int(step["start_ns"]), min(int(step["end_ns"]), ended)) for step in run.manifest.scenario["steps"])
    spans = fault_windows.joined((start, end) for start, end in plans if end > start)
    gaps = [(gap.start_ns, gap.end_ns) for gap in _gaps(run)]
    return sum((end - start) / 1e9 - fault_windows.lost_s(gaps, start, end) for start, end in spans)


def _visible(looked: SoakEvidence, one: Series) -> Visible:
    stall = looked.stalls_visible.get(one.subject, (None, None)) if one.name == "p99_ms" else (None, None)
    seen = (looked.slope_visible(one), looked.step_visible(one), looked.growth_visible(one))
    return Visible(one.name, one.subject, *map(_pct, seen), *stall)


def _judged(
    found: tuple[Finding, ...], doubtful: tuple[Finding, ...], visible: tuple[Visible, ...], limits: Limits,
    measured_s: float, seconds: float,
) -> tuple[str, tuple[str, ...]]:  # fmt: skip
    if broken := tuple(row.sentence for row in found if row.fails):
        return FAIL, broken
    hours, gone_pct = measured_s / 3600, 100 * (1 - measured_s / seconds)
    open_: list[str] = []
    unseen: list[str] = []
    if gone_pct > limits.gap_pct:
        open_.append(
            f"nothing was measured for {_hours((seconds - measured_s) / 3600)}, which is "
            f"{words.significant(gone_pct, 2)} % of the soak, where {limits.gap_pct:g} % may be"
        )
    open_ += [
        f"this soak cannot say whether {row.sentence}: that may be chance" for row in doubtful if _over(row, limits)
    ]
    for row in visible:
        for kind in _kinds(row.series):
            name, limit, seen = limits.name(kind, row.series), limits.most(kind, row.series), row.of(kind)
            if name is None or limit is None or (seen is not None and seen <= limit):
                continue
            loosest = LOOSEST.get(name, 0.0) / (1 if kind == "step" else hours)
            question = _question(row, kind, limit, hours)
            if name not in limits.asked and seen is not None and seen <= loosest:
                unseen.append(f"too short to say {question}")
            else:
                open_.append(f"this soak cannot say {question}")
    return (INCONCLUSIVE, tuple(open_)) if open_ else (PASS, tuple(unseen))


def _question(row: Visible, kind: str, limit: float, hours: float) -> str:
    """What it leaves open, and how long a soak takes to answer it: as errors fall with the length."""
    unit = {"trend": "%/h", "growth": "%/h", "step": "%", "stall": "ms"}[kind]
    what = {"trend": "a rise", "growth": "a growth in all", "step": "a jump", "stall": "a stall"}[kind]
    seen, of = row.of(kind), f"{QUANTITIES[row.series].said} of {short(row.subject)}"
    said = f"whether {of} has {what} of more than {limit:g} {unit}: "
    if seen is None and hours * 3600 < SHORTEST_S:
        return f"{said}it is too short for any answer; about {_hours(SHORTEST_S / 3600)} would do for a first one"
    if seen is None:
        return f"{said}too few of its cells have arrivals enough, so a higher rate is needed"
    if kind != "stall" and seen > MOST_PCT:
        return f"{said}too little was seen of it to say"
    said += f"the smallest that it could have shown is one of {words.significant(seen, 2)} {unit}"
    if kind == "stall":
        return said
    needed = hours * (seen / limit) ** {"trend": 2 / 3, "growth": 1, "step": 2}[kind]
    return f"{said}; about {_hours(needed)} would do" if needed <= LONGEST_H else said


def _gaps(run: Run) -> tuple[Gap, ...]:
    found = [event for event in run.events if event["event"] == "gap" and event.get("end_ns")]
    return tuple(
        Gap(int(event["start_ns"]), int(event["end_ns"]), sum(dict(event.get("scheduled") or {}).values()))
        for event in found
    )


# ---- in words


def _hours(hours: float, of: float = 0.0) -> str:
    """`8.0 hours`, or `2.5 of 8.0 hours` where a part is missing of so many."""
    if hours < (1 - SLACK) * of:
        part, whole = _hours(hours), _hours(of)
        return f"{part.partition(' ')[0] if part.split()[1] == whole.split()[1] else part} of {whole}"
    minutes = max(1, round(60 * hours))
    return f"{hours:.1f} hours" if hours >= 1 else f"{minutes} minute{'s' * (minutes > 1)}"


def _loads(run: Run, looked: SoakEvidence) -> str:
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
