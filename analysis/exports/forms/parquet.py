"""Steps as a table, for many runs together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tailrate.analysis.exports.forms._form import Report
from tailrate.analysis.records.folder import replacing

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run


def _write(run: Run, report: Report) -> Path:
    """A row per step with the run, when it began and what was asked for: files of many runs are read as one table."""
    asked = [(step.rate, step.concurrency) for step in run.measured]
    table = run.steps.assign(rate=[rate for rate, _ in asked], concurrency=[number for _, number in asked])
    table.insert(0, "run", run.manifest.id)
    table.insert(1, "started_ns", run.manifest.started_ns)
    path = run.folder / "steps.parquet"
    with replacing(path) as scratch:
        table.to_parquet(scratch, index=False)
    return path


FORM = _write
