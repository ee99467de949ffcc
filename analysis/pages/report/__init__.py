"""The report that people read: `report.html` and `report.md` of one run folder.

Numbers come from `tailrate.analysis.exports.report_json`; this package only shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrate.analysis.pages.report.markdown import markdown
from tailrate.analysis.pages.report.page import html
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.records.folder import write_atomically

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run


def write(run: Run, report: Mapping[str, Any]) -> list[Path]:
    """Writes `report.md` and `report.html` into the run's folder, each at once, and says where they are."""
    view = View.of(run, report)
    paths = [run.folder / "report.md", run.folder / "report.html"]
    for path, text in zip(paths, (markdown(view), html(view)), strict=True):
        write_atomically(path, text)
    return paths
