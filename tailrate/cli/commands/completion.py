"""`tailrate completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

HOW = {
    "bash": 'eval "$(tailrate completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(tailrate completion zsh)" in ~/.zshrc, after compinit',
    "fish": "tailrate completion fish > ~/.config/fish/completions/tailrate.fish",
}


@click.command(epilog="\b\n" + "\n".join(f"{shell:5} {how}" for shell, how in HOW.items()))
@click.argument("shell", type=click.Choice([*HOW]))
def completion(shell: str) -> None:
    """Prints what makes a SHELL complete commands, options, scenarios, models and run folders."""
    kind = get_completion_class(shell)
    assert kind is not None
    front = click.get_current_context().find_root().command
    click.echo(kind(front, {}, "tailrate", "_TAILRATE_COMPLETE").source())
