"""`tailrate campaign`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tailrate.cli import run_file
from tailrate.cli.options import out_folder
from tailrate.cli.processes import bare, serving, terminate_is_ctrl_c, threads_beside


@click.command()
@click.argument("file", required=False, metavar="[FILE.yaml]")
@click.option("--quick/--full", default=True, show_default="quick", help="a quarter of an hour, or most of a day")
@click.option("--out", type=out_folder, default="campaign", show_default=True, help="its folder")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--only", metavar="SUBJECTS", default="", help="such as resnet50,custom_cnn [default: all]")
def campaign(file: str | None, **given: Any) -> None:
    """Measures models bare and served, eager and compiled, and fills the tables in --out.

    One that was stopped goes on where it was. A file holds any of these options by their names.
    """
    if file:
        given = run_file.applied(click.get_current_context(), "file")
    _study(given["quick"], Path(given["out"]), given["device"], given["only"])


def _study(quick: bool, out: Path, device: str, only: str) -> None:
    from tailrate.cli.campaign.campaign import study
    from tailrate.cli.campaign.matrix import SIZES
    from tailrate.cli.campaign.runner import Work

    terminate_is_ctrl_c()
    machine = bare("--machine", device)
    threads = threads_beside(1)
    what = "quick" if quick else "full"
    size = SIZES[what, machine["kind"]]
    how = {"device": machine["kind"], "threads": threads, "cache_dir": str((out / "cache").resolve())}

    def served(subject: Any, variants: Sequence[str], held: int) -> Any:
        settings = tuple(f"{key}={value}" for key, value in subject.settings)
        more = {"buckets": ",".join(map(str, size.batches_of(subject)))} | ({"settings": settings} if settings else {})
        return serving(subject.model, variants, how | more, [held])

    wanted = [label for label in only.split(",") if label]
    work = Work(out, size, machine["kind"], served, click.echo, threads, wanted)
    click.echo(f"report: {study(work, what, machine)}")
