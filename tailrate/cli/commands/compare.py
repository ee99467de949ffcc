"""`tailrate compare`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from tailrate.cli.misuse import refuse
from tailrate.cli.options import completed, run_folders


@click.command()
@click.argument("base", type=click.Path(path_type=Path), shell_complete=completed(run_folders))
@click.argument("new", type=click.Path(path_type=Path), nargs=-1, shell_complete=completed(run_folders))
@click.option(
    "--fail-on", "gates", multiple=True, metavar="p99>5%",
    help="exit with 1 where a figure changed by more, with 3 where that cannot be said; circumstances: with 1 where a "
    "run ran on something else; several with commas between them, or repeated",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")
def compare(base: Path, new: tuple[Path, ...], gates: tuple[str, ...], as_json: bool) -> None:
    """Compares run folders: each NEW with BASE at each load, or the endpoints inside BASE alone.

    A name that `tailrate history --pin` gave to a run stands for its folder.
    """
    from tailrate import analysis
    from tailrate.analysis.text import console
    from tailrate.analysis.verdicts.changes import changes, inside, table
    from tailrate.analysis.verdicts.gate import CIRCUMSTANCES, Gate, judge

    texts = [part.strip() for gate in gates for part in gate.split(",")]
    try:
        asked = [Gate.parse(text) for text in texts if text != CIRCUMSTANCES]
    except ValueError as problem:
        refuse(f"--fail-on: {problem}")
    homes = [Path("runs"), *(folder.parent for folder in (base, *new) if folder.is_dir())]
    base, *new_folders = (_or_pinned(folder, homes) for folder in (base, *new))
    first = analysis.load(base)
    runs = [analysis.load(folder) for folder in new_folders]
    found = [one for run in runs for one in changes(first, run)] if runs else inside(first)
    if not found:
        refuse(f"{base} has nothing to compare" + (f" with {', '.join(map(str, new))}" if new else ""))
    judged = judge(asked, found, [first, *runs], alike=CIRCUMSTANCES in texts)
    if as_json:
        click.echo(json.dumps(judged.as_json(), indent=1, ensure_ascii=False))
    else:
        console.found((), [table(found, len(runs))], judged.sentences)
    raise SystemExit(judged.exit_code)


def _or_pinned(folder: Path, homes: Sequence[Path]) -> Path:
    from tailrate.analysis.history import log as history_log

    return folder if folder.is_dir() else history_log.pinned_folder(str(folder), homes) or folder
