"""`tailrate run`."""

from __future__ import annotations

from typing import Any

import click

from tailrate.cli import run_file
from tailrate.cli.drive import drive
from tailrate.cli.options import HeadedCommand, completed, processes, scenario_options, scenarios, serve_options


@click.command(cls=HeadedCommand, context_settings={"ignore_unknown_options": True})
@click.argument("scenario", metavar="SCENARIO|FILE.yaml", shell_complete=completed(scenarios))
@click.option("--host", help="the endpoint, such as http://gpu-host:8000; without it the model is served here")
@click.option("--processes", type=processes, default=1, show_default=True, help="load processes")
@click.option("--print-file", is_flag=True, help="print what was asked for as a run file, and end")
@scenario_options()
@serve_options
@click.argument("locust_args", nargs=-1, type=click.UNPROCESSED)
def run(**given: Any) -> None:
    """Drives SCENARIO (a name such as bert, or a locustfile), then writes the report.

    A default of the scenario goes before one that is said here. A run file holds the same: scenario, endpoints and any
    of these options by their names. Options that are not listed here go to Locust, such as a scenario's own --text.
    """
    if given.pop("print_file"):
        click.echo(run_file.text(click.get_current_context()), nl=False)
        return
    if run_file.is_run_file(given["scenario"]):
        given = run_file.applied(click.get_current_context())
        given.pop("print_file")
    scenario, host, processes, locust_args = (
        given.pop(name) for name in ("scenario", "host", "processes", "locust_args")
    )
    raise SystemExit(drive(scenario, host, processes, locust_args, given))
