"""A run for a system that tracks experiments: what it was made with, and its figures along the rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tailrate.analysis.exports.forms._form import ExportedStep, Report, steps_of
from tailrate.analysis.records.folder import MANIFEST, RunError
from tailrate.analysis.run.environment import origin

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

FILES = ("report.html", "report.md", "report.json", "steps.csv", MANIFEST)
"""Of the folder, as far as they are there."""


@dataclass(frozen=True, slots=True)
class Point:
    """What one step found."""

    load: float
    """The rate, or how many requests were under way."""
    at: int
    """The same as a whole number where that tells all loads apart, else the number of the step."""
    end_ns: int
    figures: Mapping[str, float]


def facts(run: Run) -> dict[str, str]:
    """What it ran on and how it was asked: `setting objective`, `version torch`, `host load cpu`."""
    return {f"{group} {name}": value for (group, name), value in origin(run.manifest).items()}


def points(run: Run, report: Report) -> list[Point]:
    """The columns of `steps.csv`, each followed by the endpoint: `p99_ms/bert/eager`."""
    steps = list(steps_of(report, run.manifest))
    loads = [step.concurrency or step.rate for step in steps]
    whole = len(set(loads)) == len({round(load) for load in loads})
    return [
        Point(load, round(load) if whole else int(step.row["index"]), step.end_ns, dict(_figures(step)))
        for load, step in zip(loads, steps, strict=True)
    ]


def limits(report: Report) -> dict[str, float]:
    """What each endpoint kept, by objective."""
    return {
        f"capacity_rps/{row['endpoint']}/{row['slo']}": float(row["low_rps"])
        for row in report["capacity"]
        if row["low_rps"] is not None
    }


def files(run: Run) -> list[Path]:
    return [path for name in FILES if (path := run.folder / name).is_file()]


def missing(package: str) -> RunError:
    return RunError(f"--export {package} needs the package {package}: pip install 'tailrate[{package}]'")


def _figures(step: ExportedStep) -> Iterator[tuple[str, float]]:
    for name, value in step.row.items():
        if name not in ("index", "block") and isinstance(value, int | float) and not math.isnan(value):
            yield f"{name}/{step.row['endpoint']}", float(value)
