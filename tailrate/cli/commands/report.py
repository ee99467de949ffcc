"""`tailrate report`."""

from __future__ import annotations

from pathlib import Path

import click

from tailrate.cli.misuse import refuse
from tailrate.cli.options import completed, run_folders
from tailrate.cli.reporting import check_forms, make_report


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path), shell_complete=completed(run_folders))
@click.option("--page/--no-page", default=True, help="write report.html and report.md, or only the figures")
@click.option(
    "--export", "forms", multiple=True, metavar="FORM",
    help="write the report in another form too: junit, github, openmetrics, otlp, mlflow, wandb, loadgen, parquet or "
    "pdf; may be repeated",
)  # fmt: skip
@click.option(
    "--index", "runs", type=click.Path(path_type=Path), metavar="RUNS",
    help="write index.html over all runs of this folder instead, to look through, compare and follow them over time",
)  # fmt: skip
def report(folder: Path | None, page: bool, forms: tuple[str, ...], runs: Path | None) -> None:
    """Seals a run FOLDER and writes report.json, steps.csv, report.md and report.html into it."""
    if runs is not None:
        if folder or forms:
            refuse("--index takes the folder that holds the runs, and neither a run nor --export beside it")
        from tailrate.analysis.pages import index

        path, count = index.write(runs)
        click.echo(f"{count} {'run' if count == 1 else 'runs'}: {path.resolve()}")
        return
    if folder is None:
        refuse("report what? give a run folder, or --index with the folder that holds the runs")

    check_forms(forms)
    if "pdf" in forms and not page:
        refuse("--export pdf prints the page, which --no-page leaves out")
    raise SystemExit(make_report(folder, page=page, forms=forms))
