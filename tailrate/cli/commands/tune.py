"""`tailrate tune`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tailrate.cli.options import question_options
from tailrate.cli.questions import loaded, sizing


@click.command()
@question_options
@click.option("--objective", type=click.Choice(["rate", "energy"]), default="rate", show_default=True)
def tune(folders: tuple[Path, ...], as_json: bool, objective: str, **given: Any) -> None:
    """Looks for the settings with the highest rate within the objective, or the least energy, in measured RUNS."""
    from tailrate.analysis.planning import tune as tuning
    from tailrate.analysis.text import console

    with console.progress() as tell:
        runs = loaded("tune from", folders)
        found = tuning.tune(runs, sizing(given, tell), objective, given["endpoints"])
    sentences = list(tuning.sentences(found, runs))
    if as_json:
        click.echo(json.dumps(found.as_json() | {"notes": sentences}, indent=1, ensure_ascii=False))
    else:
        console.found((), [tuning.table(found)], sentences)
    raise SystemExit(0 if found.best else 1)
