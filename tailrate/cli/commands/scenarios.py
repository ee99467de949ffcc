"""`tailrate scenarios`."""

from __future__ import annotations

import ast
from pathlib import Path

import click

from tailrate.cli import options
from tailrate.cli.misuse import refuse


@click.command()
@click.option("--copy", "name", metavar="NAME", help="copy this one, to be changed and driven by Locust")
@click.option("--to", type=click.Path(path_type=Path), default=".", show_default=True, help="folder to copy it into")
def scenarios(name: str | None, to: Path) -> None:
    """Lists the locustfiles that come with tailrate, or copies one of them."""
    known = options.scenarios()
    if name is None:
        for each, path in known.items():
            said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or each
            click.echo(f"{each:<18} {said.splitlines()[0].removeprefix(f'{each}: ')}")
        return
    path = options.scenario_file(name)
    copy = to / path.name
    if not to.is_dir():
        refuse(f"{to} is not a folder")
    try:
        out = copy.open("xb")  # nor through a link that leads nowhere yet
    except FileExistsError:
        refuse(f"{copy} is there already")
    try:
        with out:
            out.write(path.read_bytes())
    except OSError:
        copy.unlink()
        raise
    click.echo(f"{copy}: locust -f {copy} --host http://127.0.0.1:8000")
