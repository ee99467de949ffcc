"""One run in short, as the gallery lists it and the history keeps it: from `run.json` and `report.json` alone.

Nothing in a folder can stop what is made of entries: what cannot be read is an entry whose `said` tells why. All text
and figures are taken out and checked here, so what is made from entries cannot fail on them.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tailrate.analysis.records.folder import MANIFEST, RunError
from tailrate.analysis.records.infinities import restored
from tailrate.analysis.records.manifest import DERIVED_SCHEMA, Manifest, endpoint_name
from tailrate.analysis.records.objective import overall
from tailrate.analysis.run.environment import Origin, origin
from tailrate.analysis.text import words

REPORT = "report.json"

STATES = words.VERDICTS | {
    "running": "running", "aborted": "aborted", "unreported": "no report yet", "broken": "unreadable",
}  # fmt: skip
"""Verdict, or why there is none → how it is said. What was aborted is that first, whatever its verdict."""

FIGURES = (
    "offered_rps", "achieved_rps", "p50_ms", "p99_ms", "p99_low_ms", "p99_high_ms", "joules_per_request",
)  # fmt: skip
OF_STREAMS = (
    "ttft_p99_ms", "ttft_p99_low_ms", "ttft_p99_high_ms", "tpot_p99_ms", "tpot_p99_low_ms", "tpot_p99_high_ms",
    "joules_per_token",
)  # fmt: skip
"""Only where an endpoint has them, and known to newer reports alone."""


@dataclass(frozen=True, slots=True)
class Level:
    """One endpoint at one load; of several rounds the one with the median P99."""

    endpoint: str
    rate: float
    """As planned; 0 in a closed loop."""
    concurrency: int
    figures: dict[str, float | None]
    """Infinity where failures made it so, None where unknown."""
    errors: int
    met: bool
    """Whether all its rounds together kept the objective, and no lower load speaks against that."""
    doubtful: bool
    """Overloaded or not trusted."""
    rounds: int
    arrivals: int = 0
    """That the errors are of."""
    overloaded: bool = False

    @property
    def load(self) -> tuple[float, int]:
        """What levels of several runs must have in common to be compared."""
        return float(f"{self.rate:.6g}"), self.concurrency

    @property
    def asked(self) -> str:
        return words.load(self.rate, self.concurrency)


@dataclass(frozen=True, slots=True)
class SustainedRate:
    """The highest load that kept the objective, and the lowest above it that missed it."""

    low_rps: float | None
    high_rps: float | None
    level: Level | None
    """The measurement at `low_rps`."""
    rising: bool = False
    """Whether rates rose towards it, so that it is a capacity."""

    @property
    def said(self) -> str:
        kept = "kept at none that was tried" if self.low_rps is None else f"kept at {self.asked}"
        return kept if self.high_rps is None else f"{kept}, missed at {words.rate(self.high_rps)}"

    @property
    def asked(self) -> str:
        return self.level.asked if self.level and self.level.concurrency else words.rate(self.low_rps)


@dataclass(frozen=True, slots=True)
class StartFacts:
    """What an endpoint said of its start."""

    start: str = ""
    """cold or warm"""
    seconds: float | None = None
    """Of loading and warming up."""
    parity_error: float | None = None
    """How far its outputs are from those of eager fp32."""


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    """Of the folder."""
    time_ns: int
    """When the run began, else when its folder last changed."""
    when: str
    state: str
    """A key of `STATES`."""
    said: str
    """The report's conclusion, or why there is none."""
    reasons: list[str] = field(default_factory=list)
    scenario: str = ""
    mode: str = ""
    objective: str = ""
    limits_ms: list[float] = field(default_factory=list)
    """The latencies of the objective."""
    endpoints: list[str] = field(default_factory=list)
    origin: Origin = field(default_factory=dict)
    levels: list[Level] = field(default_factory=list)
    kept: dict[str, SustainedRate] = field(default_factory=dict)
    opened: dict[str, StartFacts] = field(default_factory=dict)
    reported: bool = False
    page: bool = False
    """Whether there is a `report.html`."""

    @classmethod
    def of(cls, folder: Path) -> Entry:
        """The entry of a folder, whatever is in it."""
        try:
            return _read(folder)
        except RunError as problem:
            why = str(problem)
        except (OSError, ValueError, RecursionError) as problem:  # a ValueError: not even Unicode, or numbers too long
            why = f"{MANIFEST} or {REPORT} cannot be read: {problem}"
        except (ArithmeticError, AttributeError, LookupError, TypeError) as problem:
            why = f"{MANIFEST} or {REPORT} is not as tailrate writes it ({type(problem).__name__}: {problem})"
        why = why.replace(f"{folder}/", "").replace(str(folder), "This folder")
        try:
            changed_ns = folder.stat().st_mtime_ns
        except OSError:
            changed_ns = 0
        return cls(folder.name, changed_ns, f"changed {words.clock_time(changed_ns)}", "broken", f"{why[:300]}.")

    @property
    def url(self) -> str:
        """Of its folder, from the index."""
        return quote(os.fsencode(self.name))

    def of_endpoint(self, endpoint: str) -> list[Level]:
        return [level for level in self.levels if level.endpoint == endpoint]


def thinned(levels: Sequence[Level], most: int) -> Sequence[Level]:
    """Evenly spaced ones where there are more than `most`, first and last among them."""
    if len(levels) <= most:
        return levels
    return [levels[round(k * (len(levels) - 1) / (most - 1))] for k in range(most)]


