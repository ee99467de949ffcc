"""The report in other forms, one file each: for CI, for dashboards, for tables of many runs, for paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tailrate.analysis.exports import github, junit, loadgen, openmetrics, parquet, pdf
from tailrate.analysis.exports.form import Report

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

FORMS: dict[str, Callable[[Run, Report], Path]] = {
    "junit": junit.FORM,
    "github": github.write,
    "openmetrics": openmetrics.FORM,
    "loadgen": loadgen.FORM,
    "parquet": parquet.write,
    "pdf": pdf.write,
}
"""Name → what writes it into the run folder and says where."""
