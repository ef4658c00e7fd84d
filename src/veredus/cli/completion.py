"""`veredus completion`: shell scripts for completion with Tab."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from veredus.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", metavar="SHELL")
def completion(shell: str) -> None:
    """Print the completion script for bash, zsh or fish.

    \b
    Examples:
      veredus completion bash >> ~/.bashrc
      veredus completion fish > ~/.config/fish/completions/veredus.fish
    """
    from veredus.cli.main import cli

    found = get_completion_class(shell) if shell in SHELLS else None
    if found is None:
        raise ConfigError("shell", shell, f"one of {', '.join(SHELLS)}", known=SHELLS)
    click.echo(found(cli, {}, "veredus", "_VEREDUS_COMPLETE").source())
