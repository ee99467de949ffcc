"""What a run will do, resolved before it starts: endpoints, rates, mode, objectives."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrate.analysis.judging.share import Term, terms
from tailrate.analysis.records.objective import MAX_RECOVERY_S, Bound, Slo, searched
from tailrate.loadtest.engine.scenario.arrivals import Pattern
from tailrate.loadtest.engine.scenario.knee_search import KneeObjective

if TYPE_CHECKING:
    from tailrate.loadtest.engine.scenario.fault_plan import Plan
    from tailrate.loadtest.engine.scenario.mode import Mode


class ScenarioError(Exception):
    """Options that make no run: one sentence that says what to write instead."""


@dataclass(frozen=True, slots=True)
class DataPlan:
    """That requests carry rows of a file, and how."""

    path: Path
    drawn: bool = False
    unique: bool = False
    columns: tuple[tuple[str, str], ...] = ()
    """Inputs with the columns that they are made of; none: as the file names them."""
    label: str = ""
    """The column that says which slice of the report a row belongs to."""

    def as_json(self) -> dict[str, Any]:
        order = "drawn" if self.drawn else "in-order"
        found: dict[str, Any] = {"path": str(self.path), "order": order, "reuse": "unique" if self.unique else "reused"}
        found |= {"columns": dict(self.columns)} if self.columns else {}
        return found | ({"label": self.label} if self.label else {})


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that decides the arrivals and the judgement of a run, the endpoints aside."""

    name: str
    model: str
    variants: tuple[str, ...]
    """Empty: every variant that the endpoint hosts."""
    mode: Mode
    rates: tuple[float, ...] = (10.0,)
    step_seconds: float = 30.0
    settle_seconds: float = 5.0
    idle_seconds: float = 2.0
    pattern: Pattern = field(default_factory=Pattern)
    seed: int = 1
    rows: tuple[int, ...] = (1,)
    timeout_s: float = 10.0
    max_in_flight: int = 1000
    in_flight_by: str = ""
    """What that follows from; nothing: it was given."""
    slos: tuple[Slo, ...] = ()
    self_check: bool = False
    faults: Plan = ()
    max_recovery_s: float = MAX_RECOVERY_S
    max_failed: float = 1.0
    metrics: str = ""
    """Where the servers' own metrics are read, as `--metrics` has it."""
    metrics_match: str = ""
    data: DataPlan | None = None

    @property
    def objective(self) -> KneeObjective | None:
        """What a search asks for: of the first objective with a latency its figures with the strictest share."""
        strictest: dict[str, Term] = {}
        for term in terms(self._searched) if self._searched else ():
            if math.isfinite(term.limit_ms):
                strictest[term.figure] = min(strictest.get(term.figure, term), term, key=lambda one: one.allowed)
        if not strictest:
            return None
        target = min(term.allowed for term in strictest.values())
        alike = (term for term in strictest.values() if term.allowed == target)
        return KneeObjective(tuple((term.figure, term.limit_ms) for term in alike), target)

    @property
    def searched_slo(self) -> str:
        """The same in words."""
        found = self.objective
        return ", ".join(Bound(100 * (1 - found.target), ms).text(name) for name, ms in found.limits) if found else ""

    @property
    def vetoes(self) -> tuple[Term, ...]:
        """What else a rate must not miss: errors, and the terms of other objectives, those of slices aside."""
        searched = dict(self.objective.limits) if self.objective else {}
        return tuple(
            term
            for slo in self.slos
            for term in terms(slo)
            if not slo.slice and (slo is not self._searched or math.isinf(term.limit_ms) or term.figure not in searched)
        )

    @property
    def _searched(self) -> Slo | None:
        return searched(self.slos)

    @property
    def peak_rps(self) -> float:
        """The highest rate that it will ask for, as far as that is known before."""
        return self.mode.peak_rps(self)

    def as_json(self) -> dict[str, Any]:
        """The manifest's `scenario`, its steps aside."""
        found = {
            "name": self.name,
            "model": self.model,
            "variants": list(self.variants),
            "mode": self.mode.name,
            "closed": self.mode.closed,
            "rates": list(self.rates),
            "seed": self.seed,
            "arrivals": self.pattern.spacing,
            "burstiness": self.pattern.burstiness,
            "shape": self.pattern.shape,
            "timeout_s": self.timeout_s,
            "max_in_flight": self.max_in_flight,
            "rows": self.rows[0] if len(self.rows) == 1 else list(self.rows),
            "slo": [slo.as_json() for slo in self.slos],
        }
        found |= {"in_flight_by": self.in_flight_by} if self.in_flight_by else {}
        found |= {"data": self.data.as_json()} if self.data else {}
        if self.faults:
            found |= {"faults": [fault.as_json() for fault in self.faults]}
            found |= {"max_recovery_s": self.max_recovery_s, "max_failed": self.max_failed}
        return found | self.mode.as_json()
