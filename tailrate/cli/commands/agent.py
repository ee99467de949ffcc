"""`tailrate agent`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from tailrate.cli.options import port
from tailrate.cli.processes import stop_with_parent


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="interface to listen on")
@click.option("--port", type=port, default="9410", show_default=True)
@click.option("--token-file", envvar="TAILRATE_TOKEN_FILE", help="tokens, one of which every request must show")
@click.option("--tls-cert", default="", help="PEM file of a certificate: HTTPS instead of HTTP")
@click.option("--tls-key", default="", help="PEM file of its key")
@click.option("--sample-ms", type=int, default=100, show_default=True, help="period of device samples")
@click.option("--device-trace", default="", help="CSV of device samples that is played back instead of sampling")
def agent(token_file: str | None, **given: Any) -> None:
    """Serves device samples and the clock of this host, beside whatever serves models here, until stopped.

    A run reads them with --devices.
    """
    import asyncio
    from importlib.util import find_spec

    from tailrate.serve.edge import auth
    from tailrate.serve.spec import ServeError, install
    from tailrate.serve.telemetry.agent.agent import AgentOptions, check, run

    options = AgentOptions(**given)
    if find_spec("psutil") is None:
        raise ServeError(f"the agent needs psutil: {install('agent')}")
    if token_file:
        os.environ[auth.FILE] = str(Path(token_file).expanduser().absolute())
    if why := check(options):
        click.echo(f"tailrate: {why}", err=True)
    stop_with_parent()
    asyncio.run(run(options, click.echo))
