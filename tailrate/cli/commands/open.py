"""`tailrate open`."""

from __future__ import annotations

from pathlib import Path

import click

from tailrate.cli.misuse import refuse
from tailrate.cli.options import completed, run_folders


@click.command()
@click.argument("run", required=False, type=click.Path(path_type=Path), shell_complete=completed(run_folders))
def open(run: Path | None) -> None:  # noqa: A001  # the command's name
    """Opens the report of a RUN in the browser, or that of the newest run in ./runs; given a folder of runs, its index.

    A report that was not written yet is.
    """
    if run is None:
        known = [Path(name) for name in run_folders()]
        if not known:
            refuse("open what? there is no run in ./runs; give a run folder, or one that holds runs")
        run = max(known, key=lambda folder: folder.stat().st_mtime_ns)
    page = (_report if (run / "run.json").is_file() else _index)(run).resolve()
    if click.launch(page.as_uri()):
        click.echo(f"nothing here opens pages; this one is at {page}")
    else:
        click.echo(page)


def _report(run: Path) -> Path:
    page = run / "report.html"
    if not page.is_file():
        from tailrate.cli.reporting import make_report

        make_report(run)
    return page


def _index(runs: Path) -> Path:
    from tailrate.analysis.pages import index

    return index.write(runs)[0]
