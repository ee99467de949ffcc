"""How a command ends that cannot go on: misuse and failing files with one sentence and 2, a fault of ours with 70."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, NoReturn

import click

from tailrate.cli import output

FAULT = 70
"""`EX_SOFTWARE` of sysexits.h; Python's own 1 is what a missed objective ends with."""
MISUSES = (
    ("tailrate.cli.campaign.runner", "CampaignError"),
    ("tailrate.analysis.records.folder", "RunError"),
    ("tailrate.analysis.planning.plan.sizing", "QuestionError"),
    ("tailrate.loadtest.engine.scenario.scenario", "ScenarioError"),
    ("tailrate.serve.spec", "ServeError"),
)


def refuse(sentence: str) -> NoReturn:
    click.echo(f"tailrate: {sentence}", err=True)
    raise SystemExit(2)


@contextmanager
def _told() -> Iterator[None]:
    """What a command could not go on for, said and turned into its exit code."""
    try:
        yield
    except KeyboardInterrupt:  # before there was anything to keep
        raise SystemExit(130) from None
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception as problem:
        # a package that was not imported has raised nothing
        known = (getattr(sys.modules.get(module), name, None) for module, name in MISUSES)
        if any(kind and isinstance(problem, kind) for kind in known):
            refuse(str(problem))
        if isinstance(problem, OSError) and problem.filename:
            refuse(f"{problem.filename}: {problem.strerror}")
        if isinstance(problem, OSError | UnicodeError):
            refuse(" ".join(str(problem).split()))
        click.echo(traceback.format_exc(), nl=False, err=True)
        raise SystemExit(FAULT) from None


class Front(click.Group):
    """Turns every misuse that a package names into one sentence and exit code 2."""

    def main(self, *args: Any, **more: Any) -> Any:
        output.prepare()
        with _told():
            return super().main(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _told():  # before click, which ends with 1 where it knows a problem
            return super().invoke(ctx)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            near = get_close_matches(args[0], self.commands, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            refuse(f"unknown command '{args[0]}'; known are {', '.join(sorted(self.commands))}{hint}")
        return super().resolve_command(ctx, args)