def _read(folder: Path) -> Entry:
    manifest = Manifest.read(folder)
    report = _report(folder / REPORT)
    scenario, state = manifest.scenario, manifest.status
    said = {
        "running": "This run has not ended, or its load process was killed",
        "aborted": "This run was aborted and has no report",
    }.get(state, "This run has no report")
    said += f"; tailrate report {shlex.quote(str(folder))} writes one."
    if report is not None:
        said = str(report["conclusion"])
    if state == "complete":
        state = "unreported" if report is None else report["verdict"]
        STATES[state]  # another word is not tailrate's
    named = [endpoint_name(entry) for entry in manifest.endpoints]
    levels = [] if report is None else list(_levels(report, scenario["steps"]))
    return Entry(
        name=folder.name,
        time_ns=manifest.started_ns,
        when=words.clock_time(manifest.started_ns) if manifest.started_ns else words.ABSENT,
        state=state,
        said=said,
        reasons=[] if report is None else [str(reason) for reason in report["reasons"]],
        scenario=str(scenario.get("name") or manifest.id),
        mode=str(scenario.get("mode") or ""),
        objective=words.sentence_list(manifest.slos),
        limits_ms=[limit for slo in overall(manifest.slos) if (limit := words.finite(slo.latency_ms))],
        endpoints=list(dict.fromkeys([*named, *(level.endpoint for level in levels)])),
        origin=origin(manifest),
        levels=levels,
        kept=_kept(levels, [] if report is None else report["capacity"]),
        opened={name: _opened(one) for name, one in zip(named, manifest.endpoints, strict=True)},
        reported=report is not None,
        page=(folder / "report.html").is_file(),
    )


def _report(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as problem:
        raise RunError(f"{path}, line {problem.lineno}: not valid JSON ({problem.msg})") from None
    if not isinstance(found, dict):
        raise RunError(f"{path} holds no JSON object")
    if found.get("schema") != DERIVED_SCHEMA:
        raise RunError(f"{path} has schema {found.get('schema')!r}, but this version reads schema {DERIVED_SCHEMA}")
    return found


def _levels(report: Mapping[str, Any], plans: Iterable[Mapping[str, Any]]) -> Iterable[Level]:
    planned = {plan["index"]: plan for plan in plans}
    overloaded = set(report["trust"]["overloaded_steps"])
    kept = _kept_steps(report)
    found: dict[tuple[str, float, int], list[dict[str, Any]]] = {}
    for row in map(restored, report["steps"]):
        if row["offered_rps"] is not None:  # else nothing arrived
            plan = planned.get(row["index"], {})
            concurrency = int(plan.get("concurrency") or 0)
            rate = 0.0 if concurrency else words.finite(plan.get("rate")) or float(row["offered_rps"])
            found.setdefault((str(row["endpoint"]), rate, concurrency), []).append(row)
    for (endpoint, rate, concurrency), rows in sorted(found.items(), key=lambda item: item[0]):
        known = sorted((row for row in rows if row["p99_ms"] is not None), key=lambda row: float(row["p99_ms"])) or rows
        row = known[len(known) // 2]
        yield Level(
            endpoint,
            rate,
            concurrency,
            figures_of(row),
            count(row["errors"]),
            all((endpoint, row["index"]) in kept for row in rows),
            not row["trusted"] or row["index"] in overloaded,
            len(rows),
            count(row["n"]),
            row["index"] in overloaded,
        )


def _kept_steps(report: Mapping[str, Any]) -> set[tuple[str, int]]:
    """By endpoint, the steps at rates that are sustained; an older report judged each step by itself."""
    if "rates" not in report:
        return {(row["endpoint"], row["index"]) for row in report["steps"] if row["slo"] is row["trusted"] is True}
    return {(at["endpoint"], index) for at in report["rates"] if at["sustained"] is True for index in at["steps"]}


def _opened(entry: Mapping[str, Any]) -> StartFacts:
    said = entry.get("parameters") or {}
    seconds = [number for key in ("load_s", "warmup_s") if (number := words.finite(said.get(key))) is not None]
    total = sum(seconds) if seconds else None
    return StartFacts(str(said.get("start") or ""), total, words.finite(said.get("parity_relative_error")))


def count(value: Any) -> int:
    """One that can be computed with."""
    return int(float(value))


def figures_of(row: Mapping[str, Any]) -> dict[str, float | None]:
    more = {key: value for key in OF_STREAMS if (value := figure(row.get(key))) is not None}
    return {key: figure(row[key]) for key in FIGURES} | more


def figure(value: Any) -> float | None:
    """Infinity stays."""
    return None if value is None or math.isnan(number := float(value)) else number


def _kept(levels: list[Level], capacity: Iterable[Mapping[str, Any]]) -> dict[str, SustainedRate]:
    """By endpoint: the objective that gives way first where rates rose, else the highest load that kept all."""
    found: dict[str, SustainedRate] = {}
    for row in capacity:
        low, high = (figure(row[key]) for key in ("low_rps", "high_rps"))
        endpoint = str(row["endpoint"])
        if endpoint not in found or (low or 0.0) < (found[endpoint].low_rps or 0.0):
            near = [
                level for level in levels
                if low is not None and level.endpoint == endpoint and abs(level.rate - low) <= 0.01 * low
            ]  # fmt: skip
            at = min(near, key=lambda level: abs(level.rate - (low or 0.0)), default=None)
            found[endpoint] = SustainedRate(low, high, at, rising=True)
    # sorted by load, so the highest stays
    met = {level.endpoint: level for level in levels if level.met}
    return {
        name: SustainedRate(level.rate or level.figures["offered_rps"], None, level) for name, level in met.items()
    } | found
