"""What is broken on purpose during a run, and when: the plan of `--faults`, from a file or from names.

    at_s,fault,target,seconds        at_s: seconds since the run's start; or at_share: of its planned length, 0 to 1
    60,replica_killed,bert/eager,
    300,cpu_taken,2,30               two busy processes for half a minute

Pure: every mistake is one sentence with its line. What a fault does is `injection`'s and the server's.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrate.loadtest.engine.scenario.scenario import ScenarioError

COLUMNS = ("at_s", "at_share", "fault", "target", "seconds")
LONGEST_S = 3600.0


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One way in which something breaks."""

    word: str
    """What it is called in a plan of names."""
    seconds: float
    """How long it lasts where nothing else is said; 0: it happens at once."""
    target: str
    """What its target is."""
    by_server: bool = False


KINDS = {
    "replica_killed": FaultKind("replica", 0, "model/variant; empty: the first one", by_server=True),
    "ingress_restarted": FaultKind("ingress", 0, "nothing", by_server=True),
    "node_killed": FaultKind("node", 0, "a host of the cluster; empty: any but the head", by_server=True),
    "cpu_taken": FaultKind("cpu", 30, "how many cores; empty: all", by_server=True),
    "gpu_memory_taken": FaultKind("gpu-memory", 30, "GiB; empty: 1", by_server=True),
    "slow_client": FaultKind("slow-client", 30, "how many connections; empty: 20"),
    "telemetry_cut": FaultKind("telemetry", 15, "nothing"),
    "collector_killed": FaultKind("collector", 5, "nothing"),
    "load_killed": FaultKind("load", 0, "number of the load process; empty: the last one"),
    "cpu_taken_here": FaultKind("cpu-here", 30, "how many cores; empty: all"),
    "disk_full": FaultKind("disk", 15, "the mount point of the run folder's own small volume"),
}
NUMBERS = ("cpu_taken", "gpu_memory_taken", "slow_client", "cpu_taken_here", "load_killed")
"""Those whose target is a number."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of a plan; exactly one of `at_s` and `at_share` says when."""

    fault: str
    target: str = ""
    seconds: float = 0.0
    at_s: float | None = None
    at_share: float | None = None

    @property
    def kind(self) -> FaultKind:
        return KINDS[self.fault]

    def due_s(self, total_s: float | None) -> float:
        """Since the run's start."""
        if self.at_s is not None:
            return self.at_s
        assert self.at_share is not None
        assert total_s is not None, "a plan with shares was let into a run of unknown length"
        return self.at_share * total_s

    def as_json(self) -> dict[str, Any]:
        known = {"fault": self.fault, "target": self.target, "seconds": self.seconds}
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


def named(words: Sequence[str]) -> Plan:
    """Each of them once, spread evenly over the run.

    >>> [fault.at_share for fault in named(["replica", "telemetry", "cpu"])]
    [0.25, 0.5, 0.75]
    """
    known = {kind.word: name for name, kind in KINDS.items() if name != "disk_full"} | {name: name for name in KINDS}
    chosen = [word.strip() for word in words if word.strip()]
    for word in chosen:
        if known.get(word, "disk_full") == "disk_full":
            names = ", ".join(kind.word for name, kind in KINDS.items() if name != "disk_full")
            raise ScenarioError(f"--faults: unknown '{word}'; give a CSV file, or names of {names}")
    return tuple(
        Fault(known[word], seconds=KINDS[known[word]].seconds, at_share=(place + 1) / (len(chosen) + 1))
        for place, word in enumerate(chosen)
    )


def parse(text: str, name: str = "plan.csv") -> Plan:
    """The plan in a file's text: a first line of columns, then a fault per line; `#` begins a comment."""
    lines = [line if not line.lstrip().startswith("#") else "" for line in text.splitlines()]
    reader = csv.reader(io.StringIO("\n".join(lines)))
    columns: list[str] = []
    found = []
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
        found.append(_fault(dict(zip(columns, words, strict=False)), where))
    if not found:
        raise ScenarioError(f"--faults {name} holds no fault")
    return tuple(found)


def _fault(cells: dict[str, str], where: str) -> Fault:
    fault, target = cells.get("fault", ""), cells.get("target", "")
    kind = KINDS.get(fault)
    if kind is None:
        raise ScenarioError(f"{where}: unknown fault '{fault}'; known are {', '.join(KINDS)}")
    at_s, at_share = (_number(cells.get(key, ""), key, where) for key in ("at_s", "at_share"))
    if (at_s is None) == (at_share is None):
        raise ScenarioError(f"{where}: when is {fault} due? give one of at_s and at_share")
    if at_share is not None and at_share > 1:
        raise ScenarioError(f"{where}: at_share is a share of the run, between 0 and 1, not {at_share:g}")
    seconds = _number(cells.get("seconds", ""), "seconds", where)
    if not kind.seconds and seconds:
        raise ScenarioError(f"{where}: {fault} happens at once, so it takes no seconds")
    if seconds is not None and seconds > LONGEST_S:
        raise ScenarioError(f"{where}: seconds must be at most {LONGEST_S:g}, not {seconds:g}")
    if target and (kind.target == "nothing" or (fault in NUMBERS and not _positive(target))):
        raise ScenarioError(f"{where}: the target of {fault} is {kind.target}, not '{target}'")
    if fault == "disk_full" and not target:
        raise ScenarioError(f"{where}: the target of disk_full must be named: {kind.target}")
    return Fault(fault, target, kind.seconds if seconds is None else seconds, at_s, at_share)


def _number(text: str, column: str, where: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ScenarioError(f"{where}: {column} must be a number of at least 0, not '{text}'")
    return value


def _positive(text: str) -> bool:
    try:
        return 0 <= float(text) < 1e6
    except ValueError:
        return False
