"""`tailrate run`."""

from __future__ import annotations

from typing import Any

import click

from tailrate.cli.drive import drive
from tailrate.cli.options import HeadedCommand, scenario_options, serve_options


@click.command(cls=HeadedCommand, context_settings={"ignore_unknown_options": True})
@click.argument("scenario")
@click.option("--host", help="the endpoint, such as http://gpu-host:8000; without it the model is served here")
@click.option("--processes", type=int, default=1, show_default=True, help="load processes")
@scenario_options()
@serve_options
@click.argument("locust_args", nargs=-1, type=click.UNPROCESSED)
def run(scenario: str, host: str | None, processes: int, locust_args: tuple[str, ...], **given: Any) -> None:
    """Drives SCENARIO (a name such as bert, or a locustfile), then writes the report.

    Options that are not listed here go to Locust, such as a scenario's own --text.
    """
    raise SystemExit(drive(scenario, host, processes, locust_args, given))
