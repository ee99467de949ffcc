"""The report in other forms, one file each: for CI, for dashboards, for tables of many runs, for paper.

A form is a file with a `FORM`, which writes it into the run folder or elsewhere and says where; the file's name is the
form's.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tailrate.analysis.exports.forms._form import Report

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

FORMS: dict[str, Callable[[Run, Report], Path | str]] = {
    path.stem: import_module(f"{__name__}.{path.stem}").FORM for path in sorted(Path(__file__).parent.glob("[!_]*.py"))
}
