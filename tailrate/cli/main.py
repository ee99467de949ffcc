"""tailrate: one command over three packages.

It only composes them: `serve` hosts models, a Locust process drives a scenario at them, `analysis` reads the
run folder that came of it. Each command imports what it needs when it runs, so that a laptop without torch
and Ray can do everything but `serve`.

Exit codes: 0 pass; 1 objective missed; 2 bad input, in one sentence; 3 the run cannot be trusted.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import click

from tailrate.cli import commands
from tailrate.cli.misuse import Front


@click.group(cls=Front, context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "TAILRATE"})
@click.version_option(package_name="tailrate", message="%(prog)s %(version)s")
def main() -> None:
    """Load-tests live inference endpoints: how much compiling buys, and how much an endpoint can take."""


for _file in iter_modules(commands.__path__):
    main.add_command(getattr(import_module(f"{commands.__name__}.{_file.name}"), _file.name))
