"""What is broken on purpose during a run, and when: the plan of `--faults`, from a file or from names.

    at_s,fault,target,seconds        at_s: seconds since the run's start; or at_share: of its planned length, 0 to 1
    60,replica_killed,bert/eager,
    300,cpu_taken,2,30               two busy processes for half a minute

A column `endpoint` says at whose server, where endpoints on several are driven; empty: that of the first.

Every mistake is one sentence with its line. Which faults there are: `faults`, and `tailrate.serve.faults`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrate.loadtest.engine.faults import kinds
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve.faults import MOST_SECONDS, FaultKind, number

COLUMNS = ("at_s", "at_share", "fault", "target", "seconds", "endpoint")


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of a plan; exactly one of `at_s` and `at_share` says when."""

    fault: str
    target: str = ""
    seconds: float = 0.0
    at_s: float | None = None
    at_share: float | None = None
    endpoint: str = ""
    """Whose server it happens at; empty: that of the first."""

    def due_s(self, total_s: float | None) -> float:
        """Since the run's start."""
        if self.at_s is not None:
            return self.at_s
        assert self.at_share is not None
        assert total_s is not None, "a plan with shares was let into a run of unknown length"
        return self.at_share * total_s

    def as_json(self) -> dict[str, Any]:
        known = {"fault": self.fault, "target": self.target, "seconds": self.seconds}
        if self.endpoint:
            known["endpoint"] = self.endpoint
        return known | ({"at_share": self.at_share} if self.at_s is None else {"at_s": self.at_s})


Plan = tuple[Fault, ...]


def read(text: str, endless: str = "") -> Plan:
    """The plan that `--faults` names: a file, or names of faults; `ScenarioError` for what cannot be.

    `endless` is the mode's name, where nobody knows before how long it takes.
    """
    if not text.strip():
        return ()
    path = Path(text)
    if path.suffix == ".csv" or path.is_file():
        try:
            plan = parse(path.read_text(encoding="utf-8-sig"), str(path))
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "it is no text"
            raise ScenarioError(f"--faults {path} cannot be read: {reason}") from None
    else:
        plan = named(text.split(","))
    if endless and any(fault.at_s is None for fault in plan):
        raise ScenarioError(
            f"--faults: nobody knows how long mode {endless} takes, so give at_s, not at_share or names"
        )
    return plan


def check(plan: Plan, endpoints: Sequence[str]) -> None:
    """`ScenarioError` for a fault at an endpoint that is not driven."""
    if unknown := [fault.endpoint for fault in plan if fault.endpoint and fault.endpoint not in endpoints]:
        raise ScenarioError(f"--faults: there is no endpoint '{unknown[0]}'; driven are {', '.join(endpoints)}")


def named(words: Sequence[str]) -> Plan:
    """Each of them once, spread evenly over the run.

    >>> [fault.at_share for fault in named(["replica", "telemetry", "cpu"])]
    [0.25, 0.5, 0.75]
    """
    untargeted = {name: kind for name, kind in kinds().items() if kind.takes("")}
    known = {kind.word: name for name, kind in untargeted.items()} | {name: name for name in untargeted}
    chosen = [word.strip() for word in words if word.strip()]
    for word in chosen:
        if word not in known:
            names = ", ".join(kind.word for kind in untargeted.values())
            raise ScenarioError(f"--faults: unknown '{word}'; give a CSV file, or names of {names}")
    return tuple(
        Fault(known[word], seconds=untargeted[known[word]].seconds, at_share=(place + 1) / (len(chosen) + 1))
        for place, word in enumerate(chosen)
    )


def parse(text: str, name: str = "plan.csv") -> Plan:
    """The plan in a file's text: a first line of columns, then a fault per line; `#` begins a comment."""
    lines = [line if not line.lstrip().startswith("#") else "" for line in text.splitlines()]
    reader = csv.reader(io.StringIO("\n".join(lines)))
    columns: list[str] = []
    known, found = kinds(), []
    for cells in reader:
        where = f"--faults {name}, line {reader.line_num}"
        words = [cell.strip() for cell in cells]
        if not any(words):
            continue
        if not columns:
            columns = words
            if unknown := [word for word in columns if word not in COLUMNS]:
                raise ScenarioError(f"{where}: unknown column '{unknown[0]}'; known are {', '.join(COLUMNS)}")
            if "fault" not in columns or len(set(columns)) < len(columns):
                raise ScenarioError(f"{where}: the first line names the columns, each once, such as at_s,fault,target")
            continue
        if len(words) > len(columns):
            raise ScenarioError(f"{where}: {len(words)} values for {len(columns)} columns")
        found.append(_fault(dict(zip(columns, words, strict=False)), known, where))
    if not found:
        raise ScenarioError(f"--faults {name} holds no fault")
    return tuple(found)


def _fault(cells: dict[str, str], known: Mapping[str, FaultKind], where: str) -> Fault:
    fault, target = cells.get("fault", ""), cells.get("target", "")
    if fault not in known:
        raise ScenarioError(f"{where}: unknown fault '{fault}'; known are {', '.join(known)}")
    kind = known[fault]
    at_s, at_share = (_number(cells.get(key, ""), key, where) for key in ("at_s", "at_share"))
    if (at_s is None) == (at_share is None):
        raise ScenarioError(f"{where}: when is {fault} due? give one of at_s and at_share")
    if at_share is not None and at_share > 1:
        raise ScenarioError(f"{where}: at_share is a share of the run, between 0 and 1, not {at_share:g}")
    seconds = _number(cells.get("seconds", ""), "seconds", where)
    if not kind.seconds and seconds:
        raise ScenarioError(f"{where}: {fault} happens at once, so it takes no seconds")
    if seconds is not None and seconds > MOST_SECONDS:
        raise ScenarioError(f"{where}: seconds must be at most {MOST_SECONDS:g}, not {seconds:g}")
    if not kind.takes(target):
        aim = kind.target or "nothing"
        what = f"is {aim}, not '{target}'" if target else f"must be named: {aim}"
        raise ScenarioError(f"{where}: the target of {fault} {what}")
    lasts_s = kind.seconds if seconds is None else seconds
    return Fault(fault, target, lasts_s, at_s, at_share, cells.get("endpoint", ""))


def _number(text: str, column: str, where: str) -> float | None:
    if not text:
        return None
    value = number(text)
    if value is None:
        raise ScenarioError(f"{where}: {column} must be a number of at least 0, not '{text}'")
    return value
