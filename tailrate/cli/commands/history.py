"""`tailrate history`."""

from __future__ import annotations

import getpass
import json
import os
from pathlib import Path
from typing import Any

import click

from tailrate.cli.misuse import refuse
from tailrate.cli.options import completed, run_folders


@click.command()
@click.argument(
    "folders", nargs=-1, type=click.Path(path_type=Path), metavar="[RUNS]...", shell_complete=completed(run_folders)
)
@click.option("--endpoint", metavar="NAME", help="of this endpoint only, such as bert/compiled or bert/*")
@click.option("--figure", metavar="NAME", help="capacity, p50, p99, ttft, tpot, joules, errors …, and run by run")
@click.option("--since", metavar="DAY", help="runs from then on, such as 2026-11-01 or 30d")
@click.option("--by", metavar="FACT", help="compare runs by torch, gpu, variant, driver, git … where all else is alike")
@click.option("--against", metavar="NAME", help="hold the newest run against a pinned one, not against all before it")
@click.option("--fail-on-regression", is_flag=True, help="exit with 1 where it is worse, with 3 where that is unknown")
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of tables")
@click.option("--add", is_flag=True, help="write RUNS, run folders or folders of them, into their history.jsonl")
@click.option("--pin", nargs=2, metavar="NAME RUN", help="give a run a name, as a baseline")
@click.option("--unpin", metavar="NAME", help="take a name away again")
@click.option("--accept", metavar="RUN", help="what is worse in this run is usual from it on; say --why")
@click.option("--why", default="", help="of --accept, written down with it")
@click.option("--who", default="", help="of --accept  [default: your user name]")
def history(
    folders: tuple[Path, ...], add: bool, pin: tuple[str, str] | None, unpin: str | None, accept: str | None, why: str,
    who: str, **given: Any,
) -> None:  # fmt: skip
    """Shows what became of each endpoint over all runs of a folder RUNS: worse, better, or no change.

    With history.jsonl in it, which --add or --pin begins and every report continues, runs outlive their folders.
    """
    from tailrate.analysis.history import overview

    acts = {"--add": add, "--pin or --unpin": pin or unpin is not None, "--accept": accept is not None}
    asked = [act for act, is_asked in acts.items() if is_asked]
    beside = asked[1:] + [f"--{key.replace('_', '-')}" for key, value in given.items() if value not in (None, False)]
    if asked and beside:
        refuse(f"{asked[0]} writes the history and does no more; leave {beside[0]} to a command of its own")
    if (why or who) and accept is None:
        refuse("--why and --who are of --accept RUN")
    if add:
        for line in overview.added(folders or (Path("runs"),)):
            click.echo(line)
        return
    if len(folders) > 1:
        refuse("history of what? give one folder that holds runs, or --add with several")
    runs = folders[0] if folders else Path("runs")
    if pin or unpin is not None:
        for line in overview.pinned(runs, pin, unpin):
            click.echo(line)
        return
    if accept is not None:
        click.echo(overview.accepted(runs, accept, who or _user(), why))
        return
    if given["by"] is not None and given["fail_on_regression"]:
        refuse("--by compares the values of a fact, and knows no regression; leave --fail-on-regression out")
    raise SystemExit(_show_history(runs, **given))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number that has no name
        return f"user {os.getuid()}"


def _show_history(runs: Path, *, fail_on_regression: bool, as_json: bool, by: str | None, **given: str | None) -> int:
    from tailrate.analysis.history import overview
    from tailrate.analysis.text import console

    shown = overview.compared(runs, by, **given) if by is not None else overview.overview(runs, **given)
    if as_json:
        click.echo(json.dumps(shown.as_json(), indent=1, allow_nan=False))
    else:
        console.tables(shown.tables())
        for sentence in shown.sentences():
            click.echo(sentence)
    return shown.exit_code if fail_on_regression else 0
