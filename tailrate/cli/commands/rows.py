"""`tailrate rows`."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import click

from tailrate.cli import output
from tailrate.cli.options import completed, run_folders


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), shell_complete=completed(run_folders))
@click.option("--table", type=click.Choice(["requests", "devices", "metrics"]), default="requests", show_default=True)
def rows(folder: Path, table: str) -> None:
    """Prints the rows of a run FOLDER as CSV, for head and grep; sealing is not needed."""
    from tailrate import analysis

    stored = analysis.load(folder).tables[table]
    output.forgive()
    out = csv.writer(sys.stdout, lineterminator="\n")
    try:
        out.writerow(stored.names)
        for part in stored.parts:
            for batch in stored.read(part).to_batches(max_chunksize=1024):
                out.writerows(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough
        return
