"""A run folder sealed and reported, with what follows along: history and index of its neighbours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from tailrate.cli.misuse import refuse

MANY = 20_000_000


def check_forms(forms: Sequence[str]) -> None:
    from tailrate.analysis.exports.forms import FORMS

    for form in forms:
        if form not in FORMS:
            refuse(f"--export {form}: the forms are {', '.join(FORMS)}")


def make_report(folder: Path, *, page: bool = True, forms: Sequence[str] = ()) -> int:
    from tailrate import analysis
    from tailrate.analysis.exports import report_json
    from tailrate.analysis.exports.forms import FORMS
    from tailrate.analysis.records.infinities import restored
    from tailrate.analysis.run.recorded_run import seal
    from tailrate.analysis.text import console
    from tailrate.analysis.verdicts.verdict import EXIT_CODES

    seal(folder)
    run = analysis.load(folder)
    if (rows := len(run.tables["requests"])) > MANY:
        click.echo(f"reading {rows:,} requests; ten million take about two seconds", err=True)
    found = report_json.write(run)
    _remember(folder)
    if page:
        from tailrate.analysis.pages import report as pages

        pages.write(run, found)
        refresh_gallery(folder)
    for form in forms:
        click.echo(f"{form}: {FORMS[form](run, found)}")
    shown = {**found, "steps": [*map(restored, found["steps"])]}
    console.report(shown, folder / ("report.html" if page else report_json.REPORT))
    return EXIT_CODES[found["verdict"]]


def _remember(folder: Path) -> None:
    """A run goes into the history of its neighbours, where somebody has begun one; it spoils no report."""
    from tailrate.analysis.history import log as history_log
    from tailrate.analysis.records.folder import RunError

    try:
        history_log.follow(folder)
    except RunError as problem:
        click.echo(f"tailrate: {problem}", err=True)


def refresh_gallery(folder: Path) -> None:
    """The index over a run's neighbours follows along, where somebody has made one."""
    from tailrate.analysis.pages import index

    runs = folder.resolve().parent
    if index.is_ours(runs / index.INDEX):
        index.write(Path(os.path.relpath(runs)))
