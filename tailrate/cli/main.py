"""tailrate: one command over three packages.

It only composes them: `serve` hosts models, a Locust process drives a scenario at them, `analysis` reads the
run folder that came of it. Each command is imported when it is called, and imports what it needs when it runs: so a
laptop without torch and Ray can do everything but `serve`, and help comes at once.

Exit codes: 0 pass; 1 objective missed; 2 bad input or a file that fails, in one sentence; 3 the run cannot be trusted;
70 a fault of tailrate itself, with its traceback.
"""

from __future__ import annotations

import ast
from collections import UserDict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click

from tailrate.cli import commands
from tailrate.cli.misuse import Front

PREFIX = "TAILRATE"


class CommandFiles(UserDict[str, click.Command]):
    """Each file of `commands` holds the command of its name."""

    def __init__(self) -> None:
        from tailrate import loadtest  # noqa: F401  # which says where it does not run

        super().__init__()
        self._files = {file.stem: file for file in sorted(Path(commands.__path__[0]).glob("[!_]*.py"))}

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __missing__(self, name: str) -> click.Command:
        if name not in self._files:
            raise KeyError(name)
        found: click.Command = getattr(import_module(f"{commands.__name__}.{name}"), name)
        name_variables(found, f"{PREFIX}_{name}")
        self.data[name] = found
        return found

    def summary(self, name: str) -> str:
        """The first sentence of what the command says of itself, read without importing it."""
        tree = ast.parse(self._files[name].read_text(encoding="utf-8"))
        (own,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
        said = " ".join((ast.get_docstring(own) or "").split())
        return said.partition(". ")[0].removesuffix(".") + "."


def name_variables(command: click.Command, prefix: str) -> None:
    """Each option's variable is named after the option; one that has a name of its own keeps that too."""
    for name, below in getattr(command, "commands", {}).items():
        name_variables(below, f"{prefix}_{name}")
    for option in command.params:
        if isinstance(option, click.Option):
            own = [option.envvar] if isinstance(option.envvar, str) else option.envvar or []
            key = max(option.opts, key=len).removeprefix("--")
            option.envvar = [f"{prefix}_{key}".replace("-", "_").upper(), *own]


class Tailrate(Front):
    commands: CommandFiles

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.commands.summary(name)) for name in self.commands])


@click.group(
    cls=Tailrate, commands=CommandFiles(),
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": PREFIX},
)  # fmt: skip
@click.version_option(package_name="tailrate", message="%(prog)s %(version)s")
def main() -> None:
    """Load-tests live inference endpoints: how much compiling buys, and how much an endpoint can take."""
