"""The page on paper."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tailrate.analysis.exports.forms._form import Report
from tailrate.analysis.records.folder import RunError, replacing

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
_PRINT_S = 120


def _write(run: Run, report: Report) -> Path:
    """The page as a browser prints it."""
    page, path = run.folder / "report.html", run.folder / "report.pdf"
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise RunError(f"a PDF takes chromium or Chrome, and there is none; print {page} from any browser instead")
    with replacing(path) as scratch, tempfile.TemporaryDirectory(prefix="tailrate-") as profile:
        command = [browser, "--headless", "--disable-gpu", f"--user-data-dir={profile}", "--no-pdf-header-footer"]
        command += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
        command += ["--no-sandbox"] if os.geteuid() == 0 else []  # which a browser of root does not start with
        command += [f"--print-to-pdf={scratch.resolve()}", page.resolve().as_uri()]
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=_PRINT_S, check=False)
        except subprocess.TimeoutExpired:
            raise RunError(f"{browser} took more than {_PRINT_S} s to print {page}") from None
        if said.returncode or not scratch.exists():
            why = (said.stderr.strip().splitlines() or ["no reason"])[-1]
            raise RunError(f"{browser} could not print {page}: {why}")
    return path


FORM = _write
