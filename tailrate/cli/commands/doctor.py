"""`tailrate doctor`."""

from __future__ import annotations

import click

from tailrate.cli.options import port


@click.command()
@click.option("--port", type=port, default="8000", show_default=True, help="the port that `tailrate serve` would take")
@click.option("--host", help="an endpoint to look at, such as http://gpu-host:8000")
def doctor(port: int, host: str | None) -> None:
    """Looks at this machine, and says what to do about what is missing."""
    from tailrate.analysis.text.console import console
    from tailrate.serve.deploy.doctor import checks

    out = console()
    marks = {"ok": "[green]ok[/green]  ", "note": "[yellow]note[/yellow]", "bad": "[red]bad[/red] "}
    worst = "ok"
    for name, state, found, advice in checks(port, host):
        said = f"{name:<12} {found}" + (f" — {advice}" if advice else "")
        out.print(f"{marks[state]}  " + said.replace("[", r"\["))  # tailrate[serve] is no style
        worst = "bad" if state == "bad" else worst
    raise SystemExit(2 if worst == "bad" else 0)
