"""Command lines of `veredus` in pages and files: would the command accept them?"""

from __future__ import annotations

from collections.abc import Sequence

import click

from veredus.cli.main import cli


def accept(words: Sequence[str]) -> click.Context:
    """Parse what follows `veredus`, as the command does, without running it. Raises what the command would say."""
    command: click.Command = cli
    context = cli.make_context("veredus", list(words), resilient_parsing=False)
    while isinstance(command, click.Group):
        kept = context._protected_args if hasattr(context, "_protected_args") else context.protected_args  # click 8.1
        name, found, rest = command.resolve_command(context, [*kept, *context.args])
        assert found is not None, f"no such command: {words}"
        command = found
        context = command.make_context(name or "", rest, parent=context)
    return context
