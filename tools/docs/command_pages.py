"""The reference of the command line: the help of every command, as it prints it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from veredus.cli.main import cli

WIDTH = 100


def pages() -> dict[str, str]:
    parts = [
        "# Command line",
        "Every command with its `--help`. Exit codes: 0 all went well, 1 the command failed, 2 wrong usage, 3 the"
        " server cannot be reached.",
    ]
    for path, command, context in commands():
        mark = "#" * min(4, 1 + len(path))
        parts += [f"{mark} {' '.join(path)}", f"```text\n{command.get_help(context).rstrip()}\n```"]
    return {"cli.md": "\n\n".join(parts) + "\n"}


def commands() -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    """`veredus` itself and everything below it that is listed."""
    yield from _walk(cli, context_of(cli, "veredus", None), ("veredus",))


def context_of(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    """As the command makes it for itself, so that it remembers nothing else (its help option, for one)."""
    settings: dict[str, Any] = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    return click.Context(command, info_name=name, parent=parent, **settings)


def _walk(
    command: click.Command, context: click.Context, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    yield path, command, context
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below is not None:
            yield from _walk(below, context_of(below, name, context), (*path, name))
