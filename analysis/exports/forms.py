"""The report in other forms, each a file in the run folder: for CI, for dashboards, for tables of many runs, for paper.

`FORMS` has a function per form, from a run and its report to the file that it wrote. The texts come from `texts`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tailrate.analysis.exports.texts import EXPORTS
from tailrate.analysis.records import RunError, write_atomically

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

Report: TypeAlias = Mapping[str, Any]

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
_PRINT_S = 120


def _text(form: str, run: Run, report: Report) -> Path:
    """A step summary also goes where GitHub wants it."""
    name, written = EXPORTS[form]
    text = written(report, run.manifest)
    write_atomically(run.folder / name, text)
    if form == "github" and (wanted := os.environ.get("GITHUB_STEP_SUMMARY")):
        with Path(wanted).open("a", encoding="utf-8") as out:
            out.write(text)
    return run.folder / name


def _parquet(run: Run, report: Report) -> Path:
    """A row per step with the run, when it began and what was asked for: files of many runs are read as one table."""
    asked = [(step.rate, step.concurrency) for step in run.measured]
    table = run.steps.assign(rate=[rate for rate, _ in asked], concurrency=[number for _, number in asked])
    table.insert(0, "run", run.manifest.id)
    table.insert(1, "started_ns", run.manifest.started_ns)
    path = run.folder / "steps.parquet"
    scratch = path.with_name(path.name + ".part")
    table.to_parquet(scratch, index=False)
    scratch.replace(path)
    return path


def _pdf(run: Run, report: Report) -> Path:
    """The page as a browser prints it."""
    page, path = run.folder / "report.html", run.folder / "report.pdf"
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise RunError(f"a PDF takes chromium or Chrome, and there is none; print {page} from any browser instead")
    scratch = path.with_name(path.name + ".part")
    with tempfile.TemporaryDirectory(prefix="tailrate-") as profile:
        command = [browser, "--headless", "--disable-gpu", f"--user-data-dir={profile}", "--no-pdf-header-footer"]
        command += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
        command += ["--no-sandbox"] if os.geteuid() == 0 else []  # which a browser of root does not start with
        command += [f"--print-to-pdf={scratch.resolve()}", page.resolve().as_uri()]
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=_PRINT_S, check=False)
        except subprocess.TimeoutExpired:
            raise RunError(f"{browser} took more than {_PRINT_S} s to print {page}") from None
    if said.returncode or not scratch.exists():
        raise RunError(f"{browser} could not print {page}: {(said.stderr.strip().splitlines() or ['no reason'])[-1]}")
    scratch.replace(path)
    return path


FORMS: dict[str, Callable[[Run, Report], Path]] = {
    **{form: partial(_text, form) for form in EXPORTS},
    "parquet": _parquet,
    "pdf": _pdf,
}
