"""A capacity plan: how many replicas of which variant hold an objective at a rate, what they cost, how sure that is.

Puts together what `answer` found for each variant and `circumstances` for the best of them, chooses that one, and
writes it; `plan_words` says it in tables, Markdown and sentences.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrate.analysis.planning.plan import manifests, plan_text
from tailrate.analysis.planning.plan.question import Question
from tailrate.analysis.planning.plan.sized_fleet import SizedFleet, answered, certain
from tailrate.analysis.planning.plan.what_if import Later, Sensitivity, WhatIf, later, sensitivity, what_if
from tailrate.analysis.records.folder import RunError, write_atomically
from tailrate.analysis.verdicts.verdict import EXIT_CODES, FAIL, INCONCLUSIVE, PASS

if TYPE_CHECKING:
    from tailrate.analysis.planning.plan.autoscaling import AutoscalingAdvice
    from tailrate.analysis.planning.plan.candidates import PlannedVariant

SCHEMA = 1
MARKS = {"plan.json": '"made": "', "plan.md": "# Capacity plan: ", "plan.html": "<title>Capacity of "}
"""What those that a plan has written begin with, among other things."""


def check_folder(folder: Path, autoscale: bool) -> None:
    """`RunError` where a plan would take the place of a file that no plan has written."""
    for name, mark in (MARKS | (dict.fromkeys(manifests.NAMES, manifests.MARK) if autoscale else {})).items():
        if (path := folder / name).exists() and mark not in path.read_text(encoding="utf-8", errors="replace")[:2000]:
            raise RunError(f"{path} was not written by tailrate plan; move it away, or choose another --out")


@dataclass(frozen=True, eq=False)
class Plan:
    made: datetime
    runs: Sequence[str]
    question: Question
    variants: Sequence[tuple[PlannedVariant, SizedFleet | str]]
    """With the sentence where no number of replicas does it."""
    what_if: Sequence[WhatIf]
    sensitivity: Sequence[Sensitivity]
    growth: Sequence[Later]
    left_out: Sequence[str] = ()
    """Endpoints of the runs that cannot be planned with, each with why."""

    @property
    def model(self) -> str:
        """As part of a file's name."""
        return re.sub(r"[^\w.-]", "-", self.variants[0][0].endpoint.rpartition("/")[0]) or "model"

    @property
    def answered(self) -> list[tuple[PlannedVariant, SizedFleet]]:
        return [(variant, answer) for variant, answer in self.variants if isinstance(answer, SizedFleet)]

    @property
    def best(self) -> tuple[PlannedVariant, SizedFleet] | None:
        return _cheapest(self.answered)

    @property
    def verdict(self) -> str:
        if self.best is None:
            return FAIL if all(certain(variant, self.question) for variant, _ in self.variants) else INCONCLUSIVE
        return PASS if self.best[1].trusted else INCONCLUSIVE

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def write(
        self,
        folder: Path,
        page: Callable[[Mapping[str, Any]], str],
        command: str = "",
        advice: AutoscalingAdvice | None = None,
    ) -> None:
        """plan.json, plan.md and plan.html, which `page` makes; beside them what an autoscaler is to be set to."""
        scaling = None if advice is None else _finite(advice.as_json())
        found = self.as_json() | {"command": command, "autoscaling": scaling}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / "plan.json", as_text(found))
            write_atomically(folder / "plan.md", plan_text.markdown(self, command, advice))
            write_atomically(folder / "plan.html", page(found))
            if advice and self.best:
                manifests.write(folder, self.best[0], advice)
        except OSError as problem:
            raise RunError(f"{folder} cannot be written: {problem.strerror}") from None

    def as_json(self) -> dict[str, Any]:
        found = {
            "schema": SCHEMA,
            "made": self.made.isoformat(timespec="seconds"),
            "verdict": self.verdict,
            "conclusion": plan_text.conclusion(self),
            "warnings": plan_text.warnings(self),
            "runs": list(self.runs),
            "demand": self.question.as_json(),
            "prices": self.question.prices.as_json(),
            "variants": [
                {
                    "endpoint": variant.endpoint,
                    "per_gpu": variant.per_gpu,
                    "measured_per_gpu": variant.measured_per_gpu,
                    "fleet": replace(variant.fleet, replicas=_replicas(answer)).as_json(),
                    # without what the fleet holds already, and is long
                    "calibration": {k: v for k, v in variant.calibration.as_json().items() if k != "service"},
                    "validation": variant.validation.as_json(),
                    "answer": {"refused": answer} if isinstance(answer, str) else asdict(answer),
                }
                for variant, answer in self.variants
            ],
            "best": self.best and self.best[0].endpoint,
            "what_if": [asdict(one) for one in self.what_if],
            "sensitivity": [asdict(one) for one in self.sensitivity],
            "growth": [asdict(one) for one in self.growth],
            "left_out": list(self.left_out),
        }
        cleaned: dict[str, Any] = _finite(found)
        return cleaned


def as_text(found: dict[str, Any]) -> str:
    """JSON with a line for each key, and for a list of numbers no more than one."""
    text = json.dumps(found, indent=1, ensure_ascii=False)
    return re.sub(r"\[[-+.,\deE\s]+\]", lambda numbers: re.sub(r"\s+", "", numbers[0]), text) + "\n"


def _replicas(answer: SizedFleet | str) -> int:
    return 1 if isinstance(answer, str) else answer.replicas


def _finite(found: Any) -> Any:
    """Nine digits are more than any figure has; infinity, which JSON lacks, is null."""
    if isinstance(found, dict):
        return {key: _finite(value) for key, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [_finite(value) for value in found]
    if isinstance(found, float):
        return float(f"{found:.9g}") if math.isfinite(found) else None
    return found


def plan(
    runs: Sequence[str], variants: Sequence[PlannedVariant], question: Question, left_out: Sequence[str] = ()
) -> Plan:
    found = [(variant, answered(variant, question)) for variant in variants]
    best = _cheapest([(variant, answer) for variant, answer in found if isinstance(answer, SizedFleet)])
    beside = replace(question, sizing=question.sizing.brief)
    made = datetime.now(UTC)
    return Plan(
        made,
        runs,
        question,
        found,
        list(what_if(*best, beside)) if best else [],
        list(sensitivity(*best, beside)) if best else [],
        list(later(*best, beside, made)) if best else [],
        left_out,
    )


def _cheapest(found: Sequence[tuple[PlannedVariant, SizedFleet]]) -> tuple[PlannedVariant, SizedFleet] | None:
    """Of those that can be trusted, where any can."""
    by_rent = plan_text.without_power(found)

    def price(one: tuple[PlannedVariant, SizedFleet]) -> tuple[float, ...]:
        answer = one[1]
        money = answer.gpus if by_rent or answer.cost_per_hour is None else answer.cost_per_hour
        joules = math.inf if answer.joules_per_request is None else answer.joules_per_request
        return not answer.trusted, money, answer.replicas, joules, answer.p99_ms

    return min(found, key=price, default=None)
